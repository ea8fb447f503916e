"""AWAC: the advantage, both weightings, and log-probabilities of data actions up to the bound."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, tensor

from rl_training.algorithms import AWAC, awac_loss
from rl_training.algorithms.awac import AWACConfig, advantage_weights
from tests.helpers import ACTIONS, OBS, build, member, random_batch


def test_softmax_weights_sum_to_the_batch_and_ignore_a_shift() -> None:
    advantages = 5 * torch.randn(32)
    config = AWACConfig(awac_lambda=0.5, weighting="softmax")
    weights = advantage_weights(advantages, config)
    assert weights.sum() == pytest.approx(32.0, rel=1e-5)
    torch.testing.assert_close(weights, advantage_weights(advantages + 100, config), rtol=1e-4, atol=1e-5)
    ratio = weights[0] / weights[1]
    assert float(ratio.log()) == pytest.approx(float(advantages[0] - advantages[1]) / 0.5, rel=1e-4)


def test_exponential_weights_are_capped_even_where_exp_overflows() -> None:
    weights = advantage_weights(
        tensor([-2.0, 0.0, 2.0, 1e6]), AWACConfig(awac_lambda=2.0, max_advantage_weight=2.5)
    )
    torch.testing.assert_close(weights, tensor([math.exp(-1), 1.0, 2.5, 2.5]))


def test_the_actor_clones_by_the_advantage_over_its_own_action() -> None:
    learner, batch = build(AWAC, awac_lambda=0.7), random_batch()
    noise = torch.randn(2, 16, ACTIONS)
    nets = [member(learner.model.critics.net, i) for i in range(2)]

    def minimum(actions: Tensor) -> Tensor:
        return torch.stack([net(torch.cat([batch.obs, actions], -1))[:, 0] for net in nets]).min(0).values

    own = learner.model.actor.sample(batch.obs, noise[1])
    advantages = minimum(batch.actions) - minimum(own)
    logprobs = learner.model.actor.log_prob(batch.obs, batch.actions)
    weights = (advantages / 0.7).exp().clamp(max=100.0)
    loss, terms = learner.actor_loss(learner.outputs(batch, *noise))
    torch.testing.assert_close(terms["advantage_mean"], advantages.mean(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(terms["advantage_weight_mean"], weights.mean())
    torch.testing.assert_close(loss, -(weights.detach() * logprobs).mean())
    reference = torch.autograd.grad(-(weights.detach() * logprobs).mean(), list(learner.model.actor.parameters()))
    for ours, theirs in zip(torch.autograd.grad(loss, list(learner.model.actor.parameters())), reference):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_the_target_is_the_minimum_at_a_policy_action_without_entropy() -> None:
    learner, batch = build(AWAC, gamma=0.9), random_batch()
    noise = torch.randn(2, 16, ACTIONS)
    own = learner.model.actor.sample(batch.next_obs, noise[0])
    q = learner.model.target_critics(batch.next_obs, own).min(0).values
    target = batch.rewards + 0.9 * (1 - batch.dones) * q
    _, terms = learner.critic_loss(learner.outputs(batch, *noise))
    torch.testing.assert_close(terms["target_q_mean"], target.mean())
    errors = (learner.model.critics(batch.obs, batch.actions) - target) ** 2
    torch.testing.assert_close(terms["critic_loss"], errors.mean(1).sum())


def test_every_term_by_hand() -> None:
    terms = awac_loss(
        {
            "q1_values": tensor([1.0, 2.0]),
            "q2_values": tensor([0.0, 0.0]),
            "target_q_values": tensor([1.0, 0.0]),
            "behavior_logprobs": tensor([-1.0, -3.0]),
            "advantages": tensor([0.5, -0.5]),
            "advantage_weights": tensor([2.0, 0.5]),
        }
    )
    assert terms["critic_loss"] == pytest.approx((0 + 4) / 2 + (1 + 0) / 2)
    assert terms["actor_loss"] == pytest.approx((2.0 + 1.5) / 2)
    assert terms["advantage_mean"] == 0
    assert terms["advantage_weight_mean"] == 1.25
    assert terms["behavior_logprob_mean"] == -2


def test_log_probabilities_are_finite_at_the_bound_and_accurate_before_it() -> None:
    """In float32, within 1e-4 of float64 for the same actions up to 1 - 1e-5."""
    model = build(AWAC, policy_distribution="tanh").model
    limit = 1.0 - 1e-5
    levels = tensor([0.0, 0.5, 0.9, 0.999, 0.9999, limit])
    actions = torch.cat([torch.stack([a * levels, b * levels], -1) for a in (-1, 1) for b in (-1, 1)])
    obs = torch.randn(len(actions), OBS)
    for log_std in (-5.0, -1.0, 2.0):
        head = model.actor.net.head
        with torch.no_grad():
            head.weight[..., ACTIONS:] = 0.0
            head.bias[..., ACTIONS:] = log_std
        found = model.action_logprobs(obs, actions)
        mean, spread = (part.double() for part in model.actor(obs))
        u = torch.atanh(actions.double())
        normal = torch.distributions.Normal(mean, spread.exp()).log_prob(u)
        exact = (normal - torch.log1p(-(actions.double() ** 2))).sum(-1)
        torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)
        at_bound = model.action_logprobs(obs, actions.sign())
        assert at_bound.isfinite().all()


def test_an_update_on_actions_at_the_bound_stays_finite() -> None:
    learner, batch = build(AWAC), random_batch()
    for i in range(3):
        learner.update(batch._replace(actions=batch.actions.sign()), global_step=i)
    assert all(p.isfinite().all() for p in learner.model.parameters())


def test_mistakes_are_named() -> None:
    model = build(AWAC).model
    with pytest.raises(ValueError, match=r"^weighting must be 'exp' or 'softmax', got 'max'$"):
        AWAC(model=model, weighting="max")
    with pytest.raises(ValueError, match=r"^awac_lambda must be > 0.0, got 0$"):
        AWAC(model=model, awac_lambda=0)
