"""The models of IQL: an actor, a state-value network, and two critics.

For continuous actions the actor is a Gaussian that is not squashed; for discrete ones actor and critics have one
output per action.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn

from rl_training.models.actor_critic import ActorCriticModel
from rl_training.models.critics import ChoiceCritics, Critics
from rl_training.models.mlp import MLP, Activation, Init, MLPOptions
from rl_training.models.policies import LOG_2PI, OFFLINE_LOG_STD_BOUNDS, CategoricalActor
from rl_training.models.steps import Step, as_array


class GaussianActor(nn.Module):
    """a ~ N(tanh(net(s)), std^2) with one learned std per action dimension, the same in every state.

    Nothing is squashed, so the log-density is finite at ±1 and data actions need no clipping; only what acts is
    clipped to the bounds.
    """

    stochastic = True

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        *,
        log_std_bounds: tuple[float, float] = OFFLINE_LOG_STD_BOUNDS,
        **options: Unpack[MLPOptions],
    ) -> None:
        super().__init__()
        self.net = MLP(obs_dim, hidden_sizes, action_dim, **MLPOptions(init="orthogonal") | options)
        self.log_std = nn.Parameter(torch.zeros(action_dim))
        self.log_std_bounds = log_std_bounds

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean `[B, A]` and log standard deviation `[A]`."""
        return torch.tanh(self.net(obs)), self.log_std.clamp(*self.log_std_bounds)

    def mode(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.net(obs))

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = self(obs)
        action: Tensor = mean + log_std.exp() * noise
        return action.clamp(-1.0, 1.0)

    def log_prob(self, obs: Tensor, actions: Tensor) -> Tensor:
        """log pi(a|s) of given actions, `[B]`."""
        mean, log_std = self(obs)
        z = (actions - mean) * torch.exp(-log_std)
        log_density: Tensor = -0.5 * (z * z + LOG_2PI) - log_std
        return log_density.sum(-1)

    def steps(self, sampled: bool) -> list[Step]:
        mean = [*self.net.steps(), Step("tanh")]
        if not sampled:
            return mean
        std = as_array(self.log_std.clamp(*self.log_std_bounds).exp())
        low, high = (as_array(torch.tensor(bound)) for bound in (-1.0, 1.0))
        return [*mean, Step("add_noise", {"scale": std}), Step("clip", {"low": low, "high": high})]


class ValueNetwork(nn.Module):
    """V(s), `[B]`."""

    def __init__(self, obs_dim: int, hidden_sizes: Sequence[int], **options: Unpack[MLPOptions]) -> None:
        super().__init__()
        self.net = MLP(obs_dim, hidden_sizes, 1, **MLPOptions(init="orthogonal") | options)

    def forward(self, obs: Tensor) -> Tensor:
        value: Tensor = self.net(obs)
        return value.squeeze(-1)


class MLPIQLModel(ActorCriticModel):
    """Actor, value and two critics with their targets; `critic_hidden_sizes` shapes critics and value."""

    Actor: ClassVar[type[GaussianActor | CategoricalActor]] = GaussianActor
    QFunctions: ClassVar[type[Critics | ChoiceCritics]] = Critics
    actor: GaussianActor | CategoricalActor

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        *,
        critic_hidden_sizes: Sequence[int] | None = None,
        normalize_observations: bool = False,
        layer_norm: bool = False,
        layer_norm_epsilon: float = 1e-6,
        activation: Activation = "relu",
        init: Init = "orthogonal",
    ) -> None:
        sizes = hidden_sizes if critic_hidden_sizes is None else critic_hidden_sizes
        values = MLPOptions(
            layer_norm=layer_norm, layer_norm_epsilon=layer_norm_epsilon, activation=activation, init=init
        )
        super().__init__(
            obs_dim,
            self.Actor(obs_dim, action_dim, hidden_sizes, activation=activation, init=init),
            self.QFunctions(2, obs_dim, action_dim, sizes, **values),
            normalize_observations=normalize_observations,
        )
        self.value = ValueNetwork(obs_dim, sizes, **values)

    def q_values(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Q_1(s, a) and Q_2(s, a), each `[B]`."""
        q = self.all_q_values(obs, actions)  # [B, 2]
        return q[:, 0], q[:, 1]

    def state_values(self, obs: Tensor) -> Tensor:
        """Of the network that learns it, `[1, B]`."""
        value: Tensor = self.value(self.normalizer(obs))
        return value[None]


class MLPDiscreteIQLModel(MLPIQLModel):
    """The same for discrete actions, whose number takes the place of `action_dim`."""

    Actor = CategoricalActor
    QFunctions = ChoiceCritics
