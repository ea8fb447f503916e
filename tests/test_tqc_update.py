"""TQC: one pooled mixture, its top cut off for the target and kept for the actor."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from rl_training.algorithms import TQC, tqc_loss
from rl_training.models import MLPTQCModel
from tests.helpers import ACTIONS, OBS, constant_outputs, random_batch, same_noise


def learner(num_critics: int = 2, n_quantiles: int = 3, **options: Any) -> TQC:
    agent = TQC(model=MLPTQCModel(OBS, ACTIONS, (16,), num_critics, n_quantiles), **options)
    agent.seed(3)
    return agent


def brute_force(current: torch.Tensor, atoms: torch.Tensor) -> float:
    """Quantile Huber regression written as a sum: `current [B, N, M]`, `atoms [B, K]`."""
    b_, n_, m_ = current.shape
    total = 0.0
    for b, n, m, k in itertools.product(range(b_), range(n_), range(m_), range(atoms.shape[1])):
        u = float(atoms[b, k] - current[b, n, m])
        weight = abs((m + 0.5) / m_ - (u < 0))
        total += weight * (0.5 * u * u if abs(u) <= 1 else abs(u) - 0.5)
    return total / (b_ * n_ * m_ * atoms.shape[1])


@pytest.mark.parametrize("drop", [0, 1, 2])
def test_the_critic_loss_by_brute_force(drop: int) -> None:
    """With nothing dropped this is the plain quantile target over all atoms."""
    agent = learner(top_quantiles_to_drop_per_net=drop, gamma=0.9, alpha=0.3)
    torch.nn.init.normal_(agent.model.target_critics.net.head.bias)
    batch = random_batch()
    with torch.no_grad():
        noise = next(same_noise(3, 2, 16, ACTIONS))[0]
        action, logprobs = agent.model.actor.sample_with_logprob(batch.next_obs, noise)
        mixture = agent.model.target_critics(batch.next_obs, action).transpose(0, 1).reshape(16, 6)
        kept = mixture.sort(1).values[:, : 6 - 2 * drop] - 0.3 * logprobs[:, None]
        atoms = batch.rewards[:, None] + 0.9 * (1 - batch.dones)[:, None] * kept
        current = agent.model.quantiles(batch.obs, batch.actions)
    metrics = agent.update(batch, global_step=0).metrics
    assert float(metrics["critic_loss"]) == pytest.approx(brute_force(current, atoms), rel=1e-5)
    assert float(metrics["target_q_mean"]) == pytest.approx(atoms.mean().item(), abs=1e-5)


def test_truncation_is_over_the_pooled_mixture_not_per_critic() -> None:
    agent = learner(top_quantiles_to_drop_per_net=1, gamma=1.0, backup_entropy=False)
    constant_outputs(agent.model.target_critics.net, [[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    batch = random_batch(done=0.0)._replace(rewards=torch.zeros(16))
    metrics = agent.update(batch, global_step=0).metrics
    assert float(metrics["target_q_mean"]) == pytest.approx((1 + 2 + 3 + 10) / 4)  # per critic: 33 / 4


def test_the_actor_sees_every_quantile() -> None:
    agent = learner(top_quantiles_to_drop_per_net=2)
    constant_outputs(agent.model.critics.net, [[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    metrics = agent.update(random_batch(), global_step=0).metrics
    assert float(metrics["actor_loss"]) == pytest.approx(float(metrics["entropy_term"]) - 66 / 6, rel=1e-5)


@pytest.mark.parametrize("num_critics", [1, 3])
def test_a_single_quantile_is_a_value(num_critics: int) -> None:
    """With one quantile, fraction 1/2, the loss is half of Huber's."""
    agent = learner(num_critics, 1, top_quantiles_to_drop_per_net=0, gamma=0.0)
    batch = random_batch()
    q = agent.model.quantiles(batch.obs, batch.actions)[..., 0].detach()
    goal = batch.rewards[:, None].expand(16, num_critics)
    metrics = agent.update(batch, global_step=0).metrics
    huber = torch.nn.functional.smooth_l1_loss(q, goal)
    assert float(metrics["critic_loss"]) == pytest.approx(0.5 * huber.item(), rel=1e-5)


def test_settings_that_contradict_the_model_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^n_quantiles must equal the model's 3, got 4$"):
        TQC(model=MLPTQCModel(OBS, ACTIONS, (16,), 2, 3), n_quantiles=4)
    with pytest.raises(ValueError, match=r"^top_quantiles_to_drop_per_net must be < n_quantiles \(3\), got 3$"):
        learner(top_quantiles_to_drop_per_net=3)


def test_loss_helper_is_the_same_formula() -> None:
    current, atoms = torch.randn(4, 2, 3), torch.randn(4, 5).sort(-1).values
    sampled, logprobs = torch.randn(4, 2, 3), torch.randn(4)
    terms = tqc_loss(
        {
            "quantiles": current,
            "target_atoms": atoms,
            "sampled_quantiles": sampled,
            "sampled_logprobs": logprobs,
            "alpha": 0.5,
        }
    )
    assert float(terms["critic_loss"]) == pytest.approx(brute_force(current, atoms), rel=1e-5)
    assert float(terms["actor_loss"]) == pytest.approx(float(0.5 * logprobs.mean() - sampled.mean()), abs=1e-6)
    assert float(terms["entropy_term"]) == pytest.approx(float(0.5 * logprobs.mean()), abs=1e-6)
