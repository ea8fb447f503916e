"""A short real run of DQN: 60 steps, of which it learns from the 20th on."""

from __future__ import annotations

import pytest

from rl_training.experiment.checkpointing import read_checkpoint
from tests.runs import ShortRun, logged, short_run

METRICS = {
    "loss",
    "q_mean",
    "target_q_mean",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ShortRun:
    return short_run("dqn", tmp_path_factory.mktemp("dqn"))


def test_every_parameter_moved(run: ShortRun) -> None:
    assert run.unmoved() == []


def test_it_counted_its_work(run: ShortRun) -> None:
    assert (run.result.metrics["global_step"], run.result.metrics["update_count"]) == (60, 41)


def test_metrics_are_reported_and_logged(run: ShortRun) -> None:
    assert METRICS | {"eval_return_mean", "gradient_steps"} <= run.result.metrics.keys()
    reports = [row for row in logged(run.result.run_dir) if "train/n_updates" in row]
    assert [row["step"] for row in reports] == ["20", "40", "60"]
    assert {f"train/{name}" for name in METRICS} <= reports[-1].keys()


def test_checkpoint_loads(run: ShortRun) -> None:
    assert run.result.checkpoint_path.name == "step_000000060"
    assert read_checkpoint(run.result.checkpoint_path).step == 60


def test_predicted_actions_are_legal(run: ShortRun) -> None:
    actions = run.actions()
    assert actions.shape == (64,)
    assert set(actions) <= {0, 1}
