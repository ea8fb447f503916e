"""BC: behaviour cloning (Pomerleau 1989), the floor every offline algorithm has to beat.

The actor alone is fitted to the data's actions: by mean squared error over batch and action dimensions (CORL and
the TD3+BC paper), or with `stochastic` by log-likelihood: of a tanh-Gaussian, whose data actions are clipped to
±(1 - 1e-6), or with `policy_distribution: gaussian` of a Gaussian around a squashed mean. Either log-std stays in
[-5, 2] so that a deterministic data set cannot drive it to -infinity.
10 %-BC is this learner on the data set's `top_fraction`.
Departures: none. `gamma` is accepted, as everywhere, and unused.
Axes: actions `[B, A]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rl_training.algorithms.base import Learner, LearnerConfig, Terms
from rl_training.algorithms.losses import action_error
from rl_training.data.transitions import TransitionBatch
from rl_training.models.mlp_bc import MLPBCModel
from rl_training.models.policies import PolicyDistribution


class BCConfig(LearnerConfig):
    """Deterministic unless asked otherwise."""

    stochastic: bool = False
    """clone by log-likelihood instead of squared error"""
    policy_distribution: PolicyDistribution = "tanh"
    """of `stochastic`: a squashed Gaussian, or a plain one around a squashed mean, whose samples are clipped"""


def error_terms(policy_actions: Tensor, actions: Tensor) -> Terms:
    """The deterministic form, both `[B, A]`."""
    return {"actor_loss": action_error(policy_actions, actions)}


def likelihood_terms(logprobs: Tensor) -> Terms:
    """The stochastic form: `logprobs [B]` of the data's actions."""
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

    def __init__(self, *, model: MLPBCModel, **hyperparameters: Any) -> None:
        super().__init__(model=model, **hyperparameters)
        self.optimizers = {"actor": self.adam(model.actor)}

    @classmethod
    def model_options(cls, config: Any) -> dict[str, Any]:
        return {"stochastic": config.stochastic, "policy_distribution": config.policy_distribution}

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
