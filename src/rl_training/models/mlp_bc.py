"""The models of behaviour cloning: an actor and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from rl_training.errors import ConfigError
from rl_training.models.actor_critic import Model
from rl_training.models.mlp import Activation
from rl_training.models.policies import (
    OFFLINE_LOG_STD_BOUNDS,
    CategoricalActor,
    DeterministicActor,
    PolicyDistribution,
    normal_actor,
    require_distribution,
)


def _require_no_critics(critic_hidden_sizes: Sequence[int] | None, layer_norm: bool) -> None:
    if critic_hidden_sizes is not None:
        raise ConfigError("critic_hidden_sizes has no meaning for BC, which has no critics; use hidden_sizes")
    if layer_norm:
        raise ConfigError("layer_norm has no meaning for BC, which has no critics; leave it out")


class MLPBCModel(Model):
    """A deterministic actor, or with `stochastic` a Gaussian one."""

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
        layer_norm: bool = False,
        layer_norm_epsilon: float = 1e-6,
        activation: Activation = "relu",
        policy_distribution: PolicyDistribution = "tanh",
    ) -> None:
        _require_no_critics(critic_hidden_sizes, layer_norm)
        require_distribution(policy_distribution)
        shape = obs_dim, action_dim, hidden_sizes
        actor: nn.Module = (
            normal_actor(
                policy_distribution, *shape, log_std_bounds=log_std_bounds, init="torch", activation=activation
            )
            if stochastic
            else DeterministicActor(*shape, activation=activation)
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
        layer_norm: bool = False,
        layer_norm_epsilon: float = 1e-6,
        activation: Activation = "relu",
    ) -> None:
        _require_no_critics(critic_hidden_sizes, layer_norm)
        actor = CategoricalActor(obs_dim, num_actions, hidden_sizes, activation=activation)
        super().__init__(obs_dim, actor, normalize_observations=normalize_observations)
