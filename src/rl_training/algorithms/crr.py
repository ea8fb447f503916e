"""CRR: Critic Regularized Regression (Wang et al. 2020).

Like AWAC a weighted cloning of the data, with another filter: the advantage is Q(s, a) minus the mean (or the
maximum, `advantage_type: max`) of Q over `n_action_samples` policy actions, Q being the mean of both online
critics; the weight is 1[A > 0] (`weight_type: binary`) or min(exp(A / beta), `max_weight`) (`exp`). The critics'
target is the minimum of the target critics at an action of the target policy.
Departures: two scalar critics with soft targets (the authors: one distributional critic, hard copies every 100
updates; d3rlpy's reproduction uses soft ones); log-std in [-5, 2], data actions clipped to ±(1 - 1e-6); acting is
by the policy's mode, without the critic-weighted resampling of the paper.
Axes: critics `[2, B]`, at m actions per state `[2, m, B]`, weights `[B]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import TargetConfig, Terms
from rl_training.algorithms.cloning import Outputs, WeightedCloner, cloning_loss
from rl_training.algorithms.losses import clipped_exponential, cloning_terms
from rl_training.data.transitions import TransitionBatch
from rl_training.models.mlp import frozen_copy
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.models.policies import squashed_action, squashed_log_prob
from rl_training.settings import PositiveFloat, PositiveInt


class CRRConfig(TargetConfig):
    """`beta` divides the advantage; `beta` and `max_weight` concern `weight_type: exp` only."""

    beta: PositiveFloat = 1.0
    """divisor of the advantage (`weight_type: exp`)"""
    n_action_samples: PositiveInt = 4
    """policy actions the advantage is measured against"""
    max_weight: PositiveFloat = 20.0
    """cap of the cloning weights (`weight_type: exp`)"""
    advantage_type: Literal["mean", "max"] = "mean"
    """against their mean or their maximum"""
    weight_type: Literal["binary", "exp"] = "exp"
    """clone where the advantage is positive, or with exponential weights"""


def advantage(q_data: Tensor, q_policy: Tensor, advantage_type: str) -> Tensor:
    """`q_data [B]` above the mean or maximum of `q_policy [m, B]`."""
    return q_data - (q_policy.amax(0) if advantage_type == "max" else q_policy.mean(0))


def advantage_weights(advantages: Tensor, config: CRRConfig) -> Tensor:
    """What each transition counts in the actor's loss: `[B] -> [B]`."""
    if config.weight_type == "binary":
        return (advantages > 0).to(advantages.dtype)
    return clipped_exponential(advantages / config.beta, config.max_weight)


def crr_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors, see `cloning_loss`."""
    return cloning_loss(batch)


class CRR(WeightedCloner):
    """Critic-regularised regression on an `MLPSACModel`; the target policy is the learner's own."""

    name = "crr"
    Config = CRRConfig

    def __init__(self, *, model: MLPSACModel, **hyperparameters: Any) -> None:
        super().__init__(model=model, **hyperparameters)
        self.target_actor = frozen_copy(model.actor)

    def modules(self) -> dict[str, nn.Module]:
        return {"model": self.model, "target_actor": self.target_actor}

    def gradient_step(self, batch: TransitionBatch, phase: object) -> Terms:
        noise = self.normal(1 + self.config.n_action_samples, *batch.actions.shape)  # for a', then for a_j
        return self.minimize(
            (self.outputs(batch, noise),),
            {"critics": self.critic_loss, "actor": self.actor_loss},
            {self.model.target_critics: self.model.critics, self.target_actor: self.model.actor},
            tau=self.config.tau,
        )

    def policy(self, batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """log pi(a|s) of the data's actions, `[B]`, and the mean Q(s, a_j), `[m, B]`."""
        mean, log_std = self.model.actor(batch.obs)
        with torch.no_grad():
            samples = squashed_action(mean, log_std, noise[1:])  # [m, B, A]
            q = self.model.critics.over_actions(batch.obs, samples).mean(0)
        return squashed_log_prob(mean, log_std, batch.actions), q

    def actor_loss(self, outputs: Outputs) -> tuple[Tensor, Terms]:
        advantages = advantage(outputs.q.detach().mean(0), outputs.policy_q, self.config.advantage_type)
        terms = cloning_terms(outputs.logprobs, advantages, advantage_weights(advantages, self.config))
        return terms["actor_loss"], terms
