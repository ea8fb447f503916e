"""Checks of a short real run, shared by all algorithms; each `test_<algo>_trainer_smoke.py` adds its own."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from rl_training.experiment.checkpointing import read_checkpoint
from tests.runs import ShortRun, logged, short_run

# Metrics of learners with weighted cloning.
CLONING_METRICS = (
    "critic_loss",
    "actor_loss",
    "target_q_mean",
    "advantage_mean",
    "advantage_weight_mean",
    "small_weight_share",
    "behavior_logprob_mean",
)


class ShortRunFacts:
    """60 steps or updates of `algo`; a subclass defines the expected metrics and counts."""

    algo: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]
    counted: ClassVar[dict[str, float]]

    @pytest.fixture(scope="class")
    @classmethod
    def run(cls, tmp_path_factory: pytest.TempPathFactory) -> ShortRun:
        return short_run(cls.algo, tmp_path_factory.mktemp(cls.algo))

    def test_every_parameter_moved(self, run: ShortRun) -> None:
        assert run.unmoved() == []

    def test_it_counted_its_work(self, run: ShortRun) -> None:
        assert {name: run.result.metrics[name] for name in self.counted} == pytest.approx(self.counted)

    def test_metrics_are_reported_and_logged(self, run: ShortRun) -> None:
        assert {*self.metrics, "eval_return_mean", "gradient_steps"} <= run.result.metrics.keys()
        reports = [row for row in logged(run.result.run_dir) if "train/n_updates" in row]
        assert [row["step"] for row in reports] == ["20", "40", "60"]
        assert {f"train/{name}" for name in self.metrics} <= reports[-1].keys()

    def test_checkpoint_loads(self, run: ShortRun) -> None:
        assert run.result.checkpoint_path.name == "step_000000060"
        assert read_checkpoint(run.result.checkpoint_path).step == 60

    def test_predicted_actions_are_legal(self, run: ShortRun) -> None:
        for deterministic in (True, False):
            actions = run.actions(deterministic)
            assert actions.shape == (64, 1)
            assert np.all(np.abs(actions) <= 2.0)


class OnlineFacts(ShortRunFacts):
    """60 steps, with updates from the 20th step on."""

    counted: ClassVar[dict[str, float]] = {"global_step": 60, "update_count": 41}


class OfflineFacts(ShortRunFacts):
    """60 updates on 100 random transitions: 7 batches of 16 hold 100 rows."""

    counted: ClassVar[dict[str, float]] = {"update_count": 60, "dataset_size": 100, "epoch": 60 / 7}
