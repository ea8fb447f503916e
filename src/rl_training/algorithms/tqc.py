"""TQC: Truncated Quantile Critics (Kuznetsov et al. 2020).

N critics of M quantiles. The target pools all N·M atoms of the next state, drops the largest
`top_quantiles_to_drop_per_net` per critic, and every critic regresses on all that remain (quantile Huber, mean over
all axes, as the authors' code). The actor maximises the mean of all quantiles, without truncation.
Departures: alpha is fixed unless `alpha: auto`; the actor uses the critics before their step (see `base`); a run
begins with random steps (`learning_starts`; the authors: none).
Axes: quantiles `[N, B, M]`, kept atoms `[B, K]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_training.algorithms.base import ActorStartConfig, Terms
from rl_training.algorithms.losses import soft_actor_terms, td_target
from rl_training.algorithms.soft import SoftActorCritic, SoftConfig
from rl_training.data.transitions import TransitionBatch
from rl_training.errors import ConfigError
from rl_training.models.mlp_sac import MLPTQCModel
from rl_training.settings import NonNegativeInt, PositiveInt


class TQCConfig(ActorStartConfig, SoftConfig):
    """The paper's five critics of 25 quantiles; the authors choose the number to drop for each task."""

    num_critics: PositiveInt = 5
    """size of the ensemble"""
    n_quantiles: PositiveInt = 25
    """quantiles per critic"""
    top_quantiles_to_drop_per_net: NonNegativeInt = 2
    """number of largest target quantiles that are dropped, per critic"""


def truncated_atoms(quantiles: Tensor, drop_per_net: int) -> Tensor:
    """Pool `[N, B, M]` atoms per state, sort, drop the `N * drop_per_net` largest: `[B, K]`."""
    n, batch, m = quantiles.shape
    pooled = quantiles.permute(1, 0, 2).reshape(batch, n * m)
    return pooled.sort(dim=-1).values[:, : n * (m - drop_per_net)].contiguous()


def quantile_huber_loss(quantiles: Tensor, atoms: Tensor) -> Tensor:
    """Quantile regression of every critic's `[N, B, M]` on all target `atoms [B, K]`, Huber with kappa 1.

    The mean is taken over all axes, as in the authors' code (the paper sums over quantiles). `atoms` must ascend
    (those of `truncated_atoms` do): then the sum over K of a piecewise quadratic function needs only prefix sums of
    the atoms and of their squares, taken in float64 around the mean, and the N·B·M·K differences are never formed.
    Value and derivative are computed together; the returned scalar has both.
    """
    with torch.no_grad():
        value, slope = _quantile_huber_sums(quantiles, atoms)
    count = quantiles.numel() * atoms.shape[-1]
    return (value.sum() + ((quantiles - quantiles.detach()) * slope).sum()) / count


def _quantile_huber_sums(quantiles: Tensor, atoms: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over atoms of the weighted Huber loss of each quantile, and its derivative: `[N, B, M]`."""
    n, batch, m = quantiles.shape
    k = atoms.shape[-1]
    centre = atoms.mean(-1, keepdim=True)
    a = (atoms - centre).double()  # [B, K]
    q = (quantiles.permute(1, 0, 2).reshape(batch, n * m) - centre).double()  # [B, N·M]
    edges = torch.searchsorted(a, torch.cat([q - 1.0, q, q + 1.0], dim=-1))
    first = F.pad(a.cumsum(-1), (1, 0)).gather(-1, edges).chunk(3, dim=-1)  # sums of the atoms below each edge
    second = F.pad(a.square().cumsum(-1), (1, 0)).gather(-1, edges).chunk(3, dim=-1)
    edge = edges.chunk(3, dim=-1)

    def near(i: int) -> tuple[Tensor, Tensor]:
        """Atoms within 1 of the quantile, below it (i = 0) or above it (i = 1): quadratic."""
        number = (edge[i + 1] - edge[i]).double()
        linear, square = first[i + 1] - first[i], second[i + 1] - second[i]
        return 0.5 * (square - 2.0 * q * linear + number * q * q), number * q - linear

    near_below, slope_below = near(0)
    near_above, slope_above = near(1)
    far_below = edge[0] * (q - 0.5) - first[0]
    far_above = a.sum(-1, keepdim=True) - first[2] - (k - edge[2]) * (q + 0.5)
    fractions = ((torch.arange(m, device=q.device, dtype=q.dtype) + 0.5) / m).repeat(n)
    value = (1.0 - fractions) * (near_below + far_below) + fractions * (near_above + far_above)
    slope = (1.0 - fractions) * (slope_below + edge[0]) + fractions * (slope_above - (k - edge[2]))

    def back(x: Tensor) -> Tensor:
        return x.reshape(batch, n, m).permute(1, 0, 2).to(quantiles.dtype)

    return back(value), back(slope)


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


class TQC(SoftActorCritic):
    """Truncated quantile critics on an `MLPTQCModel`."""

    name = "tqc"
    Config = TQCConfig
    Model = MLPTQCModel
    fixed_by_model = ("num_critics", "n_quantiles")

    def __init__(self, *, model: MLPTQCModel, **hyperparameters: Any) -> None:
        super().__init__(model=model, **hyperparameters)
        if self.config.top_quantiles_to_drop_per_net >= model.n_quantiles:
            raise ConfigError(
                f"top_quantiles_to_drop_per_net must be < n_quantiles ({model.n_quantiles}), "
                f"got {self.config.top_quantiles_to_drop_per_net}"
            )

    def gradient_step(self, batch: TransitionBatch, variant: object) -> Terms:
        next_noise, noise = self.normal(2, *batch.actions.shape)  # for a' and for a
        objectives = {"critics": self.critic_loss} | ({"actor": self.actor_loss} if variant else {})
        return self.minimize((batch, next_noise, noise), objectives, tau=self.config.tau)

    def critic_loss(self, batch: TransitionBatch, next_noise: Tensor, noise: Tensor) -> tuple[Tensor, Terms]:
        with torch.no_grad():
            next_actions, next_logprobs = self.model.actor.sample_with_logprob(batch.next_obs, next_noise)
            next_quantiles = self.model.target_critics(batch.next_obs, next_actions)  # [N, B, M]
            atoms = truncated_atoms(next_quantiles, self.config.top_quantiles_to_drop_per_net)  # [B, K]
            atoms = self.backed_up(atoms, next_logprobs[:, None])
            target = td_target(batch.rewards[:, None], batch.dones[:, None], atoms, self.config.gamma)
        terms = critic_terms(self.model.critics(batch.obs, batch.actions), target)
        return terms["critic_loss"], terms

    def actor_loss(self, batch: TransitionBatch, next_noise: Tensor, noise: Tensor) -> tuple[Tensor, Terms]:
        actions, logprobs = self.model.actor.sample_with_logprob(batch.obs, noise)
        quantiles = self.model.critics(batch.obs, actions, frozen=True)  # [N, B, M]
        return self.soft_objective(actor_terms, quantiles, logprobs)
