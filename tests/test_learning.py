"""Every algorithm learns: online, to return what it observes; offline, to do better than its data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training import TransitionDataset
from rl_training.runtime.workflows import evaluate_checkpoint, predict_checkpoint
from tests.runs import EVERY_STEP, OFFLINE, ONLINE, mostly_slow, owned, tiny, train
from tests.test_offline_runtime import identity_data
from tests.worlds import CHOICES, IDENTITY

# One step per episode, so targets are rewards and a few hundred updates suffice.
FAST: dict[str, Any] = {
    "hidden_sizes": [32, 32],
    "batch_size": 64,
    "learning_rate": 3e-3,
    "actor_learning_rate": 3e-3,
    "learning_starts": 100,
    "buffer_capacity": 2_000,
    "gradient_updates_per_step": 1,
    "alpha": 0.01,
    "exploration_final_eps": 0.1,
    "exploration_fraction": 0.5,
    "target_update_interval": 10,
    "policy_delay": 1,
    "num_critics": 2,
    "n_quantiles": 5,
    "top_quantiles_to_drop_per_net": 0,
    "eta": 0.1,
    "bc_alpha": 10.0,
    "cql_alpha": 0.1,
    "distill_coef": 0.1,
    "n_actions": 4,
    "awac_lambda": 0.1,
    "beta": 0.1,
}
# Reports and checkpoints change nothing of what is learned, and cost more than learning it.
UNWATCHED: dict[str, Any] = {"eval_episodes": 0, "log_interval": 10_000, "checkpoint_interval": 10_000}
OBS = np.linspace(-0.9, 0.9, 19, dtype=np.float32)[:, None]


def settings(algo: str) -> dict[str, Any]:
    return owned(algo, FAST | EVERY_STEP) | (
        {"beta": 10.0} if algo == "iql" else {}
    )  # IQL multiplies by beta, CRR divides


@pytest.mark.parametrize("algo", mostly_slow([name for name in ONLINE if name != "dqn"], "sac"))
def test_online_algorithms_learn_the_identity(algo: str, tmp_path: Path) -> None:
    """Random answers cost 1.4 on average, the best constant 0.33, the identity nothing."""
    steps = 500 if algo == "sac" else 900
    result = train(tiny(algo, tmp_path, env_id=IDENTITY, kwargs=settings(algo), total_timesteps=steps, **UNWATCHED))
    assert evaluate_checkpoint(result.checkpoint_path, 50)["eval_return_mean"] > -0.03
    answers = predict_checkpoint(result.checkpoint_path, OBS)
    assert np.abs(answers - OBS).max() < 0.3


@pytest.mark.parametrize("double_q", mostly_slow([False, True], True))
def test_dqn_learns_to_name_its_observation(double_q: bool, tmp_path: Path) -> None:
    kwargs = settings("dqn") | {"double_q": double_q}
    result = train(tiny("dqn", tmp_path, env_id=CHOICES, kwargs=kwargs, total_timesteps=700, **UNWATCHED))
    assert predict_checkpoint(result.checkpoint_path, [[-1.0], [0.0], [1.0]]).tolist() == [5, 6, 7]
    assert evaluate_checkpoint(result.checkpoint_path, 30)["eval_return_mean"] == 1.0


def test_rlpd_learns_the_identity_from_both(tmp_path: Path) -> None:
    kwargs = settings("rlpd") | {"offline_pretrain_updates": 150}
    config = tiny("rlpd", tmp_path, env_id=IDENTITY, kwargs=kwargs, total_timesteps=250, **UNWATCHED)
    result = train(config, dataset=identity_data(500))
    assert evaluate_checkpoint(result.checkpoint_path, 50)["eval_return_mean"] > -0.03


@pytest.fixture(scope="module")
def random_answers() -> TransitionDataset:
    return identity_data(2_000)


@pytest.mark.parametrize("algo", mostly_slow([name for name in OFFLINE if name != "bc"], "iql"))
def test_offline_algorithms_beat_their_data(algo: str, random_answers: TransitionDataset, tmp_path: Path) -> None:
    """The mean return of the data is about -1.4; cloning, the best without rewards, gives -0.4."""
    assert -1.6 < random_answers.rewards.mean() < -1.2
    updates = 500 if algo == "iql" else 800
    config = tiny(algo, tmp_path, env_id=IDENTITY, kwargs=settings(algo), total_timesteps=updates, **UNWATCHED)
    result = train(config, dataset=random_answers)
    assert evaluate_checkpoint(result.checkpoint_path, 50)["eval_return_mean"] > -0.05


@pytest.mark.parametrize("stochastic", mostly_slow([False, True], True))
def test_bc_clones_the_data(stochastic: bool, tmp_path: Path) -> None:
    """Answers that follow a = 0.5 - x are cloned, rewards or not."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (2_000, 1)).astype(np.float32)
    data = TransitionDataset.from_arrays(
        x, 0.5 - x, np.zeros(2_000), np.ones(2_000, bool), next_observations=x, action_low=-2.0, action_high=1.6
    )
    kwargs = settings("bc") | {"stochastic": stochastic}
    result = train(tiny("bc", tmp_path, env_id=None, kwargs=kwargs, total_timesteps=600, **UNWATCHED), dataset=data)
    assert np.abs(predict_checkpoint(result.checkpoint_path, OBS) - (0.5 - OBS)).max() < 0.1
