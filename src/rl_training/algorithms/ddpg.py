"""DDPG: Deep Deterministic Policy Gradient (Lillicrap et al. 2016), in the form the TD3 paper calls OurDDPG.

One critic, action and observation concatenated at the input, Gaussian exploration, no batch normalisation.
DDPG is TD3 with one critic, no delay and no target noise; delay and noise can be turned on.
Departure: the actor uses the critics before their step of the same update (see `base`).
Axes: critics `[1, B]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from rl_training.algorithms.base import Terms
from rl_training.algorithms.losses import critic_terms
from rl_training.algorithms.td3 import TD3, TD3Config, actor_terms
from rl_training.models.mlp_td3 import MLPDDPGModel
from rl_training.settings import NonNegativeFloat, OnlyWith, PositiveInt


class DDPGConfig(TD3Config):
    """TD3's settings without delay and target noise."""

    policy_delay: PositiveInt = 1
    """critic updates per update of the actor and the targets"""
    target_policy_noise: Annotated[NonNegativeFloat, OnlyWith("target_noise_clip")] = 0.0
    """standard deviation of the noise on target actions, which are in [-1, 1]"""
    target_noise_clip: Annotated[NonNegativeFloat, OnlyWith("target_policy_noise")] = 0.0
    """bound of the noise on target actions"""


def ddpg_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors: `q_values target_q_values policy_q`."""
    return critic_terms(batch["q_values"][None], batch["target_q_values"]) | actor_terms(batch["policy_q"])


class DDPG(TD3):
    """Deterministic policy gradient on an `MLPDDPGModel`."""

    name = "ddpg"
    Config = DDPGConfig
    Model = MLPDDPGModel
