"""Transitions as rows: one packed float32 row per transition, one gather per minibatch.

A row is `[obs | next_obs | actions | extra columns | padding | reward | done]`, padded to a multiple of four
numbers because a GPU gathers aligned rows several times faster. Replay buffers, data sets and checkpoint shards
store rows; only `RowLayout` knows the columns.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.data.extra_columns import NEXT_ACTIONS, Column
from rl_training.errors import ConfigError
from rl_training.spaces import SpaceSpec

# Each column of every batch, in the order of `TransitionBatch`, and the column with the same shape and type.
_LIKE = {"obs": "obs", "actions": "actions", "rewards": "rewards", "next_obs": "obs", "dones": "rewards"}


def _likes(extras: Iterable[Column]) -> dict[str, str]:
    return _LIKE | {column.name: column.like for column in extras}


class TransitionBatch(NamedTuple):
    """A minibatch. `dones` is 1 only if the episode terminated, 0 at a time limit (n-step returns: see `n_step`).

    `next_actions`, the data's actions in `next_obs`, is None unless the learner's `extras` include it. It is
    undefined where `dones` is 1. A batch with other extra columns has one more field for each (see
    `extra_columns.extra`).
    """

    obs: Tensor  # [B, O]
    actions: Tensor  # [B, A] in [-1, 1], or [B] int64 if discrete
    rewards: Tensor  # [B]
    next_obs: Tensor  # [B, O]
    dones: Tensor  # [B]
    next_actions: Tensor | None = None  # like `actions`

    @classmethod
    def from_mapping(
        cls, batch: Mapping[str, Any] | TransitionBatch, extras: tuple[Column, ...] = ()
    ) -> TransitionBatch:
        """Check the names and shapes of a user's batch; numbers become float32, discrete actions int64."""
        batch = batch if isinstance(batch, Mapping) else batch._asdict()
        missing = [name for name in _LIKE if name not in batch]
        if missing:
            raise ConfigError(f"batch: missing column {missing[0]!r}; needed: {', '.join(_LIKE)}")
        like = _likes((NEXT_ACTIONS, *extras))
        found = [name for name in like if name in _LIKE or batch.get(name) is not None]
        given = {name: torch.as_tensor(batch[name]) for name in found}
        obs, actions = given["obs"], given["actions"]
        if obs.ndim != 2:
            raise ConfigError(f"batch: obs must have shape (B, O), got {tuple(obs.shape)}")
        rows = len(obs)
        shapes = {"obs": tuple(obs.shape), "actions": (rows, *actions.shape[1:]), "rewards": (rows,)}
        for name, column in given.items():
            if tuple(column.shape) != (shape := shapes[like[name]]):
                raise ConfigError(f"batch: {name} must have shape {shape}, got {tuple(column.shape)}")
        whole = "actions" if actions.ndim == 1 and not actions.is_floating_point() else None
        return _batch_type(extras)(
            **{name: column.long() if like[name] == whole else column.float() for name, column in given.items()}
        )


@cache
def _batch_type(extras: tuple[Column, ...]) -> Callable[..., TransitionBatch]:
    """`TransitionBatch`, or a named tuple that also has a field for each other extra column."""
    if set(extras) <= {NEXT_ACTIONS}:
        return TransitionBatch
    names = dict.fromkeys([*_LIKE, *(column.name for column in extras), NEXT_ACTIONS.name])
    make: Any = namedtuple  # mypy accepts literal names only
    return make("TransitionBatch", names, defaults=[None] * len(list(names)[5:]))


@dataclass(frozen=True)
class RowLayout:
    """The place of each column in a packed row."""

    obs_dim: int
    action_dim: int
    discrete: bool
    extras: tuple[Column, ...] = ()

    @classmethod
    def of(cls, spaces: SpaceSpec, extras: tuple[Column, ...] = ()) -> RowLayout:
        return cls(spaces.obs_dim, spaces.action_dim, spaces.discrete, extras)

    def __post_init__(self) -> None:
        _ = self._unpacking, self.width  # computed here, because `torch.compile` cannot trace a cached property

    @cached_property
    def places(self) -> dict[str, slice]:
        """Where each column is in a row."""
        widths, like = {"obs": self.obs_dim, "actions": self.action_dim, "rewards": 1}, _likes(self.extras)
        names = ["obs", "next_obs", "actions", *(column.name for column in self.extras)]
        edges = list(accumulate((widths[like[name]] for name in names), initial=0))
        width = -(-(edges[-1] + 2) // 4) * 4
        inner = {name: slice(*edge) for name, edge in zip(names, pairwise(edges))}
        return inner | {"rewards": slice(width - 2, width - 1), "dones": slice(width - 1, width)}

    @cached_property
    def width(self) -> int:
        return int(self.places["dones"].stop)

    @cached_property
    def _unpacking(self) -> tuple[Callable[..., TransitionBatch], list[tuple[slice | int, bool]]]:
        """The type of a batch, and for each column its index in a row and whether its numbers are whole."""
        views: list[tuple[slice | int, bool]] = []
        for name, like in _likes(self.extras).items():
            whole = self.discrete and like == "actions"
            place = self.places[name]
            views.append((place.start if whole or like == "rewards" else place, whole))
        return _batch_type(self.extras), views

    def pack(
        self,
        obs: NDArray[Any],
        actions: NDArray[Any],
        rewards: NDArray[Any],
        next_obs: NDArray[Any],
        dones: NDArray[Any],
        out: NDArray[np.float32] | None = None,
        **extras: NDArray[Any],
    ) -> NDArray[np.float32]:
        """Columns `[n, …]`, with internal actions, to rows `[n, width]` (into `out` if given).

        Extra columns that are not given have their initial value.
        """
        n, o, a = len(rewards), self.obs_dim, self.action_dim
        rows = np.empty((n, self.width), dtype=np.float32) if out is None else out
        rows[:, :o] = obs
        rows[:, o : 2 * o] = next_obs
        rows[:, 2 * o : 2 * o + a] = actions.reshape(n, a)
        rows[:, 2 * o + a : -2] = 0.0
        rows[:, -2] = rewards
        rows[:, -1] = dones
        for column in self.extras:
            place = rows[:, self.places[column.name]]
            given = extras.get(column.name)
            place[...] = column.initial if given is None else given.reshape(place.shape)
        return rows

    def pack_tensors(
        self, obs: Tensor, actions: Tensor, rewards: Tensor, next_obs: Tensor, dones: Tensor
    ) -> Tensor:
        """Columns on one device to rows `[n, width]`, without extra columns and without reads by the host."""
        n, given = len(rewards), 2 * self.obs_dim + self.action_dim
        padding = rewards.new_zeros((n, self.width - given - 2))
        parts = obs, next_obs, actions.reshape(n, -1), padding, rewards[:, None], dones[:, None]
        return torch.cat([part.to(torch.float32) for part in parts], 1)

    def pack_batch(self, batch: TransitionBatch, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """A batch on the host as rows; columns that the layout does not have are left out."""
        given = {name: column for name, column in batch._asdict().items() if name in self.places}
        return self.pack(**{name: column.numpy() for name, column in given.items() if column is not None}, out=out)

    def unpack(self, rows: Tensor) -> TransitionBatch:
        """Views into `rows [B, width]`; only discrete actions are converted."""
        make, views = self._unpacking
        return make(*[rows[:, place].long() if whole else rows[:, place] for place, whole in views])
