"""DQN (Mnih et al. 2015), with Double DQN (van Hasselt et al. 2016) as an option.

Huber loss on Q(s, a) against r + gamma max Qbar(s', ·); with `double_q` the online network selects the action and
the target network evaluates it. The target is updated every `target_update_interval` updates by `tau` (1: a copy).
Departures: Adam instead of RMSprop; no reward clipping; the interval counts gradient updates, as in the paper.
Axes: values `[B, K]` for K actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import Learner, LearnerConfig, Terms
from rl_training.algorithms.execution import Draws, by_rows
from rl_training.algorithms.losses import td_target
from rl_training.data.transitions import TransitionBatch
from rl_training.models.mlp_q import MLPQNetwork
from rl_training.models.policies import Policy, at_actions
from rl_training.settings import Fraction, PositiveFloat, PositiveInt


class DQNConfig(LearnerConfig):
    """By default the target is copied (`tau` 1), not averaged."""

    learning_rate: PositiveFloat = 1e-4
    """learning rate of Adam"""
    tau: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Polyak coefficient: target ← (1 − tau)·target + tau·source"""
    double_q: bool = False
    """the online network selects the action, the target network evaluates it (Double DQN)"""
    exploration_initial_eps: Fraction = 1.0
    """probability of a random action at the start"""
    exploration_final_eps: Fraction = 0.05
    """probability of a random action after the decay"""
    exploration_fraction: Fraction = 0.1
    """fraction of the run over which that probability decays linearly"""
    target_update_interval: PositiveInt = 1_000
    """updates between updates of the target network"""


def huber_loss(q: Tensor, target: Tensor) -> Tensor:
    """Smooth L1 loss with threshold 1."""
    return F.smooth_l1_loss(q, target)


def double_q_value(model: MLPQNetwork, next_obs: Tensor) -> Tensor:
    """Qbar(s', argmax Q(s', ·)), `[B]`: the online network selects, the target network evaluates."""
    return at_actions(model.target(next_obs), model.q_network(next_obs).argmax(-1))


def q_terms(q: Tensor, target: Tensor) -> Terms:
    """`q [B]` of the taken actions against `target [B]`."""
    return {"loss": huber_loss(q, target), "q_mean": q.mean(), "target_q_mean": target.mean()}


def dqn_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors: `q_values target_q_values`."""
    return q_terms(batch["q_values"], batch["target_q_values"])


class DQN(Learner):
    """Deep Q-learning on an `MLPQNetwork`."""

    name = "dqn"
    Config = DQNConfig
    Model = MLPQNetwork
    discrete = True

    def __init__(self, *, model: MLPQNetwork, **hyperparameters: Any) -> None:
        super().__init__(model=model, **hyperparameters)
        self.optimizers = {"q": self.adam(model.q_network)}

    @property
    def explores_by_progress(self) -> bool:
        config = self.config
        return config.exploration_fraction > 0 and config.exploration_initial_eps != config.exploration_final_eps

    def epsilon(self, progress: float | Tensor) -> Any:
        """The probability of a random action at `progress` in [0, 1] of the run; a tensor for a tensor."""
        fraction = self.config.exploration_fraction
        start, end = self.config.exploration_initial_eps, self.config.exploration_final_eps
        done = 1.0 if fraction == 0 else progress / fraction
        done = done.clamp(max=1.0) if isinstance(done, Tensor) else min(done, 1.0)
        return start + done * (end - start)

    @by_rows
    def explore(self, policy: Policy, obs: Tensor, rng: Draws, progress: float | Tensor) -> Tensor:
        n = len(obs)
        random = torch.as_tensor(rng.integers(self.model.num_actions, size=n), device=obs.device)
        chance = torch.as_tensor(rng.random(n) < self.epsilon(progress), device=obs.device)
        return torch.where(chance, random, policy.mode(obs))

    def variant(self, update: int) -> bool:
        """Whether the target is updated."""
        return self.ends_period(update, self.config.target_update_interval)

    def gradient_step(self, batch: TransitionBatch, variant: object) -> Terms:
        return self.minimize((batch,), {"q": self.loss}, tau=self.config.tau if variant else None)

    def loss(self, batch: TransitionBatch) -> tuple[Tensor, Terms]:
        with torch.no_grad():
            if self.config.double_q:
                value = double_q_value(self.model, batch.next_obs)
            else:
                value = self.model.target(batch.next_obs).amax(-1)
            target = td_target(batch.rewards, batch.dones, value, self.config.gamma)
        q = at_actions(self.model.q_network(batch.obs), batch.actions)  # [B]
        terms = q_terms(q, target)
        return terms["loss"], terms
