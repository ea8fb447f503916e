"""AWAC: Advantage Weighted Actor-Critic (Nair et al. 2020).

Critics as SAC's without entropy: the minimum of both targets at an action of the current policy. The actor does
not climb Q, it clones the data with weights that grow with the advantage A = min Q(s, a) - min Q(s, a~), one
a~ ~ pi. `weighting: exp` takes min(exp(A / lambda), `max_advantage_weight`), as CORL; `softmax` takes
softmax(A / lambda) over the batch times B, as the authors' code, and needs no cap.
Departures: the policy is our tanh-Gaussian with a state-dependent log-std in [-5, 2] (the authors squash the mean
only), data actions clipped to ±(1 - 1e-6); no weight decay; PyTorch's initialisation.
Axes: critics `[2, B]`, weights `[B]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from rl_training.algorithms.base import TargetConfig, Terms
from rl_training.algorithms.cloning import Outputs, WeightedCloner, cloning_loss
from rl_training.algorithms.losses import clipped_exponential, cloning_terms
from rl_training.data.transitions import TransitionBatch
from rl_training.models.policies import squashed_action, squashed_log_prob
from rl_training.settings import PositiveFloat


class AWACConfig(TargetConfig):
    """`awac_lambda` divides the advantage; `max_advantage_weight` caps the weights of `exp` only."""

    awac_lambda: PositiveFloat = 1.0
    """divisor of the advantage in the cloning weights"""
    max_advantage_weight: PositiveFloat = 100.0
    """cap of the cloning weights (`weighting: exp`)"""
    weighting: Literal["exp", "softmax"] = "exp"
    """clipped exponential, or softmax over the batch"""


def advantage_weights(advantages: Tensor, config: AWACConfig) -> Tensor:
    """What each transition of the batch counts in the actor's loss: `[B] -> [B]`."""
    scaled = advantages / config.awac_lambda
    if config.weighting == "softmax":
        return scaled.softmax(-1) * scaled.shape[-1]
    return clipped_exponential(scaled, config.max_advantage_weight)


def awac_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors, see `cloning_loss`."""
    return cloning_loss(batch)


class AWAC(WeightedCloner):
    """Advantage-weighted actor-critic on an `MLPSACModel`."""

    name = "awac"
    Config = AWACConfig

    def gradient_step(self, batch: TransitionBatch, phase: object) -> Terms:
        noise = self.normal(2, *batch.actions.shape)  # for a' and for a~
        return self.minimize(
            (self.outputs(batch, noise),),
            {"critics": self.critic_loss, "actor": self.actor_loss},
            {self.model.target_critics: self.model.critics},
            tau=self.config.tau,
        )

    def policy(self, batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """log pi(a|s) of the data's actions and min Q(s, a~), each `[B]`."""
        mean, log_std = self.model.actor(batch.obs)
        with torch.no_grad():
            actions = squashed_action(mean, log_std, noise[1])
            q = self.model.critics(batch.obs, actions).amin(0)
        return squashed_log_prob(mean, log_std, batch.actions), q

    def actor_loss(self, outputs: Outputs) -> tuple[Tensor, Terms]:
        advantages = outputs.q.detach().amin(0) - outputs.policy_q
        terms = cloning_terms(outputs.logprobs, advantages, advantage_weights(advantages, self.config))
        return terms["actor_loss"], terms
