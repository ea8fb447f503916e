"""FQL: Flow Q-Learning (Park, Li & Levine, ICML 2025).

Flow matching clones the data's actions: v(s, x_t, t) learns a - x_0 at x_t = (1 - t) x_0 + t a, with x_0 ~ N(0, I)
and t uniform in [0, 1]. Euler's method in `flow_steps` steps turns noise z into an action of that policy. The actor
is a network of its own that computes an action from (s, z) in one step. It imitates the flow's action for the same
z, with the weight `distill_coef`, and maximises the mean of the critics. So no gradient passes through the steps of
the flow. Its actions are clipped to [-1, 1] for the critics and in use; the imitation compares them unclipped.
Critics: 1-step targets with the mean (`q_aggregation`) of the target critics at an action of the actor; their loss
is the mean over both. The target critics are updated *before* the critics step (`targets_first`). The data's
actions are clipped to ±(1 - 1e-5). In evaluation, too, the policy samples z.
The authors step all networks with one Adam; one per network, with the same settings, is the same.
Departures: none in update and networks; fine-tuning clips the actions of new experience as well as the data's.
Axes: critics `[2, B]`, actions `[B, A]`, times `[B, 1]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from rl_training.algorithms.base import Learner, TargetConfig, Terms
from rl_training.algorithms.losses import action_error, mean_critic_terms, td_target
from rl_training.data.transitions import TransitionBatch
from rl_training.models.mlp import Activation, NetworkConfig
from rl_training.models.mlp_fql import MLPFQLModel
from rl_training.settings import NonNegativeFloat, PositiveInt, Sizes

ACTION_LIMIT = 1.0 - 1e-5


class FQLConfig(TargetConfig):
    """The authors' settings; they choose `distill_coef` for each task."""

    distill_coef: NonNegativeFloat = 10.0
    """weight of the squared distance to the flow policy's action in the actor's loss (the paper's alpha)"""
    flow_steps: PositiveInt = 10
    """steps of Euler's method per action of the flow policy"""
    q_aggregation: Literal["mean", "min"] = "mean"
    """value of the two target critics in the critics' target"""
    normalize_q_loss: bool = False
    """divide Q in the actor's loss by its mean magnitude; `distill_coef` then does not depend on the rewards"""


class FQLNetwork(NetworkConfig):
    """The authors' networks: four layers with GELU, and LayerNorm in the critics."""

    hidden_sizes: Sizes = (512, 512, 512, 512)
    """sizes of the hidden layers of every network"""
    activation: Activation = "gelu_tanh"
    """activation function after each hidden layer of every network"""
    layer_norm: bool = True
    """LayerNorm after the activation of each hidden layer of the critics"""


def next_value(q: Tensor, aggregation: str) -> Tensor:
    """The value of the target critics, `[2, B] -> [B]`."""
    return q.amin(0) if aggregation == "min" else q.mean(0)


def flow_terms(velocities: Tensor, start: Tensor, actions: Tensor) -> Terms:
    """Flow matching: `velocities` on the straight line from the noise `start` to the data's `actions`."""
    return {"flow_loss": action_error(velocities, actions - start)}


def actor_terms(
    q: Tensor, policy_actions: Tensor, flow_actions: Tensor, distill_coef: float, normalize_q_loss: bool
) -> Terms:
    """`q [2, B]` at the clipped `policy_actions`; both actions are of the same noise."""
    value, distance = q.mean(0), action_error(policy_actions, flow_actions)
    scale = 1.0 / value.detach().abs().mean() if normalize_q_loss else torch.ones_like(distance)
    loss = distill_coef * distance - scale * value.mean()
    return {"actor_loss": loss, "distill_loss": distance, "q_scale": scale}


def fql_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors: `q1_values q2_values rewards dones next_q1 next_q2 policy_q1 policy_q2
    policy_actions flow_actions velocities start actions gamma distill_coef q_aggregation normalize_q_loss`."""
    q, next_q, policy_q = (
        torch.stack([batch[name.format(i)] for i in (1, 2)]) for name in ("q{}_values", "next_q{}", "policy_q{}")
    )
    value = next_value(next_q, batch["q_aggregation"])
    target = td_target(batch["rewards"], batch["dones"], value, batch["gamma"])
    own = actor_terms(
        policy_q, batch["policy_actions"], batch["flow_actions"], batch["distill_coef"], batch["normalize_q_loss"]
    )
    return mean_critic_terms(q, target) | flow_terms(batch["velocities"], batch["start"], batch["actions"]) | own


class FQL(Learner):
    """Flow Q-learning on an `MLPFQLModel`."""

    name = "fql"
    Config = FQLConfig
    Model = MLPFQLModel
    Network = FQLNetwork
    optimized = ("critics", "flow", "actor")
    targets_first = True

    def gradient_step(self, batch: TransitionBatch, variant: object) -> Terms:
        noise = self.normal(3, *batch.actions.shape)  # of a', of the flow's start, and of a
        times = self.uniform(len(batch.actions), 1)
        clipped = batch._replace(actions=batch.actions.clamp(-ACTION_LIMIT, ACTION_LIMIT))
        objectives = {"actor": self.actor_loss, "critics": self.critic_loss, "flow": self.flow_loss}
        return self.minimize((clipped, noise, times), objectives, tau=self.config.tau)

    def critic_loss(self, batch: TransitionBatch, noise: Tensor, times: Tensor) -> tuple[Tensor, Terms]:
        with torch.no_grad():
            next_actions = self.model.actor.sample(batch.next_obs, noise[0])
            next_q = self.model.target_critics(batch.next_obs, next_actions)  # [2, B]
            value = next_value(next_q, self.config.q_aggregation)
            target = td_target(batch.rewards, batch.dones, value, self.config.gamma)
        terms = mean_critic_terms(self.model.critics(batch.obs, batch.actions), target)
        return terms["critic_loss"], terms

    def flow_loss(self, batch: TransitionBatch, noise: Tensor, times: Tensor) -> tuple[Tensor, Terms]:
        start = noise[1]
        between = (1.0 - times) * start + times * batch.actions
        velocities = self.model.flow(torch.cat([batch.obs, between, times], dim=-1))
        terms = flow_terms(velocities, start, batch.actions)
        return terms["flow_loss"], terms

    def actor_loss(self, batch: TransitionBatch, noise: Tensor, times: Tensor) -> tuple[Tensor, Terms]:
        with torch.no_grad():
            flow_actions = self.model.flow_actions(batch.obs, noise[2], self.config.flow_steps)
        actions = self.model.actor(batch.obs, noise[2])
        q = self.model.critics(batch.obs, actions.clamp(-1.0, 1.0), frozen=True)  # [2, B]
        terms = actor_terms(q, actions, flow_actions, self.config.distill_coef, self.config.normalize_q_loss)
        return terms["actor_loss"], terms
