"""EDAC: Ensemble-Diversified Actor Critic (An et al. 2021); with `eta: 0` it is SAC-N from the same paper.

SAC with N critics; their minimum is both the target and the actor's objective. A diversity term allows a smaller N:
the critics' action gradients dQ/da at the data's actions, normalised to length one, are made less similar by
L = E[sum_{i != j} <g_i, g_j>] / (N - 1), weighted by `eta`. The TD loss is summed over critics.
The gradients are forward operations of the model (`Critics.with_action_gradients`), computed in the same pass as Q,
so there is no double backward.
Departures: alpha is fixed unless `alpha: auto` (the authors learn it); PyTorch's initialisation; targets start as
copies. As in the authors' code, all losses are computed before any step.
Axes: critics `[N, B]`, action gradients `[N, B, A]` (`[B, N, A]` at `critic_diversity_loss`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from pydantic import model_validator
from torch import Tensor

from rl_training.algorithms.base import Terms
from rl_training.algorithms.losses import soft_actor_terms, squared_error
from rl_training.algorithms.soft import SoftActorCritic, SoftConfig
from rl_training.data.transitions import TransitionBatch
from rl_training.errors import ConfigError
from rl_training.models.mlp import EnsembleMLP, ThreeLayerConfig
from rl_training.models.mlp_redq import MLPREDQModel
from rl_training.models.policies import OFFLINE_LOG_STD_BOUNDS
from rl_training.settings import NonNegativeFloat, PositiveInt


class EDACConfig(SoftConfig):
    """The paper's ten critics."""

    num_critics: PositiveInt = 10
    """size of the ensemble"""
    eta: NonNegativeFloat = 1.0
    """weight of the diversity term; 0 is SAC-N"""

    @model_validator(mode="after")
    def _diversity_needs_two(self) -> Self:
        if self.eta > 0 and self.num_critics == 1:
            raise ValueError(f"num_critics must be >= 2 unless eta is 0, got 1 with eta {self.eta}")
        return self


def critic_diversity_loss(gradients: Tensor) -> Tensor:
    """Similarity of the critics' action gradients `[B, N, A]`: N if they are equal, 0 if they are orthogonal or if
    there is a single critic.

    The pairwise sum over i != j is |sum_i g_i|^2 - sum_i |g_i|^2, which needs no N x N matrix.
    """
    units = gradients / (torch.linalg.vector_norm(gradients, dim=-1, keepdim=True) + 1e-10)
    together = units.sum(1).square().sum(-1)  # [B]
    alone = units.square().sum((1, 2))  # [B]
    return (together - alone).mean() / max(1, gradients.shape[1] - 1)


def disagreement(q: Tensor) -> Tensor:
    """Standard deviation over critics (0 for a single one), averaged over the batch: `q [N, B]`."""
    return q.std(0, correction=0).mean()


def critic_terms(q: Tensor, target: Tensor, diversity: Tensor, eta: float) -> Terms:
    """`q [N, B]` against `target [B]`, plus `eta` times the scalar `diversity`."""
    error = squared_error(q, target)
    return {
        "critic_loss": error + eta * diversity,
        "critic_mse_loss": error,
        "diversity_loss": diversity,
        "target_q_mean": target.mean(),
        "q_data_std": disagreement(q.detach()),
    }


def actor_terms(q: Tensor, logprobs: Tensor, alpha: Tensor | float) -> Terms:
    """`q [N, B]` at the policy's own actions."""
    return soft_actor_terms(q.amin(0), logprobs, alpha) | {"q_policy_std": disagreement(q.detach())}


def edac_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors: `critic_q_values [B, N] target_q_values diversity_loss eta
    sampled_q_values [B, N] sampled_logprobs alpha`."""
    return critic_terms(
        batch["critic_q_values"].T, batch["target_q_values"], batch["diversity_loss"], batch["eta"]
    ) | actor_terms(batch["sampled_q_values"].T, batch["sampled_logprobs"], batch["alpha"])


class EDAC(SoftActorCritic):
    """Diversified ensembles on an `MLPREDQModel`."""

    name = "edac"
    Config = EDACConfig
    Model = MLPREDQModel
    Network = ThreeLayerConfig
    fixed_by_model = ("num_critics",)

    def __init__(self, *, model: MLPREDQModel, **hyperparameters: Any) -> None:
        super().__init__(model=model, **hyperparameters)
        self.diversifies = self.config.eta > 0
        reason = "unless eta is 0: diversity needs the action gradients of plain ReLU critics"
        if self.diversifies and not isinstance(model.critics.net, EnsembleMLP):
            raise ConfigError(f"network must be 'mlp' {reason}")
        if self.diversifies and model.layer_norm:
            raise ConfigError(f"layer_norm must be false {reason}")
        if self.diversifies and (activation := model.critics.net.activation) != "relu":
            raise ConfigError(f"activation must be 'relu' {reason}, got {activation!r}")

    @classmethod
    def structure(cls, config: Any) -> dict[str, Any]:
        return super().structure(config) | {"eta": config.eta > 0}  # decides which terms an update has

    @classmethod
    def model_options(cls, config: Any) -> dict[str, Any]:
        return {"num_critics": config.num_critics, "log_std_bounds": OFFLINE_LOG_STD_BOUNDS}

    def gradient_step(self, batch: TransitionBatch, variant: object) -> Terms:
        next_noise, noise = self.normal(2, *batch.actions.shape)  # for a' and for a
        objectives = {"critics": self.critic_loss, "actor": self.actor_loss}
        return self.minimize((batch, next_noise, noise), objectives, tau=self.config.tau)

    def critic_loss(self, batch: TransitionBatch, next_noise: Tensor, noise: Tensor) -> tuple[Tensor, Terms]:
        target = self.soft_target(batch, next_noise)
        if self.diversifies:
            q, slopes = self.model.critics.with_action_gradients(batch.obs, batch.actions)  # [N, B], [N, B, A]
            diversity = critic_diversity_loss(slopes.transpose(0, 1))
        else:
            q = self.model.critics(batch.obs, batch.actions)  # [N, B]
            diversity = target.new_zeros(())
        terms = critic_terms(q, target, diversity, self.config.eta)
        return terms["critic_loss"], terms

    def actor_loss(self, batch: TransitionBatch, next_noise: Tensor, noise: Tensor) -> tuple[Tensor, Terms]:
        actions, logprobs = self.model.actor.sample_with_logprob(batch.obs, noise)
        q = self.model.critics(batch.obs, actions, frozen=True)  # [N, B]
        return self.soft_objective(actor_terms, q, logprobs)
