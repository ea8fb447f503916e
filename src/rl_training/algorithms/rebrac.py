"""ReBRAC: Revisiting the Minimalist Approach to Offline RL (Tarasov et al. 2023).

TD3+BC with a cloning penalty also in the critics' target; both penalties have their own weight.
Target: r + gamma (min Qbar(s', a') - `critic_bc_coef` |a' - a'_data|^2), where a' is TD3's smoothed target action
and a'_data the data's own next action. Actor: E[`actor_bc_coef` |pi(s) - a|^2 - lambda min Q(s, pi(s))], where
lambda is 1 / E|min Q(s, pi(s))|, a constant to the gradient. Norms are sums over the action's entries (TD3+BC
averages) and the actor maximises the smaller critic (TD3: the first). As in TD3, actor and targets are updated
every `policy_delay` updates. The critics have LayerNorm, the actor has none; observations are not normalised.
Departures: LayerNorm is before the ReLU (the authors: after it); PyTorch's initialisation; the actor uses the
critics before their step of the same update (see `base`); the actor is updated in the last of every `policy_delay`
updates (the authors: the first), and its target after that step (before it). In fine-tuning, a'_data of a new row
is the action that followed; the newest row and the last of a truncated episode have none and take their own.
Axes: critics `[2, B]`, penalties `[B]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import Terms
from rl_training.algorithms.losses import critic_terms, td_target
from rl_training.algorithms.td3 import TD3, DelayedUpdateConfig, smoothed_action
from rl_training.data.extra_columns import NEXT_ACTIONS
from rl_training.data.transitions import TransitionBatch
from rl_training.models.mlp import ThreeLayerConfig
from rl_training.settings import NonNegativeFloat, PositiveFloat


class ReBRACConfig(DelayedUpdateConfig):
    """The authors' settings; both weights, which they choose for each data set, are those of hopper-medium."""

    learning_rate: PositiveFloat = 1e-3
    """learning rate of Adam"""
    actor_bc_coef: NonNegativeFloat = 0.01
    """weight of the squared action error in the actor's loss, relative to Q divided by its mean magnitude"""
    critic_bc_coef: NonNegativeFloat = 0.01
    """weight of the squared error of the target action in the critics' target, in units of reward"""


class ReBRACNetwork(ThreeLayerConfig):
    """The authors' networks: three layers, and LayerNorm in the critics."""

    layer_norm: bool = True
    """LayerNorm after each hidden layer of the critics"""


def squared_distance(policy_actions: Tensor, actions: Tensor) -> Tensor:
    """|pi - a|^2: summed over the action's entries, `[B, A] -> [B]`."""
    return (policy_actions - actions).square().sum(-1)


def penalised_value(q: Tensor, policy_actions: Tensor, actions: Tensor, critic_bc_coef: float) -> Tensor:
    """The penalised next value: `q [2, B]` of the target critics at `policy_actions`; `actions` are the data's."""
    return q.amin(0) - critic_bc_coef * squared_distance(policy_actions, actions)


def actor_terms(q: Tensor, policy_actions: Tensor, actions: Tensor, actor_bc_coef: float) -> Terms:
    """`q [2, B]`: the critics at `policy_actions [B, A]`; `actions [B, A]` are the data's."""
    value = q.amin(0)
    scale = 1.0 / value.detach().abs().mean()
    distance = squared_distance(policy_actions, actions).mean()
    return {"actor_loss": actor_bc_coef * distance - scale * value.mean(), "bc_loss": distance, "q_scale": scale}


def rebrac_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors: `q1_values q2_values rewards dones next_q1 next_q2 next_policy_actions
    next_actions policy_q1 policy_q2 policy_actions actions gamma actor_bc_coef critic_bc_coef`."""
    q = torch.stack([batch["q1_values"], batch["q2_values"]])
    next_q = torch.stack([batch["next_q1"], batch["next_q2"]])
    policy_q = torch.stack([batch["policy_q1"], batch["policy_q2"]])
    value = penalised_value(next_q, batch["next_policy_actions"], batch["next_actions"], batch["critic_bc_coef"])
    target = td_target(batch["rewards"], batch["dones"], value, batch["gamma"])
    return critic_terms(q, target) | actor_terms(
        policy_q, batch["policy_actions"], batch["actions"], batch["actor_bc_coef"]
    )


class ReBRAC(TD3):
    """TD3 with a cloning penalty in actor and critics on an `MLPTD3Model`."""

    name = "rebrac"
    Config = ReBRACConfig
    Network = ReBRACNetwork
    occasional_terms = ("actor_loss", "bc_loss", "q_scale")
    extras = (NEXT_ACTIONS,)

    def critic_loss(self, batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Terms]:
        assert batch.next_actions is not None  # one of `extras`
        with torch.no_grad():
            clip = self.config.target_noise_clip
            policy_actions = smoothed_action(self.model.target_actor(batch.next_obs), noise, clip)
            next_q = self.model.target_critics(batch.next_obs, policy_actions)  # [2, B]
            value = penalised_value(next_q, policy_actions, batch.next_actions, self.config.critic_bc_coef)
            target = td_target(batch.rewards, batch.dones, value, self.config.gamma)
        terms = critic_terms(self.model.critics(batch.obs, batch.actions), target)
        return terms["critic_loss"], terms

    def actor_loss(self, batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Terms]:
        policy_actions = self.model.actor(batch.obs)
        q = self.model.critics(batch.obs, policy_actions, frozen=True)  # [2, B]
        terms = actor_terms(q, policy_actions, batch.actions, self.config.actor_bc_coef)
        return terms["actor_loss"], terms
