"""Base classes of the actor-critic models: an actor, N critics, their targets, and the observation normaliser.

Learners use the parts (`model.actor`, `model.critics`, …) on normalised observations; the public methods take
raw ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from rl_training.models.critics import ChoiceCritics, Critics
from rl_training.models.mlp import EnsembleMLP, frozen_copy
from rl_training.models.networks import NetworkOptions, actor_options
from rl_training.models.policies import (
    LOG_STD_BOUNDS,
    ActionSample,
    ChoiceActor,
    GaussianActor,
    Normalizer,
    Policy,
    PolicyDistribution,
    TanhGaussianActor,
    normal_actor,
)


def batched(tensor: Tensor) -> Tensor:
    """Add a batch axis to a single vector."""
    return tensor if tensor.dim() > 1 else tensor[None]


class Model(nn.Module):
    """Base of all models. All networks receive observations that `normalizer` has normalised.

    If `has_values` is true, `action_values` and `state_values` are defined, for raw observations.
    """

    has_values: ClassVar[bool] = False

    def __init__(self, obs_dim: int, actor: nn.Module, *, normalize_observations: bool) -> None:
        super().__init__()
        self.obs_dim = obs_dim
        self.normalizer = Normalizer(obs_dim, enabled=normalize_observations)
        self.actor = actor

    @property
    def policy(self) -> Policy:
        """The policy; it shares this model's actor and normaliser."""
        return Policy(self.normalizer, self.actor)

    @property
    def num_actions(self) -> int:
        """The number of discrete actions; 0 if actions are continuous."""
        return self.actor.num_actions if isinstance(self.actor, ChoiceActor) else 0

    def targets(self) -> dict[nn.Module, nn.Module]:
        """Maps each target network to its source."""
        return {}

    def action_values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Q(s, a) of every critic, `[N, B]`."""
        raise NotImplementedError

    def state_values(self, obs: Tensor) -> Tensor:
        """V(s) of every value network, `[N, B]`; by default Q at the policy's deterministic action."""
        return self.action_values(obs, self.policy.mode(obs))

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


class ActorCriticModel(Model):
    """An actor with N critics and, unless `has_targets` is false, their target copies.

    `critic_hidden_sizes` are those of the critics, by default `hidden_sizes`; other `options` are of all networks.
    """

    has_values = True
    has_targets: ClassVar[bool] = True

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        make_actor: Callable[..., nn.Module],
        make_critics: Callable[..., Critics | ChoiceCritics],
        *,
        critic_hidden_sizes: Sequence[int] | None = None,
        normalize_observations: bool = False,
        **options: Unpack[NetworkOptions],
    ) -> None:
        actor = make_actor(obs_dim, action_dim, hidden_sizes, **actor_options(options))
        super().__init__(obs_dim, actor, normalize_observations=normalize_observations)
        self.network_options = options
        self.critic_sizes = hidden_sizes if critic_hidden_sizes is None else critic_hidden_sizes
        self.critics = make_critics(obs_dim, action_dim, self.critic_sizes, **options)
        if self.has_targets:
            self.target_critics = frozen_copy(self.critics)

    def targets(self) -> dict[nn.Module, nn.Module]:
        return {self.target_critics: self.critics} if self.has_targets else {}

    @property
    def layer_norm(self) -> bool:
        """Whether the critics have the LayerNorm of the setting `layer_norm`."""
        return isinstance(self.critics.net, EnsembleMLP) and len(self.critics.net.norms) > 0

    @property
    def num_critics(self) -> int:
        return self.critics.num_critics

    @property
    def action_dim(self) -> int:
        return self.critics.action_dim

    def q_values(self, obs: Tensor, actions: Tensor) -> Any:
        """Q_i(s, a), `[B, N]` (`[B, N, M]` for quantile critics); one unbatched pair gives B = 1."""
        if obs.dim() == 1:
            obs, actions = obs[None], actions[None]
        q = self.critics(self.normalizer(obs), actions)
        return q.transpose(0, 1)

    def action_values(self, obs: Tensor, actions: Tensor) -> Tensor:
        q = self.critics(self.normalizer(obs), actions)
        return q if q.dim() == 2 else q.mean(-1)  # the mean of the quantiles is the expected return


class TwoCritics(ActorCriticModel):
    """A model with two critics."""

    def q_values(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Q_1(s, a) and Q_2(s, a), each `[B]`."""
        q = super().q_values(obs, actions)  # [B, 2]
        return q[:, 0], q[:, 1]


class StochasticActorCritic(ActorCriticModel):
    """A Gaussian actor with N critics: tanh-Gaussian for the SAC family, either distribution for AWAC and CRR."""

    actor: TanhGaussianActor | GaussianActor

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        num_critics: int,
        *,
        critic_quantiles: int | None = None,
        log_std_bounds: tuple[float, float] = LOG_STD_BOUNDS,
        policy_distribution: PolicyDistribution = "tanh",
        **options: Any,
    ) -> None:
        super().__init__(
            obs_dim,
            action_dim,
            hidden_sizes,
            partial(normal_actor, policy_distribution, log_std_bounds=log_std_bounds),
            partial(Critics, num_critics, quantiles=critic_quantiles),
            **{"init": "torch"} | options,
        )
        self.policy_distribution = policy_distribution

    def sample_actions(self, obs: Tensor) -> ActionSample:
        """Actions drawn with torch's global generator, and their log-probabilities."""
        obs = self.normalizer(batched(obs))
        noise = torch.randn(len(obs), self.action_dim, device=obs.device)
        return self.actor.sample_with_logprob(obs, noise)

    def action_logprobs(self, obs: Tensor, actions: Tensor) -> Tensor:
        """log pi(a|s), `[B]`, finite for actions at ±1."""
        obs, actions = batched(obs), batched(actions)
        return self.actor.log_prob(self.normalizer(obs), actions)
