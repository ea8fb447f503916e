"""A short real run of EDAC: 60 updates on 100 random transitions."""

from __future__ import annotations

import numpy as np
import pytest

from rl_training.experiment.checkpointing import read_checkpoint
from tests.runs import ShortRun, logged, short_run

METRICS = {
    "critic_loss",
    "critic_mse_loss",
    "diversity_loss",
    "q_data_std",
    "q_policy_std",
    "actor_loss",
    "entropy_term",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ShortRun:
    return short_run("edac", tmp_path_factory.mktemp("edac"))


def test_every_parameter_moved(run: ShortRun) -> None:
    assert run.unmoved() == []


def test_it_counted_its_work(run: ShortRun) -> None:
    assert (run.result.metrics["update_count"], run.result.metrics["dataset_size"]) == (60, 100)
    assert run.result.metrics["epoch"] == pytest.approx(60 / 7)  # 7 batches of 16 hold 100 rows


def test_metrics_are_reported_and_logged(run: ShortRun) -> None:
    assert METRICS | {"eval_return_mean", "gradient_steps"} <= run.result.metrics.keys()
    reports = [row for row in logged(run.result.run_dir) if "train/n_updates" in row]
    assert [row["step"] for row in reports] == ["20", "40", "60"]
    assert {f"train/{name}" for name in METRICS} <= reports[-1].keys()


def test_checkpoint_loads(run: ShortRun) -> None:
    assert run.result.checkpoint_path.name == "step_000000060"
    assert read_checkpoint(run.result.checkpoint_path).step == 60


def test_predicted_actions_are_legal(run: ShortRun) -> None:
    for deterministic in (True, False):
        actions = run.actions(deterministic)
        assert actions.shape == (64, 1)
        assert np.all(np.abs(actions) <= 2.0)
