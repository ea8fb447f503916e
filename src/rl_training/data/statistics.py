"""Statistics of a data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.sources import Part

if TYPE_CHECKING:
    from rl_training.data.datasets import TransitionDataset


@dataclass(frozen=True)
class DatasetStatistics:
    """Statistics of a data set; returns and lengths are None if the rows are unordered."""

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
    action_counts: tuple[int, ...]  # rows with each discrete action; empty for continuous actions
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
        action_min=floats(data.spaces.to_env(low)),
        action_max=floats(data.spaces.to_env(high)),
        action_counts=_action_counts(data),
        obs_mean=floats(mean),
        obs_std=floats(std),
        notes=(*data.notes, *(["one episode only"] if len(data.episode_ends) == 1 else [])),
    )


def _action_counts(data: TransitionDataset) -> tuple[int, ...]:
    if not data.spaces.discrete:
        return ()
    counts = np.zeros(data.spaces.num_actions, np.int64)
    for chunk in data.viewed_chunks():
        counts += np.bincount(chunk.actions.numpy(), minlength=len(counts))
    return tuple(counts.tolist())


def moments_of(data: TransitionDataset) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean and standard deviation of each observation component, `[O]` each, by the sampling weights."""

    def expected(value: Callable[[NDArray[np.float32]], NDArray[np.float64]]) -> NDArray[np.float64]:
        parts = data.parts or (Part(len(data), 1.0),)
        total, first = np.zeros(data.spaces.obs_dim), 0
        for part in parts:
            views = data.viewed_chunks(first, first + part.rows)
            total += part.weight * (sum(value(view.obs.numpy()).sum(0) for view in views) / part.rows)
            first += part.rows
        return total / sum(part.weight for part in parts)

    mean = expected(lambda obs: obs.astype(np.float64))
    variance = expected(lambda obs: (obs - mean) ** 2)
    return mean.astype(np.float32), np.sqrt(variance).astype(np.float32)


def rows_to_termination(
    starts: NDArray[np.int64], lengths: NDArray[np.int64], dones: NDArray[np.float32]
) -> NDArray[np.int64]:
    """The number of rows of each episode up to and including its first termination, or all of them."""
    terminal = np.append(np.flatnonzero(dones == 1), len(dones))
    return np.minimum(terminal[np.searchsorted(terminal, starts)] - starts + 1, lengths)


def sums_of(
    values: NDArray[np.float64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The sum of `lengths` consecutive values from each of the ascending `starts`."""
    edges = np.stack([starts, starts + lengths], axis=1).reshape(-1)
    return np.add.reduceat(np.append(values, 0.0), edges)[::2]


def returns_of(data: TransitionDataset, discount: float, step: int) -> NDArray[np.float64]:
    """The (discounted) sum of rewards of each episode up to its first termination.

    About `step` rows are used at a time.
    """
    starts, lengths = data.episodes("episode returns")
    counted = rows_to_termination(starts, lengths, data.dones)
    stored, returns, first = data.rewards, np.empty(len(starts)), 0
    while first < len(starts):  # as many whole episodes as a chunk holds, but at least one
        last = int(np.searchsorted(data.episode_ends, starts[first] + step))
        group = slice(first, max(last, first + 1))
        begin, stop = starts[first], data.episode_ends[group][-1] + 1
        rewards = stored[begin:stop].astype(np.float64)
        if discount != 1.0:
            rewards *= discount ** (np.arange(begin, stop) - np.repeat(starts[group], lengths[group]))
        returns[group] = sums_of(rewards, starts[group] - begin, counted[group])
        first = group.stop
    return returns


def floats(array: NDArray[Any]) -> tuple[float, ...]:
    return tuple(float(x) for x in np.asarray(array).reshape(-1))
