"""The model of CrossQ: a tanh-Gaussian actor and two critics with batch renormalisation, and no target networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rl_training.errors import ConfigError
from rl_training.models.batch_renorm import EnsembleRenormMLP, RenormMLP
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.models.policies import ActionSample, TanhGaussianActor, squashed_sample


class MLPCrossQModel(MLPSACModel):
    """Its parts, called as those of any model, normalise by running statistics.

    The methods `…_by_batch` normalise by the batch, and return new values of the network's `statistics`.
    """

    has_targets = False

    def __init__(
        self, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int], *, network: str = "mlp", **options: Any
    ) -> None:
        if network != "mlp":
            raise ConfigError(f"network must be 'mlp' for crossq, which has its own layers, got {network!r}")
        super().__init__(obs_dim, action_dim, hidden_sizes, network="batch_renorm", **options)

    @property
    def actor_net(self) -> RenormMLP:
        """The network of the actor."""
        assert isinstance(self.actor.net, RenormMLP)
        return self.actor.net

    @property
    def critic_net(self) -> EnsembleRenormMLP:
        """The networks of the critics."""
        assert isinstance(self.critics.net, EnsembleRenormMLP)
        return self.critics.net

    def sample_by_batch(self, obs: Tensor, noise: Tensor) -> tuple[ActionSample, list[Tensor]]:
        """Reparameterised actions for normalised observations."""
        assert isinstance(self.actor, TanhGaussianActor)
        outputs, statistics = self.actor_net.by_batch(obs)
        return squashed_sample(*self.actor.parameters_of(outputs), noise), statistics

    def q_by_batch(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, list[Tensor]]:
        """`[2, B]` of normalised observations."""
        outputs, statistics = self.critic_net.by_batch(torch.cat([obs, actions], dim=-1))
        return outputs.squeeze(-1), statistics
