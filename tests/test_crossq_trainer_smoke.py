"""A short real run of CrossQ: 60 steps, with updates from the 20th step on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rl_training
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import read_checkpoint
from tests.runs import EVERY_STEP, tiny, train
from tests.smoke import OnlineFacts


class TestShortRun(OnlineFacts):
    algo = "crossq"
    metrics = (
        "critic_loss",
        "actor_loss",
        "target_q_mean",
        "entropy_term",
    )


def test_running_statistics_are_saved_and_used_by_predict(tmp_path: Path) -> None:
    """And a prediction does not depend on the rows that are predicted with it."""
    result = train(tiny("crossq", tmp_path, kwargs=EVERY_STEP))
    networks = read_checkpoint(result.checkpoint_path).tensors["networks"]
    assert float(networks["model.critics.net.norms.0.batches"]) == 41
    assert float(networks["model.actor.net.norms.0.batches"]) == 20
    model = rl_training.load(result.run_dir)
    obs = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    together = model.predict(obs, deterministic=True)
    alone = model.predict(obs[:1], deterministic=True)
    np.testing.assert_allclose(alone, together[:1], rtol=1e-5)
    mean = networks["model.actor.net.norms.0.mean"]
    assert mean.abs().max() > 0


@pytest.mark.parametrize("algo", ["crossq", "flash_sac"])
def test_one_row_cannot_be_normalised_by_its_batch(algo: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"algo_kwargs.batch_size must be >= 2 for {algo}, got 1"):
        train(tiny(algo, tmp_path, kwargs={"batch_size": 1}))
    assert not any(tmp_path.iterdir())
