"""Extra columns of rows, each with the function that computes it when data are loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.errors import ConfigError, DatasetError

if TYPE_CHECKING:
    from rl_training.data.datasets import TransitionDataset
    from rl_training.data.n_step import Drawn
    from rl_training.data.transitions import TransitionBatch


class ColumnValues(NamedTuple):
    """The values of an extra column: `at(index)` for rows `index [n]`.

    Rows may be overwritten in order while `at` is called, so it may read row `index` and later rows of the data
    set; values that depend on earlier rows must be computed before. `lacking` rows, at the ends of episodes, have
    no value and are left out for `reason`.
    """

    at: Callable[[NDArray[np.int64]], NDArray[Any]]
    lacking: NDArray[np.int64] = np.zeros(0, np.int64)
    reason: str = ""


class Column(NamedTuple):
    """An extra column of a row, declared in `Learner.extras`.

    `compute(data, *bound)` returns its values. `settings` names the hyperparameters that they depend on; `bound`
    has the values of these. A packed file is found by `name` and `bound`: rename a column if its function changes.
    `replayed(drawn, *bound)` returns the values `[B, …]` of rows drawn from a replay buffer, and does not read from
    the device; if it is None, the column is for data alone. If the values are known at the end of an episode,
    `at_end(rewards, dones, episode_ends, reward_map, *bound)` returns them; the buffer stores `initial` until then.
    """

    name: str
    like: Literal["obs", "actions", "rewards"]  # the column with the same shape and type
    meaning: str
    compute: Callable[..., ColumnValues]
    settings: tuple[str, ...] = ()
    bound: tuple[Any, ...] = ()
    replayed: Callable[..., Tensor] | None = None
    at_end: Callable[..., NDArray[np.float32]] | None = None
    initial: float = 0.0

    def bind(self, config: Any) -> Column:
        """This column for the hyperparameters of `config`."""
        if unknown := [name for name in self.settings if not hasattr(config, name)]:
            raise ConfigError(f"column {self.name}: {type(config).__name__} has no setting {unknown[0]!r}")
        return self._replace(bound=tuple(getattr(config, name) for name in self.settings))

    def values(self, data: TransitionDataset) -> ColumnValues:
        """The values for the rows of `data`."""
        if len(self.bound) != len(self.settings):
            raise ConfigError(f"column {self.name}: {', '.join(self.settings)} is not set; use bind(config)")
        return self.compute(data, *self.bound)


def describe(columns: Iterable[Column]) -> str:
    """The names of columns with their settings, for a message."""
    words = []
    for column in columns:
        settings = ", ".join(f"{name} {value}" for name, value in zip(column.settings, column.bound))
        words.append(f"{column.name} ({settings})" if settings else column.name)
    return ", ".join(words) or "no extra columns"


def extra(batch: TransitionBatch, column: Column) -> Tensor:
    """An extra column of a batch."""
    values: Tensor | None = getattr(batch, column.name, None)
    if values is None:
        raise ConfigError(f"the batch has no column {column.name}; declare it in the learner's extras")
    return values


def _next_actions(data: TransitionDataset) -> ColumnValues:
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

    def at(index: NDArray[np.int64]) -> NDArray[Any]:
        return data.columns_at(index + continued[index]).actions.numpy()

    return ColumnValues(at, data.episode_ends[cut], "the last of a cut episode, without a next action")


def _replayed_next_actions(drawn: Drawn) -> Tensor:
    """The action of the following row; a row without one, the newest or the last of an episode, gets its own."""
    slots, exists = drawn.following(drawn.last, 2)
    actions = drawn.ring[:, drawn.layout.places["actions"]]
    return actions.index_select(0, torch.where(exists[:, 1] == 1, slots[:, 1], slots[:, 0]))


NEXT_ACTIONS = Column(
    "next_actions", "actions", "the data's next action [B, A]", _next_actions, replayed=_replayed_next_actions
)
# The stored return of a row whose episode has not ended: below every value.
NO_RETURN = float(np.finfo(np.float32).min)


def discounted_sums(rewards: NDArray[np.float64], ends: NDArray[np.int64], gamma: float) -> NDArray[np.float64]:
    """The discounted sum of rewards from each row to the next of the rows `ends`, which include the last, `[n]`.

    Sums over 2n rows are built from sums over n.
    """
    sums = rewards.copy()
    left = np.repeat(ends, np.diff(ends, prepend=-1)) - np.arange(len(rewards))  # rows up to that end
    span, weight = 1, gamma
    while span <= left.max(initial=0) and weight > 1e-12:
        later = np.flatnonzero(left >= span)
        sums[later] += weight * sums[later + span]
        span, weight = 2 * span, weight * weight
    return sums


def mc_returns(
    rewards: NDArray[np.float32],
    dones: NDArray[np.float32],
    episode_ends: NDArray[np.int64],
    reward_map: tuple[float, float],
    gamma: float,
    failure_reward: float | None,
) -> NDArray[np.float32]:
    """R_t = r_t + gamma (1 - d_t) R_{t+1} of each row; rewards after the last row of an episode are not counted.

    If all rewards of an episode equal `failure_reward`, scaled by `reward_map` as they are, the episode counts as
    failing for ever: every R_t is r / (1 - gamma).
    """
    ends = np.union1d(episode_ends, np.flatnonzero(dones == 1))
    returns = discounted_sums(rewards.astype(np.float64), ends, gamma)
    if failure_reward is not None:
        failure = reward_map[0] * failure_reward + reward_map[1]
        lengths = np.diff(episode_ends, prepend=-1)
        failed = np.logical_and.reduceat(np.isclose(rewards, failure), episode_ends - lengths + 1)
        returns[np.repeat(failed, lengths)] = failure / (1.0 - gamma)
    return returns.astype(np.float32)


def _mc_returns(data: TransitionDataset, *bound: Any) -> ColumnValues:
    data.episodes("a floor of values by returns")
    returns = mc_returns(data.rewards, data.dones, data.episode_ends, data.reward_map, *bound)
    return ColumnValues(lambda index: returns[index])


def _stored_returns(drawn: Drawn, *_: Any) -> Tensor:
    return drawn.ring[:, drawn.layout.places["mc_returns"]].index_select(0, drawn.first)


MC_RETURNS = Column(
    "mc_returns",
    "rewards",
    "the discounted return of the episode from this row on [B]",
    _mc_returns,
    ("gamma", "failure_reward"),
    replayed=_stored_returns,
    at_end=mc_returns,
    initial=NO_RETURN,
)
