"""The model of FQL: a one-step actor, the flow network that it imitates, and two critics."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from rl_training.models.actor_critic import TwoCritics
from rl_training.models.critics import Critics
from rl_training.models.networks import NetworkOptions, actor_options, build_network
from rl_training.models.steps import Step

_DRAWS = 32


class OneStepActor(nn.Module):
    """a = net(s, z), z ~ N(0, I), clipped to [-1, 1]: noise is an input of the network.

    The mode of its distribution is not known. Evaluation samples; `mode` is the action of z = 0.
    """

    stochastic = True
    evaluated_by_samples = True

    def __init__(
        self, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int], **options: Unpack[NetworkOptions]
    ) -> None:
        super().__init__()
        self.obs_dim, self.action_dim = obs_dim, action_dim
        self.net = build_network(obs_dim + action_dim, hidden_sizes, action_dim, **options)

    def forward(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Actions before clipping, `[B, A]`."""
        return self.net(torch.cat([obs, noise], dim=-1))

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        return self(obs, noise).clamp(-1.0, 1.0)

    def mode(self, obs: Tensor) -> Tensor:
        return self.sample(obs, obs.new_zeros((*obs.shape[:-1], self.action_dim)))

    def steps(self, sampled: bool) -> list[Step]:
        """Without noise, the first operation appends zeros."""
        first = Step("append_noise")
        if not sampled:
            width = self.obs_dim + self.action_dim
            first = Step.of("affine", weight=torch.eye(self.obs_dim, width), bias=torch.zeros(width))
        return [first, *self.net.steps(), Step.of("clip", low=-1.0, high=1.0)]


class MLPFQLModel(TwoCritics):
    """`flow` is the velocity v(s, x, t); as in the authors' code, LayerNorm is after the activation."""

    actor: OneStepActor

    def __init__(self, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int], **options: Any) -> None:
        options = dict[str, Any](init="xavier", norm_after_activation=True) | options
        super().__init__(obs_dim, action_dim, hidden_sizes, OneStepActor, partial(Critics, 2), **options)
        own = actor_options(self.network_options)
        self.flow = build_network(obs_dim + action_dim + 1, hidden_sizes, action_dim, **own)

    def flow_actions(self, obs: Tensor, noise: Tensor, steps: int) -> Tensor:
        """The clipped actions of the flow policy: `steps` of Euler's method from `noise [B, A]` at t = 0."""
        actions = noise
        for i in range(steps):
            times = torch.full_like(noise[:, :1], i / steps)
            actions = actions + self.flow(torch.cat([obs, actions, times], dim=-1)) / steps
        return actions.clamp(-1.0, 1.0)

    def state_values(self, obs: Tensor) -> Tensor:
        """The mean of Q over 32 actions of the policy per state; all calls use the same noise."""
        noise = torch.randn(_DRAWS, self.action_dim, generator=torch.Generator().manual_seed(0)).to(obs)
        drawn = [self.policy.sample(obs, one.expand(len(obs), -1)) for one in noise]
        return torch.stack([self.action_values(obs, actions) for actions in drawn]).mean(0)
