"""FQE: Fitted Q Evaluation (Le, Voloshin & Yue 2019), as Fu et al. 2021 ("DOPE") run it on large data.

FQE trains no policy: it estimates the value of a *given* policy from logged data. Q regresses on
r + gamma Qbar(s', a'), where a' is the given policy's action in s' (its mode or a sample), passed as the batch's
`next_actions`. Targets are clipped to the values that the rewards allow (`value_bounds`). The estimate is the mean
of Q(s0, a0) over first states.
Departures: `tau` is 0.05, ten times that of actor-critics. A common error of all values shrinks by tau (1 - gamma)
per update, so with 0.005 FQE would need a hundred thousand updates; and no policy is trained that a fast target
could mislead. One critic instead of the minimum of two, which would underestimate uncertain values. Q is normalised
by offset and scale instead of the rewards by mean and std; the two agree if no episode terminates, and only the
former is exact if one does. The bounds account for terminations, too.
Axes: values `[B]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import Learner, TargetConfig, Terms
from rl_training.algorithms.losses import td_target
from rl_training.data.extra_columns import NEXT_ACTIONS
from rl_training.data.transitions import TransitionBatch
from rl_training.models.mlp import NetworkShape
from rl_training.models.mlp_fqe import MLPFQEModel
from rl_training.settings import NonNegativeFloat

if TYPE_CHECKING:
    from rl_training.spaces import SpaceSpec


class FQEConfig(TargetConfig):
    """`gamma` is below 1, so that values are bounded."""

    gamma: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """discount factor"""
    tau: Annotated[float, Field(gt=0, le=1)] = 0.05
    """Polyak coefficient of the target network; values converge in about 1 / (tau (1 - gamma)) updates"""
    weight_decay: NonNegativeFloat = 0.01
    """decoupled weight decay, as in AdamW"""


def value_bounds(lowest: float, highest: float, gamma: float, *, terminates: bool) -> tuple[float, float]:
    """The least and the greatest value that rewards between `lowest` and `highest` allow.

    They are reached by the same reward forever, or by a single reward if episodes can terminate.
    """
    low, high = lowest / (1.0 - gamma), highest / (1.0 - gamma)
    return (min(low, lowest), max(high, highest)) if terminates else (low, high)


def fqe_terms(q: Tensor, target: Tensor, low: Tensor, high: Tensor, offset: Tensor, scale: Tensor) -> Terms:
    """`q [B]` as the network returns it; `target [B]` in the units of the rewards, clipped to its bounds."""
    clipped = target.clamp(low, high)
    return {
        "critic_loss": (q - (clipped - offset) / scale).square().mean(),
        "target_q_mean": clipped.mean(),
        "clipped_share": (clipped != target).to(target.dtype).mean(),
    }


def fqe_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors: `q_values target_q_values low high offset scale`."""
    bounds, units = (batch["low"], batch["high"]), (batch["offset"], batch["scale"])
    return fqe_terms(batch["q_values"], batch["target_q_values"], *bounds, *units)


class FQE(Learner):
    """Fitted Q evaluation of one policy on an `MLPFQEModel`."""

    name = "fqe"
    Config = FQEConfig
    extras = (NEXT_ACTIONS,)

    def __init__(self, *, model: MLPFQEModel, **hyperparameters: Any) -> None:
        super().__init__(model=model, **hyperparameters)
        self.optimizers = {"critic": self.adam(model.critic, weight_decay=self.config.weight_decay)}

    @classmethod
    def build_model(
        cls, spaces: SpaceSpec, network: NetworkShape, config: Any, *, normalize_observations: bool = False
    ) -> Any:
        """The model for these spaces, with continuous or discrete actions."""
        return MLPFQEModel(
            spaces.obs_dim,
            spaces.action_dim,
            num_actions=spaces.num_actions,
            normalize_observations=normalize_observations,
            **dict(network),
        )

    def gradient_step(self, batch: TransitionBatch, variant: object) -> Terms:
        return self.minimize((batch,), {"critic": self.loss}, tau=self.config.tau)

    def loss(self, batch: TransitionBatch) -> tuple[Tensor, Terms]:
        model = self.model
        with torch.no_grad():
            next_q = model.offset + model.scale * model.target_critic(batch.next_obs, batch.next_actions)[0]
            target = td_target(batch.rewards, batch.dones, next_q, self.config.gamma)
        q = model.critic(batch.obs, batch.actions)[0]
        terms = fqe_terms(q, target, model.low, model.high, model.offset, model.scale)
        return terms["critic_loss"], terms
