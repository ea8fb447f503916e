"""The model of TQC: a tanh-Gaussian actor and N critics of M quantiles each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rl_training.models.actor_critic import StochasticActorCritic


class MLPTQCModel(StochasticActorCritic):
    """`quantiles` returns `[B, N, M]`; `options` as in `StochasticActorCritic`."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        num_critics: int,
        n_quantiles: int,
        **options: Any,
    ) -> None:
        super().__init__(obs_dim, action_dim, hidden_sizes, num_critics, critic_quantiles=n_quantiles, **options)
        self.n_quantiles = n_quantiles

    def quantiles(self, obs: Tensor, actions: Tensor) -> Tensor:
        """The quantiles of every critic, `[B, N, M]`."""
        return self.all_q_values(obs, actions)
