"""The models of IQL: an actor, a state-value network, and two critics.

For continuous actions the actor is a Gaussian around a tanh mean, with one std for all states, or a tanh-Gaussian.
For discrete actions, actor and critics have one output per action.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Unpack

from torch import Tensor, nn

from rl_training.models.actor_critic import TwoCritics
from rl_training.models.critics import ChoiceCritics, Critics
from rl_training.models.networks import NetworkOptions, build_network
from rl_training.models.policies import (
    OFFLINE_LOG_STD_BOUNDS,
    CategoricalActor,
    GaussianActor,
    PolicyDistribution,
    TanhGaussianActor,
    require_distribution,
)


class ValueNetwork(nn.Module):
    """V(s), `[B]`."""

    def __init__(self, obs_dim: int, hidden_sizes: Sequence[int], **options: Unpack[NetworkOptions]) -> None:
        super().__init__()
        self.net = build_network(obs_dim, hidden_sizes, 1, **NetworkOptions(init="orthogonal") | options)

    def forward(self, obs: Tensor) -> Tensor:
        return self.net(obs).squeeze(-1)


class MLPIQLModel(TwoCritics):
    """Actor, value network and two critics with targets; `critic_hidden_sizes` applies to critics and value."""

    actor: GaussianActor | TanhGaussianActor | CategoricalActor
    discrete: ClassVar[bool] = False

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        *,
        policy_distribution: PolicyDistribution = "gaussian",
        **options: Any,
    ) -> None:
        require_distribution(policy_distribution)
        kind = TanhGaussianActor if policy_distribution == "tanh" else GaussianActor
        actor = CategoricalActor if self.discrete else partial(kind, log_std_bounds=OFFLINE_LOG_STD_BOUNDS)
        critics = partial(ChoiceCritics if self.discrete else Critics, 2)
        super().__init__(obs_dim, action_dim, hidden_sizes, actor, critics, **{"init": "orthogonal"} | options)
        self.value = ValueNetwork(obs_dim, self.critic_sizes, **self.network_options)
        self.policy_distribution = policy_distribution

    def state_values(self, obs: Tensor) -> Tensor:
        """V(s) of the value network, `[1, B]`."""
        return self.value(self.normalizer(obs))[None]


class MLPDiscreteIQLModel(MLPIQLModel):
    """`MLPIQLModel` for discrete actions; `action_dim` is their number, and `policy_distribution` has no effect."""

    discrete = True
