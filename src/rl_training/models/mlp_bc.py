"""The models of behaviour cloning: an actor alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from torch import nn

from rl_training.errors import ConfigError
from rl_training.models.actor_critic import Model
from rl_training.models.networks import NetworkOptions, actor_options
from rl_training.models.policies import (
    OFFLINE_LOG_STD_BOUNDS,
    CategoricalActor,
    DeterministicActor,
    PolicyDistribution,
    normal_actor,
    require_distribution,
)


def _require_no_critics(critic_hidden_sizes: Sequence[int] | None, options: NetworkOptions) -> None:
    if critic_hidden_sizes is not None:
        raise ConfigError("critic_hidden_sizes has no meaning for BC, which has no critics; use hidden_sizes")
    if options.get("layer_norm"):
        raise ConfigError("layer_norm has no meaning for BC, which has no critics; leave it out")


class MLPBCModel(Model):
    """A deterministic actor, or a Gaussian actor if `stochastic`."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        *,
        stochastic: bool = False,
        critic_hidden_sizes: Sequence[int] | None = None,
        normalize_observations: bool = False,
        log_std_bounds: tuple[float, float] = OFFLINE_LOG_STD_BOUNDS,
        policy_distribution: PolicyDistribution = "tanh",
        **options: Unpack[NetworkOptions],
    ) -> None:
        _require_no_critics(critic_hidden_sizes, options)
        require_distribution(policy_distribution)
        shape, options = (obs_dim, action_dim, hidden_sizes), NetworkOptions(init="torch") | actor_options(options)
        actor: nn.Module = (
            normal_actor(policy_distribution, *shape, log_std_bounds=log_std_bounds, **options)
            if stochastic
            else DeterministicActor(*shape, **options)
        )
        super().__init__(obs_dim, actor, normalize_observations=normalize_observations)
        self.action_dim = action_dim
        self.stochastic = stochastic
        self.policy_distribution = policy_distribution


class MLPDiscreteBCModel(Model):
    """A categorical actor."""

    action_dim = 1  # columns of a discrete action

    def __init__(
        self,
        obs_dim: int,
        num_actions: int,
        hidden_sizes: Sequence[int],
        *,
        critic_hidden_sizes: Sequence[int] | None = None,
        normalize_observations: bool = False,
        **options: Unpack[NetworkOptions],
    ) -> None:
        _require_no_critics(critic_hidden_sizes, options)
        actor = CategoricalActor(obs_dim, num_actions, hidden_sizes, **actor_options(options))
        super().__init__(obs_dim, actor, normalize_observations=normalize_observations)
