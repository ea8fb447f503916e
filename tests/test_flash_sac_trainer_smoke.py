"""A short real run of FlashSAC: 60 steps, with updates from the 20th step on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rl_training
from rl_training.experiment.checkpointing import read_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from tests.runs import EVERY_STEP, logged, tiny, train
from tests.smoke import OnlineFacts


class TestShortRun(OnlineFacts):
    algo = "flash_sac"
    metrics = (
        "critic_loss",
        "actor_loss",
        "target_q_mean",
        "entropy_term",
    )


def test_running_statistics_are_saved_and_used_by_predict(tmp_path: Path) -> None:
    """And a prediction does not depend on the rows that are predicted with it."""
    result = train(tiny("flash_sac", tmp_path))
    networks = read_checkpoint(result.checkpoint_path).tensors["networks"]
    for part in ("actor", "critics", "target_critics"):
        assert networks[f"model.{part}.net.norms.0.mean"].abs().max() > 0
    assert not any(name.endswith("bins") for name in networks)
    model = rl_training.load(result.run_dir)
    obs = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    together = model.predict(obs, deterministic=True)
    np.testing.assert_allclose(model.predict(obs[:1], deterministic=True), together[:1], rtol=1e-5)


def test_the_learning_rate_falls_and_rewards_are_scaled(tmp_path: Path) -> None:
    """By default. The rate that is logged is the actor's, which makes half as many steps: it ends half-way."""
    spec = get_algorithm_spec("flash_sac").sections
    assert spec.default("learning_rate_schedule") == {"type": "cosine", "final_factor": 0.5}
    assert (spec.default("batch_size"), spec.learner.most_first_steps) == (512, 10_000)
    result = train(tiny("flash_sac", tmp_path, kwargs=EVERY_STEP))
    assert float(logged(result.run_dir)[-1]["train/learning_rate"]) == pytest.approx(2.25e-4, rel=0.02)
    saved = read_checkpoint(result.checkpoint_path).tensors
    assert "scaling.largest" in saved["collector"]
    assert float(saved["networks"]["rewards.scale"]) != 1.0
