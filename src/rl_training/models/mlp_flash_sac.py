"""The model of FlashSAC: a tanh-Gaussian actor and two categorical critics with batch normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor

from rl_training.models.actor_critic import ActorCriticModel
from rl_training.models.critics import Critics
from rl_training.models.flash import EnsembleFlash, Flash, init_unit
from rl_training.models.mlp import Members
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.models.networks import NetworkOptions, require_defaults
from rl_training.models.policies import TanhGaussianActor
from rl_training.models.steps import Step

LOG_STD_BOUNDS = (-10.0, 2.0)


class FlashActor(TanhGaussianActor):
    """A tanh-Gaussian actor whose log std is mapped into its bounds by tanh instead of clipped to them."""

    net: Flash

    def __init__(
        self, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int], **options: Unpack[NetworkOptions]
    ) -> None:
        super().__init__(obs_dim, action_dim, hidden_sizes, log_std_bounds=LOG_STD_BOUNDS, **options)
        for half in self.net.head.weight.data.chunk(2, dim=-1):
            init_unit(half)  # mean and log std are two matrices

    def parameters_of(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = outputs.chunk(2, dim=-1)
        low, high = self.log_std_bounds
        return mean, low + 0.5 * (high - low) * (1.0 + torch.tanh(raw))

    def steps(self, sampled: bool) -> list[Step]:
        steps = super().steps(sampled)
        if sampled:
            low, high = self.log_std_bounds
            steps.insert(-2, Step.of("tanh_log_std", low=low, high=high))
        return steps


class FlashCritics(Critics):
    """Two networks with a distribution over `bins [M]`, evenly spaced in ±`limit`; a call returns the mean."""

    net: EnsembleFlash
    bins: Tensor

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        *,
        num_bins: int,
        limit: float,
        **options: Unpack[NetworkOptions],
    ) -> None:
        super().__init__(2, obs_dim, action_dim, hidden_sizes, quantiles=num_bins, **options)
        self.register_buffer("bins", torch.linspace(-limit, limit, num_bins), persistent=False)

    def forward(self, obs: Tensor, actions: Tensor, frozen: bool = False, members: Members = None) -> Tensor:
        return (super().forward(obs, actions, frozen, members).softmax(-1) * self.bins).sum(-1)


class MLPFlashSACModel(MLPSACModel):
    """Actor and critics, called as those of any model, normalise by running statistics."""

    actor: FlashActor
    critics: FlashCritics
    target_critics: FlashCritics

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        *,
        num_bins: int = 101,
        value_limit: float = 5.0,
        **options: Any,
    ) -> None:
        require_defaults("flash_sac", options, "network", "layer_norm_epsilon")
        critics = partial(FlashCritics, num_bins=num_bins, limit=value_limit)
        shape, options = (obs_dim, action_dim, hidden_sizes), options | {"network": "flash"}
        ActorCriticModel.__init__(self, *shape, FlashActor, critics, **options)
        self.num_bins, self.value_limit, self.policy_distribution = num_bins, value_limit, "tanh"
