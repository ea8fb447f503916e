"""The model of SAC and of the offline learners built on it: a tanh-Gaussian actor and two critics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rl_training.models.actor_critic import StochasticActorCritic


class MLPSACModel(StochasticActorCritic):
    """`q_values` returns the pair of critics as two `[B]`; `options` as in `StochasticActorCritic`."""

    def __init__(self, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int], **options: Any) -> None:
        super().__init__(obs_dim, action_dim, hidden_sizes, 2, **options)

    def q_values(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Q_1(s, a) and Q_2(s, a), each `[B]`."""
        q = self.all_q_values(obs, actions)  # [B, 2]
        return q[:, 0], q[:, 1]
