"""CQL(H) on discrete actions (Kumar et al. 2020).

Double DQN with a penalty that lowers Q over all actions and raises it at the data's actions:
huber(Q(s, a), r + gamma Qbar(s', argmax Q(s', ·))) + `cql_alpha` (E_s[log sum_a exp Q(s, a)] - E[Q(s, a)]).
The sum over finitely many actions is exact: it needs no samples, no actor and no temperature. The policy is greedy.
Departures: the paper's Atari agent puts the penalty on QR-DQN, d3rlpy's DiscreteCQL, like this one, on Double DQN.
The target is averaged with `tau` after each update (both copy it periodically). Losses and gradients equal
d3rlpy's. The weight is fixed, as in both; `lagrange_threshold` is for continuous actions.
Axes: values `[B, K]` for K actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import Learner, TargetConfig, Terms
from rl_training.algorithms.cql import conservative_gap
from rl_training.algorithms.dqn import double_q_value, huber_loss
from rl_training.algorithms.losses import td_target
from rl_training.data.transitions import TransitionBatch
from rl_training.models.mlp_q import MLPQNetwork
from rl_training.models.policies import at_actions
from rl_training.settings import NonNegativeFloat


class DiscreteCQLConfig(TargetConfig):
    """The settings of CQL that apply to discrete actions."""

    cql_alpha: NonNegativeFloat = 1.0
    """weight of the conservative penalty"""


def value_terms(q: Tensor, actions: Tensor, target: Tensor, cql_alpha: float) -> Terms:
    """`q [B, K]` of every action; that of the data's `actions [B]` is fitted to `target [B]`."""
    taken = at_actions(q, actions)
    gap = conservative_gap(q.mT[None], 0.0, taken[None]).squeeze(0)
    error, penalty = huber_loss(taken, target), cql_alpha * gap
    return {
        "critic_loss": error + penalty,
        "td_loss": error,
        "conservative_loss": penalty,
        "conservative_gap": gap,
        "q_mean": taken.mean(),
        "target_q_mean": target.mean(),
    }


def discrete_cql_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors: `q_values [B, K] actions target_q_values cql_alpha`."""
    return value_terms(batch["q_values"], batch["actions"], batch["target_q_values"], batch["cql_alpha"])


class DiscreteCQL(Learner):
    """Conservative Q-learning on an `MLPQNetwork`."""

    name = "cql"
    Config = DiscreteCQLConfig
    Model = MLPQNetwork
    discrete = True

    def __init__(self, *, model: MLPQNetwork, **hyperparameters: Any) -> None:
        super().__init__(model=model, **hyperparameters)
        self.optimizers = {"q": self.adam(model.q_network)}

    def gradient_step(self, batch: TransitionBatch, variant: object) -> Terms:
        return self.minimize((batch,), {"q": self.loss}, tau=self.config.tau)

    def loss(self, batch: TransitionBatch) -> tuple[Tensor, Terms]:
        with torch.no_grad():
            value = double_q_value(self.model, batch.next_obs)
            target = td_target(batch.rewards, batch.dones, value, self.config.gamma)
        terms = value_terms(self.model.q_network(batch.obs), batch.actions, target, self.config.cql_alpha)
        return terms["critic_loss"], terms
