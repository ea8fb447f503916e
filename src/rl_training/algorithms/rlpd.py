"""RLPD: Reinforcement Learning with Prior Data (Ball et al. 2023).

SAC on batches that mix prior data with new experience (see `data.sources.MixedSource`).
With two critics (`MLPSACModel`) the update equals SAC's bit for bit. With more (`MLPREDQModel`) the target is the
minimum over a random subset of `subset_size` target critics, shared by the batch, and the actor maximises the mean
of all, as in REDQ. `layer_norm` puts LayerNorm, with gain and shift per critic, after every hidden layer of the
critics only. The critics' loss is the mean over the ensemble, as in the authors' code; for two critics that is
SAC's half of the sum. The target entropy is -A/2. The actor is updated once per `policy_delay` updates.
Departures: by default two critics, no LayerNorm and a fixed alpha (the authors: ten, LayerNorm, learned); the
temperature loss is in log alpha; the actor uses the critics before their step (see `base`).
Axes: critics `[N, B]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from rl_training.algorithms.base import Terms
from rl_training.algorithms.losses import mean_critic_terms, soft_actor_terms
from rl_training.algorithms.redq import target_subset
from rl_training.algorithms.soft import DelayedActor, DelayedActorConfig, SoftConfig
from rl_training.data.transitions import TransitionBatch
from rl_training.models.mlp import NetworkShape
from rl_training.models.mlp_redq import MLPREDQModel
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.settings import PositiveInt, WholeNumber


class EnsembleConfig(SoftConfig):
    """By default two critics and a target from both."""

    num_critics: Annotated[int, Field(ge=2), WholeNumber] = 2
    """size of the ensemble"""
    subset_size: PositiveInt = 2
    """number of random target critics whose minimum is backed up"""

    @model_validator(mode="after")
    def _subset_fits(self) -> Self:
        if self.subset_size > self.num_critics:
            raise ValueError(f"subset_size must be <= num_critics ({self.num_critics}), got {self.subset_size}")
        return self


class RLPDConfig(DelayedActorConfig, EnsembleConfig):
    """Hyperparameters of RLPD."""

    layer_norm: bool = False
    """LayerNorm after each hidden layer of the critics"""


def rlpd_model(
    obs_dim: int, action_dim: int, hidden_sizes: Sequence[int], num_critics: int = 2, **options: Any
) -> MLPSACModel | MLPREDQModel:
    """SAC's model for two critics, REDQ's (with the authors' Xavier initialisation) for more."""
    if num_critics == 2:
        return MLPSACModel(obs_dim, action_dim, hidden_sizes, **options)
    return MLPREDQModel(obs_dim, action_dim, hidden_sizes, num_critics, **{"init": "xavier"} | options)


def actor_terms(q: Tensor, logprobs: Tensor, alpha: Tensor | float) -> Terms:
    """`q [N, B]` at the policy's own actions: the minimum of two critics (SAC) counts, the mean of more (REDQ)."""
    return soft_actor_terms(q.amin(0) if len(q) == 2 else q.mean(0), logprobs, alpha)


def rlpd_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term, for two critics, from precomputed tensors: `q1_values q2_values target_q_values
    sampled_logprobs sampled_q1 sampled_q2 alpha`."""
    q = torch.stack([batch["q1_values"], batch["q2_values"]])
    sampled_q = torch.stack([batch["sampled_q1"], batch["sampled_q2"]])
    return mean_critic_terms(q, batch["target_q_values"]) | actor_terms(
        sampled_q, batch["sampled_logprobs"], batch["alpha"]
    )


class RLPD(DelayedActor):
    """SAC with prior data on an `MLPSACModel`, or on an `MLPREDQModel` for more than two critics."""

    name = "rlpd"
    Config = RLPDConfig
    Model = staticmethod(rlpd_model)
    Network = NetworkShape  # `layer_norm` is a hyperparameter here
    fixed_by_model = ("num_critics", "layer_norm")
    entropy_per_dimension = -0.5

    @property
    def summary(self) -> str:
        config = self.config
        critics = f"{config.num_critics} critics {'with' if config.layer_norm else 'without'} LayerNorm"
        alpha = "learned alpha" if config.alpha == "auto" else "fixed alpha"
        if config.num_critics > 2 and config.layer_norm and config.alpha == "auto":
            return f"RLPD as in its paper: {critics}, {alpha}"
        return f"RLPD, the plain one: SAC with prior data ({critics}, {alpha}); the paper's is rlpd/paper"

    def gradient_step(self, batch: TransitionBatch, variant: object) -> Terms:
        next_noise, noise = self.normal(2, *batch.actions.shape)  # for a' and for a
        objectives = {"critics": self.critic_loss} | ({"actor": self.actor_loss} if variant else {})
        return self.minimize((batch, next_noise, noise, target_subset(self)), objectives, tau=self.config.tau)

    def critic_loss(
        self, batch: TransitionBatch, next_noise: Tensor, noise: Tensor, subset: Tensor | None
    ) -> tuple[Tensor, Terms]:
        q = self.model.critics(batch.obs, batch.actions)  # [N, B]
        terms = mean_critic_terms(q, self.soft_target(batch, next_noise, subset))
        return terms["critic_loss"], terms

    def actor_loss(
        self, batch: TransitionBatch, next_noise: Tensor, noise: Tensor, subset: Tensor | None
    ) -> tuple[Tensor, Terms]:
        actions, logprobs = self.model.actor.sample_with_logprob(batch.obs, noise)
        q = self.model.critics(batch.obs, actions, frozen=True)  # [N, B]
        return self.soft_objective(actor_terms, q, logprobs)
