"""Transitions as rows: one packed float32 row per transition, one gather per minibatch.

A row is `[obs | next_obs | action | padding | reward | done]`, padded to a multiple of four numbers because
aligned rows are gathered several times faster on a GPU. Where a learner asks for them, next actions stand behind
the actions. Replay buffer, data sets, checkpoint shards and the device all hold rows; `RowLayout` is the only place
that knows the columns.
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
    """A minibatch. `dones` is 1 only where the episode really terminated, 0 at a time limit.

    `next_actions`, the data's own actions in `next_obs`, are there only for learners with `needs_next_actions`;
    where `dones` is 1 they mean nothing.
    """

    obs: Tensor  # [B, O]
    actions: Tensor  # [B, A] in [-1, 1], or [B] int64 if discrete
    rewards: Tensor  # [B]
    next_obs: Tensor  # [B, O]
    dones: Tensor  # [B]
    next_actions: Tensor | None = None  # like `actions`

    @classmethod
    def from_mapping(cls, batch: Mapping[str, Any] | TransitionBatch) -> TransitionBatch:
        """Check the names and shapes of a user's batch; numbers become float32, discrete actions int64."""
        batch = batch._asdict() if isinstance(batch, TransitionBatch) else batch
        needed = [name for name in cls._fields if name not in cls._field_defaults]
        missing = [name for name in needed if name not in batch]
        if missing:
            raise ConfigError(f"batch: missing column {missing[0]!r}; needed: {', '.join(needed)}")
        given = {name: torch.as_tensor(batch[name]) for name in needed}
        if batch.get("next_actions") is not None:
            given["next_actions"] = torch.as_tensor(batch["next_actions"])
        obs, actions = given["obs"], given["actions"]
        if obs.ndim != 2:
            raise ConfigError(f"batch: obs must have shape (B, O), got {tuple(obs.shape)}")
        rows = len(obs)
        wanted: dict[str, tuple[int, ...]] = {
            "actions": (rows, *actions.shape[1:]),
            "rewards": (rows,),
            "next_obs": tuple(obs.shape),
            "dones": (rows,),
            "next_actions": tuple(actions.shape),
        }
        for name, shape in wanted.items():
            if name in given and tuple(given[name].shape) != shape:
                raise ConfigError(f"batch: {name} must have shape {shape}, got {tuple(given[name].shape)}")
        discrete = actions.ndim == 1 and not actions.is_floating_point()
        return cls(
            **{
                name: column.long() if discrete and name.endswith("actions") else column.float()
                for name, column in given.items()
            }
        )


@dataclass(frozen=True)
class RowLayout:
    """Where each column stands in a packed row."""

    obs_dim: int
    action_dim: int
    discrete: bool
    next_actions: bool = False

    @classmethod
    def of(cls, spaces: SpaceSpec, *, next_actions: bool = False) -> RowLayout:
        return cls(spaces.obs_dim, spaces.action_dim, spaces.discrete, next_actions)

    @property
    def width(self) -> int:
        return -(-(2 * self.obs_dim + self.action_dim * (1 + self.next_actions) + 2) // 4) * 4

    def pack(
        self,
        obs: NDArray[Any],
        actions: NDArray[Any],
        rewards: NDArray[Any],
        next_obs: NDArray[Any],
        dones: NDArray[Any],
        out: NDArray[np.float32] | None = None,
        next_actions: NDArray[Any] | None = None,
    ) -> NDArray[np.float32]:
        """Columns `[n, …]`, actions already internal, to rows `[n, width]` (into `out` if given)."""
        assert (next_actions is not None) == self.next_actions
        n = len(rewards)
        rows = np.empty((n, self.width), dtype=np.float32) if out is None else out
        o, a = self.obs_dim, self.action_dim
        rows[:, :o] = obs
        rows[:, o : 2 * o] = next_obs
        rows[:, 2 * o : 2 * o + a] = actions.reshape(n, a)
        rows[:, 2 * o + a : -2] = 0.0
        if next_actions is not None:
            rows[:, 2 * o + a : 2 * o + 2 * a] = next_actions.reshape(n, a)
        rows[:, -2] = rewards
        rows[:, -1] = dones
        return rows

    def pack_batch(self, batch: TransitionBatch, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """A batch on the host as rows; where the layout has next actions, the batch's actions stand in for them."""
        return self.pack(
            obs=batch.obs.numpy(),
            actions=batch.actions.numpy(),
            rewards=batch.rewards.numpy(),
            next_obs=batch.next_obs.numpy(),
            dones=batch.dones.numpy(),
            out=out,
            next_actions=batch.actions.numpy() if self.next_actions else None,
        )

    def unpack(self, rows: Tensor) -> TransitionBatch:
        """Views into `rows [B, width]`; only discrete actions are converted."""
        o, a = self.obs_dim, self.action_dim
        return TransitionBatch(
            obs=rows[:, :o],
            actions=self._actions(rows, 2 * o),
            rewards=rows[:, -2],
            next_obs=rows[:, o : 2 * o],
            dones=rows[:, -1],
            next_actions=self._actions(rows, 2 * o + a) if self.next_actions else None,
        )

    def _actions(self, rows: Tensor, start: int) -> Tensor:
        return rows[:, start].long() if self.discrete else rows[:, start : start + self.action_dim]
