"""Transitions as rows: one packed float32 row per transition, one gather per minibatch.

A row is `[obs | next_obs | action | padding | reward | done]`, padded to a multiple of four numbers because
aligned rows are gathered several times faster on a GPU. Replay buffer, data sets, checkpoint shards and the
device all hold rows; `RowLayout` is the only place that knows the columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.errors import ConfigError
from rl_training.spaces import SpaceSpec


class TransitionBatch(NamedTuple):
    """A minibatch. `dones` is 1 only where the episode really terminated, 0 at a time limit."""

    obs: Tensor  # [B, O]
    actions: Tensor  # [B, A] in [-1, 1], or [B] int64 if discrete
    rewards: Tensor  # [B]
    next_obs: Tensor  # [B, O]
    dones: Tensor  # [B]

    @classmethod
    def from_mapping(cls, batch: Mapping[str, Any]) -> TransitionBatch:
        """Check the names and shapes of a user's mapping; numbers become float32, discrete actions int64."""
        missing = [name for name in cls._fields if name not in batch]
        if missing:
            raise ConfigError(f"batch: missing column {missing[0]!r}; needed: {', '.join(cls._fields)}")
        given = {name: torch.as_tensor(batch[name]) for name in cls._fields}
        obs, actions = given["obs"], given["actions"]
        if obs.ndim != 2:
            raise ConfigError(f"batch: obs must have shape (B, O), got {tuple(obs.shape)}")
        rows = len(obs)
        wanted: dict[str, tuple[int, ...]] = {
            "actions": (rows, *actions.shape[1:]),
            "rewards": (rows,),
            "next_obs": tuple(obs.shape),
            "dones": (rows,),
        }
        for name, shape in wanted.items():
            if tuple(given[name].shape) != shape:
                raise ConfigError(f"batch: {name} must have shape {shape}, got {tuple(given[name].shape)}")
        discrete = actions.ndim == 1 and not actions.is_floating_point()
        return cls(
            **{name: column.float() for name, column in given.items()}
            | {"actions": actions.long() if discrete else actions.float()}
        )


@dataclass(frozen=True)
class RowLayout:
    """Where each column stands in a packed row."""

    obs_dim: int
    action_dim: int
    discrete: bool

    @classmethod
    def of(cls, spaces: SpaceSpec) -> RowLayout:
        return cls(spaces.obs_dim, spaces.action_dim, spaces.discrete)

    @property
    def width(self) -> int:
        return -(-(2 * self.obs_dim + self.action_dim + 2) // 4) * 4

    def pack(
        self,
        obs: NDArray[Any],
        actions: NDArray[Any],
        rewards: NDArray[Any],
        next_obs: NDArray[Any],
        dones: NDArray[Any],
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Columns `[n, …]`, actions already internal, to rows `[n, width]` (into `out` if given)."""
        n = len(rewards)
        rows = np.empty((n, self.width), dtype=np.float32) if out is None else out
        o, a = self.obs_dim, self.action_dim
        rows[:, :o] = obs
        rows[:, o : 2 * o] = next_obs
        rows[:, 2 * o : 2 * o + a] = np.reshape(actions, (n, a))
        rows[:, 2 * o + a : -2] = 0.0
        rows[:, -2] = rewards
        rows[:, -1] = dones
        return rows

    def unpack(self, rows: Tensor) -> TransitionBatch:
        """Views into `rows [B, width]`; only discrete actions are converted."""
        o, a = self.obs_dim, self.action_dim
        actions = rows[:, 2 * o].long() if self.discrete else rows[:, 2 * o : 2 * o + a]
        return TransitionBatch(
            obs=rows[:, :o],
            actions=actions,
            rewards=rows[:, -2],
            next_obs=rows[:, o : 2 * o],
            dones=rows[:, -1],
        )
