"""What a person wants to know of a data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rl_training.data.datasets import TransitionDataset


@dataclass(frozen=True)
class DatasetStatistics:
    """What a person wants to know of a data set; without episodes there are no returns and lengths."""

    name: str
    rows: int
    episodes: int
    terminals: int
    timeouts: int  # episodes that ended without terminating: time limits and cuts
    return_mean: float | None
    return_std: float | None
    return_min: float | None
    return_max: float | None
    length_mean: float | None
    length_min: int | None
    length_max: int | None
    reward_min: float
    reward_max: float
    reward_mean: float
    action_min: tuple[float, ...]  # in the environment's units
    action_max: tuple[float, ...]
    obs_mean: tuple[float, ...]
    obs_std: tuple[float, ...]
    notes: tuple[str, ...]


def statistics_of(data: TransitionDataset) -> DatasetStatistics:
    """Counts, returns, lengths and ranges."""
    low = np.min([chunk.actions.numpy().min(0) for chunk in data.viewed_chunks()], axis=0)
    high = np.max([chunk.actions.numpy().max(0) for chunk in data.viewed_chunks()], axis=0)
    mean, std = data.observation_moments()
    episodes = len(data.episode_ends)
    returns = data.episode_returns() if episodes else None
    lengths = data.episodes("lengths")[1] if episodes else None
    return DatasetStatistics(
        name=data.name,
        rows=len(data),
        episodes=episodes,
        terminals=int(np.count_nonzero(data.dones)),
        timeouts=int(np.count_nonzero(data.dones[data.episode_ends] == 0)),
        return_mean=None if returns is None else float(returns.mean()),
        return_std=None if returns is None else float(returns.std()),
        return_min=None if returns is None else float(returns.min()),
        return_max=None if returns is None else float(returns.max()),
        length_mean=None if lengths is None else float(lengths.mean()),
        length_min=None if lengths is None else int(lengths.min()),
        length_max=None if lengths is None else int(lengths.max()),
        reward_min=float(data.rewards.min()),
        reward_max=float(data.rewards.max()),
        reward_mean=float(data.rewards.mean(dtype=np.float64)),
        action_min=_floats(data.spaces.to_env(low)),
        action_max=_floats(data.spaces.to_env(high)),
        obs_mean=_floats(mean),
        obs_std=_floats(std),
        notes=data.notes,
    )


def _floats(array: NDArray[Any]) -> tuple[float, ...]:
    return tuple(float(x) for x in np.asarray(array).reshape(-1))
