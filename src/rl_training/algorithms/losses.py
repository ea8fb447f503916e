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


def critic_terms(q: Tensor, target: Tensor) -> dict[str, Tensor]:
    """A critics' loss without halves or means over critics: `q [N, B]` against `target [B]`."""
    return {"critic_loss": squared_error(q, target), "target_q_mean": target.mean()}


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


def clipped_exponential(scaled_advantages: Tensor, max_weight: float) -> Tensor:
    """min(exp(x), w): the cap is on the weight, so an overflowing exp is harmless."""
    return scaled_advantages.exp().clamp(max=max_weight)


def cloning_terms(logprobs: Tensor, advantages: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """Advantage-weighted cloning of the data's actions, the actor of AWAC, CRR and IQL; each `[B]`."""
    return {
        "actor_loss": weighted_cloning_loss(logprobs, weights),
        "advantage_mean": advantages.mean(),
        "advantage_weight_mean": weights.mean(),
        "behavior_logprob_mean": logprobs.mean(),
    }


def conservative_gap(q_sampled: Tensor, log_densities: Tensor, q_data: Tensor) -> Tensor:
    """CQL(H)'s E_s[log sum_k exp(Q(s, a_k) - log p(a_k))] - E[Q(s, a)], per critic.

    `q_sampled [N, K, B]` at K sampled actions, `log_densities [K, B]` of what drew them, `q_data [N, B]` -> `[N]`.
    The constant log K is not subtracted, as in the authors' code.
    """
    return ((q_sampled - log_densities).logsumexp(1) - q_data).mean(-1)


def action_error(policy_actions: Tensor, actions: Tensor) -> Tensor:
    """Squared distance to the data's actions, averaged over batch and action dimensions."""
    return (policy_actions - actions).square().mean()
