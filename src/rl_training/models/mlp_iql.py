"""The models of IQL: an actor, a state-value network, and two critics.

For continuous actions the actor is a Gaussian around a tanh mean, with one std for all states, or a tanh-Gaussian.
For discrete actions, actor and critics have one output per action.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Unpack

from torch import Tensor, nn

from rl_training.models.actor_critic import TwoCritics
from rl_training.models.critics import ChoiceCritics, Critics
from rl_training.models.networks import NetworkOptions, actor_options, build_network
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

    QFunctions: ClassVar[type[Critics | ChoiceCritics]] = Critics
    actor: GaussianActor | TanhGaussianActor | CategoricalActor

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        *,
        critic_hidden_sizes: Sequence[int] | None = None,
        normalize_observations: bool = False,
        policy_distribution: PolicyDistribution = "gaussian",
        **options: Unpack[NetworkOptions],
    ) -> None:
        require_distribution(policy_distribution)
        sizes = hidden_sizes if critic_hidden_sizes is None else critic_hidden_sizes
        options = NetworkOptions(init="orthogonal") | options
        super().__init__(
            obs_dim,
            self._actor(policy_distribution, obs_dim, action_dim, hidden_sizes, **actor_options(options)),
            self.QFunctions(2, obs_dim, action_dim, sizes, **options),
            normalize_observations=normalize_observations,
        )
        self.value = ValueNetwork(obs_dim, sizes, **options)
        self.policy_distribution = policy_distribution

    @staticmethod
    def _actor(
        distribution: PolicyDistribution,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        **options: Unpack[NetworkOptions],
    ) -> GaussianActor | TanhGaussianActor | CategoricalActor:
        kind = TanhGaussianActor if distribution == "tanh" else GaussianActor
        return kind(obs_dim, action_dim, hidden_sizes, log_std_bounds=OFFLINE_LOG_STD_BOUNDS, **options)

    def state_values(self, obs: Tensor) -> Tensor:
        """V(s) of the value network, `[1, B]`."""
        return self.value(self.normalizer(obs))[None]


class MLPDiscreteIQLModel(MLPIQLModel):
    """`MLPIQLModel` for discrete actions; `action_dim` is their number, and `policy_distribution` has no effect."""

    QFunctions = ChoiceCritics

    @staticmethod
    def _actor(
        distribution: PolicyDistribution,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        **options: Unpack[NetworkOptions],
    ) -> CategoricalActor:
        return CategoricalActor(obs_dim, action_dim, hidden_sizes, **options)
