"""BC: behaviour cloning (Pomerleau 1989), the baseline of offline algorithms.

The actor is fitted to the data's actions by mean squared error over batch and action dimensions (as in CORL and the
TD3+BC paper), or with `stochastic` by log-likelihood. The policy is then a tanh-Gaussian, with data actions clipped
to ±(1 - 1e-6), or with `policy_distribution: gaussian` a Gaussian around a tanh mean. The log-std stays in [-5, 2],
so that a deterministic data set cannot drive it to -infinity. 10 %-BC is this learner with `top_fraction: 0.1`.
Departures: none. Rewards and `gamma` have no effect, except that `top_fraction` compares returns.
Axes: actions `[B, A]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from torch import Tensor

from rl_training.algorithms.base import Learner, LearnerConfig, Terms
from rl_training.algorithms.losses import action_error
from rl_training.data.transitions import TransitionBatch
from rl_training.models.mlp_bc import MLPBCModel
from rl_training.models.policies import PolicyDistribution
from rl_training.settings import OnlyWith


class BCConfig(LearnerConfig):
    """A deterministic policy by default."""

    stochastic: bool = False
    """clone by log-likelihood instead of squared error"""
    policy_distribution: Annotated[PolicyDistribution, OnlyWith("stochastic", True)] = "tanh"
    """with `stochastic`: a tanh-squashed Gaussian, or a Gaussian around a tanh mean, with clipped samples"""


def error_terms(policy_actions: Tensor, actions: Tensor) -> Terms:
    """Terms of a deterministic policy; both arguments are `[B, A]`."""
    return {"actor_loss": action_error(policy_actions, actions)}


def likelihood_terms(logprobs: Tensor) -> Terms:
    """Terms of a stochastic policy: `logprobs [B]` of the data's actions."""
    return {"actor_loss": -logprobs.mean(), "behavior_logprob_mean": logprobs.mean()}


def bc_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors: `behavior_logprobs` (stochastic), else `policy_actions actions`."""
    if "behavior_logprobs" in batch:
        return likelihood_terms(batch["behavior_logprobs"])
    return error_terms(batch["policy_actions"], batch["actions"])


class BC(Learner):
    """Behaviour cloning on an `MLPBCModel`."""

    name = "bc"
    Config = BCConfig
    Model = MLPBCModel
    fixed_by_model = ("stochastic", "policy_distribution")
    optimized = ("actor",)
    bootstraps = False
    ignored = ("gamma", "reward_scale", "reward_shift", "reward_range_scaling")

    def gradient_step(self, batch: TransitionBatch, variant: object) -> Terms:
        return self.minimize((batch,), {"actor": self.actor_loss})

    def actor_loss(self, batch: TransitionBatch) -> tuple[Tensor, Terms]:
        actor = self.model.actor
        terms = (
            likelihood_terms(actor.log_prob(batch.obs, batch.actions))
            if self.config.stochastic
            else error_terms(actor(batch.obs), batch.actions)
        )
        return terms["actor_loss"], terms
