"""TQC: Truncated Quantile Critics (Kuznetsov et al. 2020).

N critics of M quantiles. The target pools all N·M atoms of the next state, drops the largest
`top_quantiles_to_drop_per_net` per critic, and every critic regresses on all that remain (quantile Huber, mean over
all axes, as the authors' code). The actor maximises the mean of all quantiles, without truncation.
Departures: alpha is fixed unless `alpha: auto`; the actor sees the critics before their step (see `base`); some
random steps come first (`learning_starts`; the authors: none).
Axes: quantiles `[N, B, M]`, kept atoms `[B, K]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import Learner, Terms, check_num_critics
from rl_training.algorithms.losses import (
    quantile_huber_loss,
    soft_actor_terms,
    soft_value,
    td_target,
    truncated_atoms,
)
from rl_training.algorithms.temperature import SoftConfig, Temperature
from rl_training.data.transitions import TransitionBatch
from rl_training.errors import ConfigError
from rl_training.models.mlp_tqc import MLPTQCModel
from rl_training.settings import NonNegativeInt, PositiveInt


class TQCConfig(SoftConfig):
    """The paper's five critics of 25 quantiles; the number to drop is chosen per task."""

    num_critics: PositiveInt = 5
    """size of the ensemble"""
    n_quantiles: PositiveInt = 25
    """quantiles per critic"""
    top_quantiles_to_drop_per_net: NonNegativeInt = 2
    """largest target quantiles dropped, per critic"""


def critic_terms(quantiles: Tensor, atoms: Tensor) -> Terms:
    """`quantiles [N, B, M]` against `atoms [B, K]`."""
    return {"critic_loss": quantile_huber_loss(quantiles, atoms), "target_q_mean": atoms.mean()}


def actor_terms(quantiles: Tensor, logprobs: Tensor, alpha: Tensor | float) -> Terms:
    """`quantiles [N, B, M]` at the policy's own actions."""
    return soft_actor_terms(quantiles.mean((0, 2)), logprobs, alpha)


def tqc_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors: `quantiles [B, N, M] target_atoms [B, K] (ascending) sampled_quantiles
    [B, N, M] sampled_logprobs alpha`."""
    return critic_terms(batch["quantiles"].transpose(0, 1), batch["target_atoms"]) | actor_terms(
        batch["sampled_quantiles"].transpose(0, 1), batch["sampled_logprobs"], batch["alpha"]
    )


class TQC(Learner):
    """Truncated quantile critics on an `MLPTQCModel`."""

    name = "tqc"
    Config = TQCConfig
    Model = MLPTQCModel

    def __init__(self, *, model: MLPTQCModel, **hyperparameters: Any) -> None:
        given = {"num_critics": model.num_critics, "n_quantiles": model.n_quantiles} | hyperparameters
        super().__init__(model=model, **given)
        check_num_critics(self.config, model)
        if self.config.n_quantiles != model.n_quantiles:
            raise ConfigError(
                f"n_quantiles must equal the model's {model.n_quantiles}, got {self.config.n_quantiles}"
            )
        if self.config.top_quantiles_to_drop_per_net >= model.n_quantiles:
            raise ConfigError(
                f"top_quantiles_to_drop_per_net must be < n_quantiles ({model.n_quantiles}), "
                f"got {self.config.top_quantiles_to_drop_per_net}"
            )
        self.temperature = Temperature(self.config, target_entropy=-float(model.action_dim)).to(self.device)
        self.optimizers = {
            "critics": self.adam(model.critics),
            "actor": self.adam(model.actor, self.temperature),
        }

    @classmethod
    def model_options(cls, config: Any) -> dict[str, Any]:
        return {"num_critics": config.num_critics, "n_quantiles": config.n_quantiles}

    def modules(self) -> dict[str, torch.nn.Module]:
        return {"model": self.model, "temperature": self.temperature}

    def gradient_step(self, batch: TransitionBatch, phase: object) -> Terms:
        noise = self.normal(2, *batch.actions.shape)  # for a' and for a
        return self.minimize(
            (batch, noise),
            {"critics": self.critic_loss, "actor": self.actor_loss},
            {self.model.target_critics: self.model.critics},
            tau=self.config.tau,
        )

    def critic_loss(self, batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Terms]:
        with torch.no_grad():
            next_actions, next_logprobs = self.model.actor.sample_with_logprob(batch.next_obs, noise[0])
            next_quantiles = self.model.target_critics(batch.next_obs, next_actions)  # [N, B, M]
            atoms = truncated_atoms(next_quantiles, self.config.top_quantiles_to_drop_per_net)  # [B, K]
            if self.config.backup_entropy:
                atoms = soft_value(atoms, next_logprobs[:, None], self.temperature.alpha())
            target = td_target(batch.rewards[:, None], batch.dones[:, None], atoms, self.config.gamma)
        terms = critic_terms(self.model.critics(batch.obs, batch.actions), target)
        return terms["critic_loss"], terms

    def actor_loss(self, batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Terms]:
        actions, logprobs = self.model.actor.sample_with_logprob(batch.obs, noise[1])
        quantiles = self.model.critics(batch.obs, actions, frozen=True)  # [N, B, M]
        alpha = self.temperature.alpha()
        terms = actor_terms(quantiles, logprobs, alpha) | {"alpha": alpha}
        return terms["actor_loss"] + self.temperature.loss(logprobs), terms
