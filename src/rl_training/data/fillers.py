"""Functions that compute the extra columns of rows, one for each column."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.errors import DatasetError

if TYPE_CHECKING:
    from rl_training.data.datasets import TransitionDataset
    from rl_training.data.episodes import Episodes


class Filled(NamedTuple):
    """An extra column: `values(index)` for rows `index [n]`.

    `lacking` rows, at the ends of episodes, have no value and are left out for `reason`.
    """

    values: Callable[[NDArray[np.int64]], NDArray[Any]]
    lacking: NDArray[np.int64] = np.zeros(0, np.int64)
    reason: str = ""


def next_actions(data: TransitionDataset) -> Filled:
    """The action of the following row.

    The last row of a terminated episode gets its own action, which `dones` masks. The last row of a cut episode
    lacks one.
    """
    lengths = data.episodes("learning from next actions")[1]
    cut = data.dones[data.episode_ends] == 0
    if not (lengths - cut).any():
        raise DatasetError(f"{data.name}: no row has a next action, every episode is cut after its first row")
    continued = np.ones(len(data), np.bool_)
    continued[data.episode_ends] = False

    def values(index: NDArray[np.int64]) -> NDArray[Any]:
        return data.columns_at(index + continued[index]).actions.numpy()

    return Filled(values, data.episode_ends[cut], "the last of a cut episode, without a next action")


def returns_to_go(
    rewards: NDArray[np.float64], dones: NDArray[np.float32], episodes: Episodes, gamma: float
) -> NDArray[np.float64]:
    """The discounted sum of rewards from each row to the end of its episode, `[n]`.

    A truncated episode is assumed to continue with the mean reward. Sums over 2n rows are built from sums over n.
    """
    sums, ends = rewards.copy(), episodes.ends
    cut = ends[dones[ends] == 0]
    sums[cut] += gamma * rewards.mean() / (1.0 - gamma)
    left = np.repeat(ends, episodes.lengths) - np.arange(len(rewards))  # rows after this one in its episode
    span, weight = 1, gamma
    while span <= left.max(initial=0) and weight > 1e-12:
        later = np.flatnonzero(left >= span)
        sums[later] += weight * sums[later + span]
        span, weight = 2 * span, weight * weight
    return sums


# The function of each column that a learner declares in `extras`, called with the data set and `Column.bound`.
FILLERS: dict[str, Callable[..., Filled]] = {"next_actions": next_actions}
