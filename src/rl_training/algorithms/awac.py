"""AWAC: Advantage Weighted Actor-Critic (Nair et al. 2020).

Critics as SAC's without entropy: the minimum of both targets at an action of the current policy. The actor does
not climb Q, it clones the data with weights that grow with the advantage A = min Q(s, a) - min Q(s, a~), one
a~ ~ pi. `weighting: exp` takes min(exp(A / lambda), `max_advantage_weight`), as CORL; `softmax` takes
softmax(A / lambda) over the batch times B, as the authors' code, and needs no cap.
Departures: the policy is our tanh-Gaussian with a state-dependent log-std in [-5, 2] (the authors squash the mean
only), data actions clipped to ±(1 - 1e-6); no weight decay; PyTorch's initialisation.
Axes: critics `[2, B]`, K = 2 actions per state (data, policy) as `[2, 2, B]`, weights `[B]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from rl_training.algorithms.base import Learner, TargetConfig, Terms
from rl_training.algorithms.losses import clipped_exponential, cloning_terms, critic_terms, td_target
from rl_training.data.transitions import TransitionBatch
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.models.policies import OFFLINE_LOG_STD_BOUNDS, squashed_log_prob
from rl_training.settings import PositiveFloat


class AWACConfig(TargetConfig):
    """`awac_lambda` divides the advantage; `max_advantage_weight` caps the weights of `exp` only."""

    awac_lambda: PositiveFloat = 1.0
    max_advantage_weight: PositiveFloat = 100.0
    weighting: Literal["exp", "softmax"] = "exp"


def advantage_weights(advantages: Tensor, config: AWACConfig) -> Tensor:
    """What each transition of the batch counts in the actor's loss: `[B] -> [B]`."""
    scaled = advantages / config.awac_lambda
    if config.weighting == "softmax":
        return scaled.softmax(-1) * scaled.shape[-1]
    return clipped_exponential(scaled, config.max_advantage_weight)


def awac_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors: `q1_values q2_values target_q_values behavior_logprobs advantages
    advantage_weights`."""
    q = torch.stack([batch["q1_values"], batch["q2_values"]])
    return critic_terms(q, batch["target_q_values"]) | cloning_terms(
        batch["behavior_logprobs"], batch["advantages"], batch["advantage_weights"]
    )


class AWAC(Learner):
    """Advantage-weighted actor-critic on an `MLPSACModel`."""

    name = "awac"
    Config = AWACConfig
    Model = MLPSACModel

    def __init__(self, *, model: MLPSACModel, **hyperparameters: Any) -> None:
        super().__init__(model=model, **hyperparameters)
        self.optimizers = {"critics": self.adam(model.critics), "actor": self.adam(model.actor)}

    @classmethod
    def model_options(cls, config: Any) -> dict[str, Any]:
        return {"log_std_bounds": OFFLINE_LOG_STD_BOUNDS}

    def gradient_step(self, batch: TransitionBatch, phase: object) -> Terms:
        noise = self.normal(2, *batch.actions.shape)  # for a' and for a~
        return self.minimize(
            (batch, noise),
            {"critics": self.critic_loss, "actor": self.actor_loss},
            {self.model.target_critics: self.model.critics},
            tau=self.config.tau,
        )

    def critic_loss(self, batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Terms]:
        with torch.no_grad():
            next_actions = self.model.actor.sample(batch.next_obs, noise[0])
            value = self.model.target_critics(batch.next_obs, next_actions).amin(0)  # [B]
            target = td_target(batch.rewards, batch.dones, value, self.config.gamma)
        terms = critic_terms(self.model.critics(batch.obs, batch.actions), target)
        return terms["critic_loss"], terms

    def actor_loss(self, batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Terms]:
        mean, log_std = self.model.actor(batch.obs)
        with torch.no_grad():
            policy_actions = torch.tanh(mean + log_std.exp() * noise[1])
            candidates = torch.stack([batch.actions, policy_actions])  # [2, B, A]
            q = self.model.critics.over_actions(batch.obs, candidates).amin(0)  # [2, B]
            advantages = q[0] - q[1]
            weights = advantage_weights(advantages, self.config)
        terms = cloning_terms(squashed_log_prob(mean, log_std, batch.actions), advantages, weights)
        return terms["actor_loss"], terms
