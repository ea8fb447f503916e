"""Cal-QL: Calibrated Q-Learning (Nakamoto et al. 2023).

CQL(H) whose penalty does not lower the values of the policy's actions below the return of the data: at the actions
from pi(.|s) and pi(.|s') the penalty uses max(Q(s, a_k), R(s)) instead of Q(s, a_k), before the correction by the
density. Uniform actions and the data's action are unchanged. R(s) is the return of the row's episode from s on,
R_t = r_t + gamma (1 - terminal_t) R_{t+1}, of scaled rewards. An episode that was cut counts its rewards up to the
cut. If all rewards of an episode equal `failure_reward`, R is the return of failing for ever. The backup is the
best of ten sampled actions by the smaller critic and has no entropy term; alpha is learned. Online, the rows of an
episode have no floor until it ends (the authors store episodes when they end).
Departures: PyTorch's initialisation (the authors: orthogonal, last layers with gain 0.01); all losses of an update
use the same draws; the log std is in [-5, 2], without a learned scale and offset (the authors: [-20, 2]); data
actions are not clipped (the authors: ±0.99999); with `lagrange_threshold` the multiplier starts at 1 (the authors:
e) and the threshold is that of the penalty, which is their gap times `cql_alpha`.
Axes: as in CQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from pydantic import model_validator
from torch import Tensor

from rl_training.algorithms.base import Terms
from rl_training.algorithms.cql import CQL, CQLConfig, cql_loss
from rl_training.algorithms.soft import Alpha
from rl_training.data.extra_columns import MC_RETURNS, extra
from rl_training.data.transitions import TransitionBatch
from rl_training.models.mlp import NetworkConfig
from rl_training.settings import PositiveInt


class CalQLConfig(CQLConfig):
    """The authors' settings."""

    alpha: Alpha = "auto"
    """entropy coefficient: a number, or `auto` to learn it"""
    backup_actions: PositiveInt = 10
    """sampled next actions; the largest of their values is backed up"""
    failure_reward: float | None = None
    """unscaled reward of a step without success; an episode with only such steps counts as failing for ever"""

    @model_validator(mode="after")
    def _finite_failure(self) -> Self:
        if self.failure_reward is not None and self.gamma == 1.0:
            raise ValueError("failure_reward needs gamma < 1: the return of failing for ever is not finite")
        return self


def floored_values(q: Tensor, returns: Tensor) -> tuple[Tensor, Tensor]:
    """max(Q, R) for the policy's actions, the first two thirds of `q [..., K, B]`, and the share with Q < R."""
    policy, uniform = q.tensor_split([q.shape[-2] * 2 // 3], -2)
    floored = torch.cat([torch.maximum(policy, returns), uniform], -2)
    return floored, (policy < returns).to(q.dtype).mean()


def cal_ql_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors: those of `cql_loss` and `mc_returns [B]`.

    The first two thirds of the candidates are the policy's, the others are uniform.
    """
    candidates = torch.stack([batch["q1_candidates"], batch["q2_candidates"]])
    (q1, q2), share = floored_values(candidates, batch["mc_returns"])
    return cql_loss({**batch, "q1_candidates": q1, "q2_candidates": q2}) | {"floored_share": share}


class CalQL(CQL):
    """Calibrated Q-learning on an `MLPSACModel`."""

    name = "cal_ql"
    Config = CalQLConfig
    Network = NetworkConfig
    extras = (MC_RETURNS,)

    def penalised_values(self, q: Tensor, batch: TransitionBatch) -> tuple[Tensor, Terms]:
        floored, share = floored_values(q, extra(batch, MC_RETURNS))
        return floored, {"floored_share": share}
