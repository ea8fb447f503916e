"""TD3+BC: A Minimalist Approach to Offline RL (Fujimoto & Gu 2021).

TD3 with one more term in the actor's loss, -lambda E[Q_1(s, pi(s))] + E[(pi(s) - a)^2], where lambda is
`bc_alpha` / E|Q_1(s, pi(s))| without gradient. The squared error is averaged over action dimensions. The critics'
update is TD3's.
Runs normalise observations by default, as the authors do.
Departure: the actor uses the critics before their step of the same update (see `base`).
Axes: critics `[2, B]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import Terms
from rl_training.algorithms.losses import action_error, critic_terms
from rl_training.algorithms.td3 import TD3, DelayedUpdateConfig
from rl_training.data.transitions import TransitionBatch
from rl_training.settings import PositiveFloat


class TD3BCConfig(DelayedUpdateConfig):
    """TD3's settings and the paper's weight."""

    bc_alpha: PositiveFloat = 2.5
    """weight of Q divided by its mean magnitude, relative to the squared action error"""


def actor_terms(q: Tensor, policy_actions: Tensor, actions: Tensor, bc_alpha: float) -> Terms:
    """`q [B]`: the first critic at `policy_actions [B, A]`; `actions [B, A]` are the data's."""
    scale = bc_alpha / q.detach().abs().mean()
    error = action_error(policy_actions, actions)
    return {"actor_loss": error - scale * q.mean(), "bc_loss": error, "q_scale": scale}


def td3_bc_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors: `q1_values q2_values target_q_values policy_q1 policy_actions
    actions bc_alpha`."""
    q = torch.stack([batch["q1_values"], batch["q2_values"]])
    return critic_terms(q, batch["target_q_values"]) | actor_terms(
        batch["policy_q1"], batch["policy_actions"], batch["actions"], batch["bc_alpha"]
    )


class TD3BC(TD3):
    """TD3 with a cloning term on an `MLPTD3Model`."""

    name = "td3_bc"
    Config = TD3BCConfig
    occasional_terms = ("actor_loss", "bc_loss", "q_scale")

    def actor_loss(self, batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Terms]:
        policy_actions = self.model.actor(batch.obs)
        q = self.model.critics(batch.obs, policy_actions, frozen=True, members=1)  # [1, B]
        terms = actor_terms(q[0], policy_actions, batch.actions, self.config.bc_alpha)
        return terms["actor_loss"], terms
