"""An algorithm in a package of its own: SAC with a target between the mean and the minimum of its critics.

pip install ./examples/plugin
rl-training train --algo blended_sac --env Pendulum-v1 --steps 5000 --set pessimism=0.5
"""

from __future__ import annotations

import torch
from torch import Tensor

import rl_training
from rl_training.algorithms.base import Terms
from rl_training.algorithms.losses import soft_value, td_target
from rl_training.algorithms.sac import SAC, critic_terms
from rl_training.algorithms.soft import SoftConfig
from rl_training.data.transitions import TransitionBatch
from rl_training.settings import Fraction


class BlendedConfig(SoftConfig):
    pessimism: Fraction = 0.75
    """0: the target is the mean of both target critics; 1: their minimum, as in SAC"""


class BlendedSAC(SAC):
    """SAC with a target between the mean and the minimum of both target critics."""

    name = "blended_sac"
    Config = BlendedConfig

    def critic_loss(self, batch: TransitionBatch, next_noise: Tensor, noise: Tensor) -> tuple[Tensor, Terms]:
        with torch.no_grad():
            next_actions, next_logprobs = self.model.actor.sample_with_logprob(batch.next_obs, next_noise)
            q = self.model.target_critics(batch.next_obs, next_actions)  # [2, B]
            value = torch.lerp(q.mean(0), q.amin(0), self.config.pessimism)  # [B]
            value = soft_value(value, next_logprobs, self.temperature.alpha())
            target = td_target(batch.rewards, batch.dones, value, self.config.gamma)
        terms = critic_terms(self.model.critics(batch.obs, batch.actions), target)
        return terms["critic_loss"], terms


Agent = rl_training.register(BlendedSAC, title="SAC with a blended target", year=2026, learning_starts=1_000)
