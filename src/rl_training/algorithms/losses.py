"""One formula each, shared by the algorithms. Tensors in, tensors out; nothing here samples, steps or logs.

Axes: N critics, B batch, A action dimensions, M quantiles, K pooled atoms. Ensemble values are `[N, B]`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def td_target(rewards: Tensor, dones: Tensor, next_values: Tensor, gamma: float) -> Tensor:
    """r + gamma (1 - d) V(s'): a time limit (d = 0) bootstraps, a termination does not."""
    return rewards + gamma * (1.0 - dones) * next_values


def soft_value(q: Tensor, logprobs: Tensor, alpha: Tensor | float) -> Tensor:
    """Q - alpha log pi."""
    return q - alpha * logprobs


def squared_error(q: Tensor, target: Tensor) -> Tensor:
    """Sum over critics of the mean squared error over the batch: `q [N, B]`, `target [B]`."""
    return (q - target).square().mean(-1).sum(0)


def soft_policy_loss(q: Tensor, logprobs: Tensor, alpha: Tensor | float) -> Tensor:
    """E[alpha log pi(a|s) - Q(s, a)] for a reparameterised action: `q [B]`, `logprobs [B]`."""
    return (alpha * logprobs - q).mean()


def temperature_loss(log_alpha: Tensor, logprobs: Tensor, target_entropy: float) -> Tensor:
    """-log alpha (log pi + H): raises alpha while the policy's entropy is below H."""
    return -log_alpha * (logprobs.detach() + target_entropy).mean()


def weighted_cloning_loss(logprobs: Tensor, weights: Tensor) -> Tensor:
    """-E[w log pi(a|s)] at the data's actions."""
    return -(weights * logprobs).mean()


def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    """E[|tau - 1(u < 0)| u^2]: pulls V towards the upper expectile of Q."""
    weight = torch.where(difference > 0, expectile, 1.0 - expectile)
    return (weight * difference.square()).mean()


def subset_minimum(q: Tensor, indices: Tensor) -> Tensor:
    """Minimum over the chosen critics: `q [N, B]`, `indices [M]` -> `[B]`."""
    return q.index_select(0, indices).amin(0)


def truncated_atoms(quantiles: Tensor, drop_per_net: int) -> Tensor:
    """Pool `[N, B, M]` atoms per state, sort, drop the `N * drop_per_net` largest: `[B, K]`."""
    n, batch, m = quantiles.shape
    pooled = quantiles.permute(1, 0, 2).reshape(batch, n * m)
    return pooled.sort(dim=-1).values[:, : n * (m - drop_per_net)]


def quantile_huber_loss(quantiles: Tensor, atoms: Tensor) -> Tensor:
    """Quantile regression of every critic's `[N, B, M]` on all target `atoms [B, K]`, Huber with kappa 1.

    The mean is taken over all axes, as in the authors' code (the paper sums over quantiles).
    """
    m = quantiles.shape[-1]
    fractions = (torch.arange(m, device=quantiles.device, dtype=quantiles.dtype) + 0.5) / m
    difference = atoms[None, :, None, :] - quantiles[..., None]  # [N, B, M, K]
    size = difference.abs()
    huber = torch.where(size > 1.0, size - 0.5, 0.5 * difference.square())
    below = (difference.detach() < 0).to(quantiles.dtype)
    return ((fractions[:, None] - below).abs() * huber).mean()


def huber_loss(q: Tensor, target: Tensor) -> Tensor:
    """Smooth L1 with its corner at 1."""
    return F.smooth_l1_loss(q, target)
