"""The model of FQE: a Q network and its target copy, with normalised values.

An output z of the networks is a value of `offset + scale z`; `low` and `high` bound the values. Unlike normalised
rewards, this is exact also if episodes terminate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from rl_training.models.actor_critic import batched
from rl_training.models.critics import ChoiceCritics, Critics
from rl_training.models.mlp import frozen_copy
from rl_training.models.networks import NetworkOptions
from rl_training.models.policies import Normalizer


class MLPFQEModel(nn.Module):
    """Q of one policy; `num_actions` if actions are discrete, other `options` as in `EnsembleMLP`."""

    offset: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        *,
        num_actions: int = 0,
        critic_hidden_sizes: Sequence[int] | None = None,
        normalize_observations: bool = False,
        **options: Unpack[NetworkOptions],
    ) -> None:
        super().__init__()
        self.obs_dim, self.action_dim, self.num_actions = obs_dim, action_dim, num_actions
        self.normalizer = Normalizer(obs_dim, enabled=normalize_observations)
        sizes = hidden_sizes if critic_hidden_sizes is None else critic_hidden_sizes
        self.critic = (
            ChoiceCritics(1, obs_dim, num_actions, sizes, **options)
            if num_actions
            else Critics(1, obs_dim, action_dim, sizes, **options)
        )
        self.target_critic = frozen_copy(self.critic)
        self.register_buffer("offset", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("low", torch.full((), -torch.inf))
        self.register_buffer("high", torch.full((), torch.inf))

    def set_units(self, offset: float, scale: float, low: float, high: float) -> None:
        """Set mean and scale of the values, and their bounds."""
        for name, value in (("offset", offset), ("scale", scale), ("low", low), ("high", high)):
            getattr(self, name).fill_(value)

    def targets(self) -> dict[nn.Module, nn.Module]:
        """Maps the target network to its source."""
        return {self.target_critic: self.critic}

    @property
    def device(self) -> torch.device:
        return self.scale.device

    def q_values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Q(s, a) in the units of the rewards, `[B]`, clipped to the bounds."""
        obs = batched(obs)
        actions = actions if self.num_actions else batched(actions)
        return self._in_units(self.critic(self.normalizer(obs), actions)[0])

    def all_q_values(self, obs: Tensor) -> Tensor:
        """Q(s, ·) of every discrete action, `[B, K]`."""
        return self._in_units(self.critic.net(self.normalizer(batched(obs)))[0])

    def _in_units(self, q: Tensor) -> Tensor:
        return (self.offset + self.scale * q).clamp(self.low, self.high)
