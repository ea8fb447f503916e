"""TD3: Twin Delayed DDPG (Fujimoto et al. 2018).

Smoothed target actions, the minimum of two target critics, and an actor that maximises the first critic. The actor
and all targets are updated every `policy_delay` updates. Noise is in units of the action range [-1, 1].
Departure: the actor uses the critics before their step of the same update (see `base`).
Axes: critics `[2, B]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import ActorStartConfig, Learner, TargetConfig, Terms
from rl_training.algorithms.execution import Draws, by_rows
from rl_training.algorithms.losses import critic_terms, td_target
from rl_training.data.transitions import TransitionBatch
from rl_training.models.mlp_td3 import MLPTD3Model
from rl_training.models.policies import Policy
from rl_training.settings import NonNegativeFloat, PositiveInt


class DelayedUpdateConfig(TargetConfig):
    """The paper's settings, also of offline learners."""

    policy_delay: PositiveInt = 2
    """critic updates per update of the actor and the targets"""
    target_policy_noise: NonNegativeFloat = 0.2
    """standard deviation of the noise on target actions, which are in [-1, 1]"""
    target_noise_clip: NonNegativeFloat = 0.5
    """bound of the noise on target actions"""
    exploration_noise: NonNegativeFloat = 0.1
    """standard deviation of the exploration noise on actions, which are in [-1, 1]"""


class TD3Config(ActorStartConfig, DelayedUpdateConfig):
    """The paper's settings."""


def smoothed_action(action: Tensor, noise: Tensor, clip: float) -> Tensor:
    """clip(a + clip(noise, -c, c), -1, 1)."""
    return (action + noise.clamp(-clip, clip)).clamp(-1.0, 1.0)


def actor_terms(q: Tensor) -> Terms:
    """`q [B]`: the first critic at the policy's actions."""
    return {"actor_loss": -q.mean()}


def td3_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors: `q1_values q2_values target_q_values policy_q1`."""
    q = torch.stack([batch["q1_values"], batch["q2_values"]])
    return critic_terms(q, batch["target_q_values"]) | actor_terms(batch["policy_q1"])


class TD3(Learner):
    """Twin delayed DDPG on an `MLPTD3Model`."""

    name = "td3"
    Config: ClassVar[type[DelayedUpdateConfig]] = TD3Config
    Model = MLPTD3Model
    optimized = ("critics", "actor")
    occasional_terms: ClassVar[tuple[str, ...]] = ("actor_loss",)

    @by_rows
    def explore(self, policy: Policy, obs: Tensor, rng: Draws, progress: float | Tensor) -> Tensor:
        """The deterministic action plus Gaussian noise, inside the bounds."""
        action = policy.mode(obs)
        noise = torch.as_tensor(rng.standard_normal(action.shape, dtype=np.float32), device=obs.device)
        return (action + self.config.exploration_noise * noise).clamp(-1.0, 1.0)

    def variant(self, update: int) -> tuple[bool, bool]:
        """Whether the targets are updated, and whether the actor is."""
        ends = self.ends_period(update, self.config.policy_delay)
        return ends, ends and update >= self.actor_starts

    def gradient_step(self, batch: TransitionBatch, variant: Any) -> Terms:
        moves_targets, moves_actor = variant
        noise = self.config.target_policy_noise * self.normal(*batch.actions.shape)
        objectives = {"critics": self.critic_loss} | ({"actor": self.actor_loss} if moves_actor else {})
        return self.minimize((batch, noise), objectives, tau=self.config.tau if moves_targets else None)

    def critic_loss(self, batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Terms]:
        with torch.no_grad():
            clip = self.config.target_noise_clip
            next_actions = smoothed_action(self.model.target_actor(batch.next_obs), noise, clip)
            value = self.model.target_critics(batch.next_obs, next_actions).amin(0)  # [B]
            target = td_target(batch.rewards, batch.dones, value, self.config.gamma)
        terms = critic_terms(self.model.critics(batch.obs, batch.actions), target)
        return terms["critic_loss"], terms

    def actor_loss(self, batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Terms]:
        actions = self.model.actor(batch.obs)
        q = self.model.critics(batch.obs, actions, frozen=True, members=1)  # [1, B]
        terms = actor_terms(q[0])
        return terms["actor_loss"], terms
