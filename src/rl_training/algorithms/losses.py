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


def soft_actor_terms(value: Tensor, logprobs: Tensor, alpha: Tensor | float) -> dict[str, Tensor]:
    """The terms of an actor with entropy: `value [B]` and `logprobs [B]` of its own actions."""
    return {
        "actor_loss": soft_policy_loss(value, logprobs, alpha),
        "entropy_term": (alpha * logprobs).mean(),
    }


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
    return pooled.sort(dim=-1).values[:, : n * (m - drop_per_net)].contiguous()


def quantile_huber_loss(quantiles: Tensor, atoms: Tensor) -> Tensor:
    """Quantile regression of every critic's `[N, B, M]` on all target `atoms [B, K]`, Huber with kappa 1.

    The mean is taken over all axes, as in the authors' code (the paper sums over quantiles). `atoms` must ascend
    (`truncated_atoms` does): then the sum over K of a piecewise quadratic function needs only prefix sums of the
    atoms and of their squares, taken in float64 around the mean, and the N·B·M·K differences are never formed.
    Value and slope are computed side by side; the returned scalar has both.
    """
    with torch.no_grad():
        value, slope = _quantile_huber_sums(quantiles, atoms)
    count = quantiles.numel() * atoms.shape[-1]
    return (value.sum() + ((quantiles - quantiles.detach()) * slope).sum()) / count


def _quantile_huber_sums(quantiles: Tensor, atoms: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over atoms of the weighted Huber loss of each quantile, and its slope in the quantile: `[N, B, M]`."""
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
