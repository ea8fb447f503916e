"""SAC: Soft Actor-Critic (Haarnoja et al. 2018, v2 with a learned temperature).

The target is the minimum of two critics at an action of the current policy; the actor maximises
min Q - alpha log pi. The critic loss is half the squared error, summed over both, as in the paper.
Departures: alpha is fixed unless `alpha: auto`; the temperature loss is in log alpha (as in Stable-Baselines3);
all losses use the parameters before the step (see `base`; the authors step the critics first).
Axes: critics `[2, B]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import ActorStartConfig, Terms
from rl_training.algorithms.losses import soft_actor_terms, squared_error
from rl_training.algorithms.soft import SoftActorCritic, SoftConfig
from rl_training.data.transitions import TransitionBatch
from rl_training.models.mlp_sac import MLPSACModel


class SACConfig(ActorStartConfig, SoftConfig):
    """The settings of the SAC family."""


def critic_terms(q: Tensor, target: Tensor) -> Terms:
    """`q [2, B]` against `target [B]`."""
    return {"critic_loss": 0.5 * squared_error(q, target), "target_q_mean": target.mean()}


def actor_terms(q: Tensor, logprobs: Tensor, alpha: Tensor | float) -> Terms:
    """`q [2, B]` at the policy's own actions."""
    return soft_actor_terms(q.amin(0), logprobs, alpha)


def sac_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors: `q1_values q2_values target_q_values sampled_logprobs sampled_q1
    sampled_q2 alpha`."""
    q = torch.stack([batch["q1_values"], batch["q2_values"]])
    sampled_q = torch.stack([batch["sampled_q1"], batch["sampled_q2"]])
    return critic_terms(q, batch["target_q_values"]) | actor_terms(
        sampled_q, batch["sampled_logprobs"], batch["alpha"]
    )


class SAC(SoftActorCritic):
    """Soft actor-critic on an `MLPSACModel`."""

    name = "sac"
    # With a fixed alpha and 1,000 steps the policy learns to stand still in HalfCheetah-v5.
    most_first_steps = 5_000
    Config = SACConfig
    Model = MLPSACModel

    def gradient_step(self, batch: TransitionBatch, variant: object) -> Terms:
        next_noise, noise = self.normal(2, *batch.actions.shape)  # for a' and for a
        objectives = {"critics": self.critic_loss} | ({"actor": self.actor_loss} if variant else {})
        return self.minimize((batch, next_noise, noise), objectives, tau=self.config.tau)

    def critic_loss(self, batch: TransitionBatch, next_noise: Tensor, noise: Tensor) -> tuple[Tensor, Terms]:
        q = self.model.critics(batch.obs, batch.actions)  # [2, B]
        terms = critic_terms(q, self.soft_target(batch, next_noise))
        return terms["critic_loss"], terms

    def actor_loss(self, batch: TransitionBatch, next_noise: Tensor, noise: Tensor) -> tuple[Tensor, Terms]:
        actions, logprobs = self.model.actor.sample_with_logprob(batch.obs, noise)
        q = self.model.critics(batch.obs, actions, frozen=True)  # [2, B]
        return self.soft_objective(actor_terms, q, logprobs)
