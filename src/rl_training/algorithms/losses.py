"""Formulas that several algorithms share.

Tensors in, tensors out; nothing here samples, steps or logs. Ensemble values are `[N, B]`: N critics, B batch.
"""

from __future__ import annotations

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
    """Squared error summed over critics and not halved: `q [N, B]` against `target [B]`."""
    return {"critic_loss": squared_error(q, target), "target_q_mean": target.mean()}


def mean_critic_terms(q: Tensor, target: Tensor) -> dict[str, Tensor]:
    """`critic_terms` with the mean over critics instead of the sum."""
    return {"critic_loss": squared_error(q, target) / len(q), "target_q_mean": target.mean()}


def soft_policy_loss(q: Tensor, logprobs: Tensor, alpha: Tensor | float) -> Tensor:
    """E[alpha log pi(a|s) - Q(s, a)] for a reparameterised action: `q [B]`, `logprobs [B]`."""
    return (alpha * logprobs - q).mean()


def soft_actor_terms(value: Tensor, logprobs: Tensor, alpha: Tensor | float) -> dict[str, Tensor]:
    """Terms of an actor with entropy: `value [B]` and `logprobs [B]` of its own actions."""
    return {"actor_loss": soft_policy_loss(value, logprobs, alpha), "entropy_term": (alpha * logprobs).mean()}


def weighted_cloning_loss(logprobs: Tensor, weights: Tensor) -> Tensor:
    """-E[w log pi(a|s)] at the data's actions."""
    return -(weights * logprobs).mean()


def clipped_exponential(scaled_advantages: Tensor, max_weight: float) -> Tensor:
    """min(exp(x), w): the cap is on the weight, so an overflowing exp is harmless."""
    return scaled_advantages.exp().clamp(max=max_weight)


def cloning_terms(logprobs: Tensor, advantages: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """Advantage-weighted cloning of the data's actions, the actor of AWAC, CRR and IQL; each `[B]`."""
    return {
        "actor_loss": weighted_cloning_loss(logprobs, weights),
        "advantage_mean": advantages.mean(),
        "advantage_weight_mean": weights.mean(),
        "small_weight_share": (weights < 0.01).to(weights.dtype).mean(),
        "behavior_logprob_mean": logprobs.mean(),
    }


def action_error(policy_actions: Tensor, actions: Tensor) -> Tensor:
    """Squared distance to the data's actions, averaged over batch and action dimensions."""
    return (policy_actions - actions).square().mean()
