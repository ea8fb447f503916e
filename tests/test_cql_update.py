"""CQL: the penalty against a sum over actions one by one, the multiplier's sign, the cloning phase."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, tensor

from rl_training.algorithms import CQL, cql_loss
from rl_training.algorithms.cql import conservative_gap, critic_terms
from tests.helpers import ACTIONS, BATCH, CONTINUOUS, build, double, member, random_batch


def draws(n: int, seed: int = 3) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    noise = torch.randn(1 + n, 2, BATCH, ACTIONS, generator=g, dtype=torch.float64)
    return noise, 2 * torch.rand(n, BATCH, ACTIONS, generator=g, dtype=torch.float64) - 1


def test_the_gap_by_hand() -> None:
    sampled = tensor([[[1.0], [2.0]]])  # one critic, two actions, one state
    gap = conservative_gap(sampled, tensor([[0.0], [-1.0]]), tensor([[0.5]]))
    assert gap.item() == pytest.approx(math.log(math.exp(1.0) + math.exp(3.0)) - 0.5)


def test_the_penalty_is_the_sum_over_single_actions() -> None:
    """Every critic a network of its own, every action alone, exponentials summed as the paper writes them."""
    n = 3
    learner, batch = build(CQL, n_actions=n, cql_alpha=2.0, gamma=0.9), double(random_batch())
    learner.model.double()
    noise, uniform = draws(n)
    _, terms = learner.critic_loss(batch, noise, noise[0, 0], uniform)
    actor, penalty, error = learner.model.actor, 0.0, 0.0
    with torch.no_grad():
        next_action = actor.sample(batch.next_obs, noise[0, 1])
        next_q = learner.model.target_critics(batch.next_obs, next_action).min(0).values
        y = batch.rewards + 0.9 * (1 - batch.dones) * next_q  # no entropy in the backup
        for critic in (member(learner.model.critics.net, i) for i in range(2)):

            def q(actions: Tensor, critic: Any = critic) -> Tensor:
                return critic(torch.cat([batch.obs, actions], -1))[:, 0]

            total = torch.zeros(BATCH, dtype=torch.float64)
            for k in range(n):
                total += q(uniform[k]).exp() / 0.5**ACTIONS
                for states, draw in ((batch.obs, noise[k + 1, 0]), (batch.next_obs, noise[k + 1, 1])):
                    actions, logprobs = actor.sample_with_logprob(states, draw)
                    total += q(actions).exp() / logprobs.exp()
            penalty += 2.0 * float((total.log() - q(batch.actions)).mean())
            error += float(((q(batch.actions) - y) ** 2).mean())
    assert terms["conservative_loss"].item() == pytest.approx(penalty, rel=1e-6)
    assert terms["critic_mse_loss"].item() == pytest.approx(error, rel=1e-6)
    assert terms["critic_loss"].item() == pytest.approx(error + penalty, rel=1e-6)


def test_the_critics_loss_leaves_the_policy_alone() -> None:
    learner, batch = build(CQL), double(random_batch())
    learner.model.double()
    noise, uniform = draws(2)
    loss, _ = learner.critic_loss(batch, noise, noise[0, 0], uniform)
    reached = torch.autograd.grad(loss, list(learner.model.actor.parameters()), allow_unused=True)
    assert all(gradient is None for gradient in reached)


def test_the_multiplier_rises_above_the_threshold_and_falls_below() -> None:
    q, target = torch.zeros(2, 4), torch.zeros(4)
    for gap, sign in ((3.0, -1.0), (1.0, 1.0)):  # 2 * gap against a threshold of 4
        log_value = tensor(0.0, requires_grad=True)
        gaps = torch.full((2,), gap, requires_grad=True)
        terms = critic_terms(q, target, gaps, 2.0, log_value.exp(), 4.0)
        assert terms["multiplier_loss"].item() == pytest.approx(-0.5 * 2 * (2 * gap - 4))
        assert terms["conservative_loss"].item() == pytest.approx(2 * (2 * gap - 4))
        (slope,) = torch.autograd.grad(terms["multiplier_loss"], log_value, retain_graph=True)
        assert slope.sign() == sign  # descending a negative slope raises the multiplier
        (none,) = torch.autograd.grad(terms["critic_loss"], log_value, allow_unused=True)
        assert none is None, "the critics take the multiplier as a constant"


@pytest.mark.parametrize(("threshold", "rises"), [(-1e3, True), (1e3, False)])
def test_the_multiplier_is_learned_with_the_critics(threshold: float, rises: bool) -> None:
    learner = build(CQL, lagrange_threshold=threshold)
    for i in range(3):
        metrics = learner.update(random_batch(seed=i), global_step=i).metrics
    assert (learner.multiplier().item() > 1.0) == rises
    assert metrics["multiplier"].item() != 1.0
    assert any(p is learner.multiplier.log_value for p in learner.optimizers["critics"].parameters)
    assert "multiplier.log_value" in learner.state_dict()["networks"]


def test_the_multiplier_has_a_ceiling() -> None:
    learner = build(CQL, lagrange_threshold=1.0)
    with torch.no_grad():
        learner.multiplier.log_value.fill_(50.0)
    assert learner.multiplier().item() == 1e6


def test_the_actor_clones_for_bc_steps_and_then_climbs() -> None:
    learner, batch = build(CQL, bc_steps=2, alpha=0.5), random_batch()
    noise, uniform = (t.float() for t in draws(2))
    actions, logprobs = learner.model.actor.sample_with_logprob(batch.obs, noise[0, 0])
    cloned = learner.model.actor.log_prob(batch.obs, batch.actions)
    q = learner.model.critics(batch.obs, actions).min(0).values
    torch.testing.assert_close(
        learner.cloning_loss(batch, noise, noise[0, 0], uniform)[0], (0.5 * logprobs - cloned).mean()
    )
    torch.testing.assert_close(
        learner.actor_loss(batch, noise, noise[0, 0], uniform)[0], (0.5 * logprobs - q).mean()
    )
    variants = []
    for i in range(4):
        variants.append(learner.variant(learner.updates))
        learner.update(batch, global_step=i)
    assert variants == [True, True, False, False]


def test_entropy_enters_the_backup_only_when_asked() -> None:
    batch = random_batch(done=0.0)
    noise, uniform = (t.float() for t in draws(2))
    means = [
        build(CQL, backup_entropy=flag, gamma=1.0)
        .critic_loss(batch, noise, noise[0, 0], uniform)[1]["target_q_mean"]
        .item()
        for flag in (True, False)
    ]
    _, logprobs = build(CQL).model.actor.sample_with_logprob(batch.next_obs, noise[0, 1])
    assert means[0] - means[1] == pytest.approx(-0.2 * logprobs.mean().item(), abs=1e-5)


def test_conservatism_lowers_what_the_data_does_not_hold() -> None:
    """All data in one corner with nothing to choose by: only a conservative critic prefers that corner."""
    batch = random_batch(done=1.0)._replace(actions=torch.full((BATCH, ACTIONS), 0.8), rewards=torch.zeros(BATCH))
    preference = {}
    for weight in (0.0, 5.0):
        learner = build(CQL, cql_alpha=weight, n_actions=5, learning_rate=3e-3)
        for i in range(60):
            learner.update(batch, global_step=i)
        with torch.no_grad():
            here, there = (learner.model.critics(batch.obs, sign * batch.actions).mean() for sign in (1, -1))
        preference[weight] = (here - there).item()
    assert abs(preference[0.0]) < 0.5
    assert preference[5.0] > 2.0


def test_every_term_by_hand() -> None:
    terms = cql_loss(
        {
            "q1_values": tensor([1.0]),
            "q2_values": tensor([0.0]),
            "target_q_values": tensor([2.0]),
            "q1_candidates": tensor([[0.0], [0.0]]),
            "q2_candidates": tensor([[1.0], [1.0]]),
            "candidate_log_densities": tensor([[0.0], [0.0]]),
            "cql_alpha": 3.0,
            "sampled_q1": tensor([4.0]),
            "sampled_q2": tensor([5.0]),
            "sampled_logprobs": tensor([2.0]),
            "alpha": 0.5,
        }
    )
    penalty = 3 * (math.log(2) - 1) + 3 * (1 + math.log(2) - 0)
    assert terms["conservative_loss"].item() == pytest.approx(penalty)
    assert terms["critic_loss"].item() == pytest.approx(1 + 4 + penalty)
    assert terms["actor_loss"].item() == pytest.approx(0.5 * 2 - 4)


def test_the_authors_shapes_and_rates_are_the_default() -> None:
    assert CQL.Network().hidden_sizes == (256, 256, 256)
    learner = build(CQL)
    assert learner.model.actor.log_std_bounds == (-5.0, 2.0)
    rates = {name: optimizer.base_learning_rate for name, optimizer in learner.optimizers.items()}
    assert rates == {"critics": 3e-4, "actor": 1e-4}
    assert CONTINUOUS.action_dim == learner.model.action_dim
    with pytest.raises(ValueError, match=r"^n_actions must be >= 1, got 0$"):
        CQL(model=learner.model, n_actions=0)
