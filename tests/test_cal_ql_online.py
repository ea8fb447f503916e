"""Cal-QL's returns of new rows: written when an episode ends, over a wrapped ring and across a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms.cal_ql import CalQLConfig
from rl_training.data.datasets import TransitionDataset
from rl_training.data.extra_columns import MC_RETURNS, NO_RETURN
from rl_training.data.n_step import NStepReturns
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.transitions import RowLayout
from rl_training.errors import ConfigError
from rl_training.experiment import shards
from rl_training.experiment.checkpointing import read_checkpoint
from rl_training.experiment.config import TrainConfig
from tests.runs import differences, interrupted, replay_rows, resume, tiny, train

GAMMA = 0.5
LAYOUT = RowLayout(1, 1, False, (MC_RETURNS.bind(CalQLConfig(gamma=GAMMA)),))


def stored(ring: ReplayBuffer) -> list[float]:
    """The column in slot order."""
    values = ring.rows[: len(ring), LAYOUT.places["mc_returns"]]
    return values[:, 0].tolist()


def test_an_episode_gets_its_returns_when_it_ends() -> None:
    """Two environments and seven slots, so that episodes wrap around the end of the ring."""
    ring = ReplayBuffer(7, LAYOUT, torch.Generator(), n_step=NStepReturns(1, GAMMA, 2, torch.device("cpu")))

    def add(*rewards: float, ends: tuple[int, ...] = ()) -> None:
        one = np.zeros((2, 1), np.float32)
        over = np.isin(np.arange(2), ends)
        ring.add(LAYOUT.pack(one, one, np.array(rewards), one, ring.dones(over, ~over & over)))

    add(1.0, 10.0)
    add(2.0, 20.0)
    assert stored(ring) == [NO_RETURN] * 4
    ring.end_episode(1, 2, (1.0, 0.0))
    assert stored(ring) == [NO_RETURN, 20.0, NO_RETURN, 20.0]
    add(4.0, 0.0)
    add(8.0, 0.0)  # overwrites the first row of the first environment
    ring.end_episode(0, 4, (1.0, 0.0))
    assert stored(ring) == [NO_RETURN, 20.0, 6.0, 20.0, 8.0, NO_RETURN, 8.0]
    assert ring.amended == 8
    batch: Any = LAYOUT.unpack(ring.sample_rows(100))
    assert set(batch.mc_returns.tolist()) == {NO_RETURN, 6.0, 8.0, 20.0}


def tuned(folder: Path, **fields: Any) -> TrainConfig:
    """Episodes of seven steps, in two environments, with a ring of 50 rows that wraps."""
    kwargs = {"buffer_capacity": 50, "gamma": 0.9, "n_actions": 2, "backup_actions": 2}
    return tiny(
        "cal_ql",
        folder,
        kwargs=kwargs,
        regime="offline_to_online",
        num_envs=2,
        wrappers=[{"TimeLimit": {"max_episode_steps": 7}}],
        checkpoint_interval=20,
        **{"total_timesteps": 90} | fields,
    )


def test_checkpoints_contain_the_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of rows that an earlier checkpoint had saved without; a resumed run has the same."""
    monkeypatch.setattr(shards, "SHARD_ROWS", 8)
    straight = train(tuned(tmp_path))
    layout = RowLayout(3, 1, False, LAYOUT.extras)
    saved = read_checkpoint(straight.checkpoint_path)
    rows, info = replay_rows(saved), saved.rows
    assert info is not None
    numbers = np.arange(info.added - info.filled, info.added)
    batch: Any = layout.unpack(rows[numbers % info.capacity])
    for environment in range(2):
        own = numbers % 2 == environment
        # Each environment has made 45 steps: six whole episodes and three steps of the seventh.
        place = numbers[own] // 2
        rewards, returns = batch.rewards[own].tolist(), batch.mc_returns[own].tolist()
        wanted = [NO_RETURN] * len(rewards)
        for i in reversed(range(len(rewards))):
            if place[i] < 42:
                later = wanted[i + 1] if place[i] % 7 < 6 else 0.0
                wanted[i] = rewards[i] + 0.9 * later
        assert returns == pytest.approx(wanted, rel=1e-5)
    resumed = resume(interrupted(tuned(tmp_path), 30 + 40))
    assert differences(straight, resumed) == []


def test_tensor_environments_are_refused(tmp_path: Path) -> None:
    obs = np.arange(30.0).reshape(10, 3)
    data = TransitionDataset.from_arrays(
        obs, np.zeros((10, 1)), np.zeros(10), np.zeros(10), np.arange(10) == 9, action_low=-2.0, action_high=2.0
    )
    config = tuned(tmp_path).replace(env_id="torch/Pendulum-v1", wrappers=())
    with pytest.raises(ConfigError, match="'mc_returns', which tensor environments do not have"):
        train(config, dataset=data)
