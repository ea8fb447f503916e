"""The models of SAC and the offline learners built on it, CrossQ and TQC: a tanh-Gaussian actor and critics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rl_training.models.actor_critic import StochasticActorCritic, TwoCritics
from rl_training.models.networks import require_defaults


class MLPSACModel(TwoCritics, StochasticActorCritic):
    """Two critics; `options` as in `StochasticActorCritic`."""

    def __init__(self, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int], **options: Any) -> None:
        super().__init__(obs_dim, action_dim, hidden_sizes, 2, **options)


class MLPCrossQModel(MLPSACModel):
    """No target networks. Actor and critics, called as those of any model, normalise by running statistics."""

    has_targets = False

    def __init__(self, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int], **options: Any) -> None:
        require_defaults("crossq", options, "network", "residual_blocks", "layer_norm_epsilon")
        super().__init__(obs_dim, action_dim, hidden_sizes, **options | {"network": "batch_renorm"})


class MLPTQCModel(StochasticActorCritic):
    """N critics of M quantiles each; `options` as in `StochasticActorCritic`."""

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
        return self.q_values(obs, actions)
