"""CRR: all four filters by hand, the advantage from both critics' mean, the target from the target policy."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, tensor

from rl_training.algorithms import CRR, crr_loss
from rl_training.algorithms.crr import CRRConfig, advantage, advantage_weights
from tests.helpers import ACTIONS, build, random_batch

Q_DATA = tensor([2.0, 2.0, 0.0])
Q_POLICY = tensor([[1.0, 0.0, 9.0], [1.0, 3.0, 9.0]])  # two samples for each of three states
ADVANTAGES = {"mean": [1.0, 0.5, -9.0], "max": [1.0, -1.0, -9.0]}
CAP = 1.5
WEIGHTS = {
    ("mean", "binary"): [1.0, 1.0, 0.0],
    ("max", "binary"): [1.0, 0.0, 0.0],
    ("mean", "exp"): [CAP, math.exp(0.25), math.exp(-4.5)],
    ("max", "exp"): [CAP, math.exp(-0.5), math.exp(-4.5)],
}


@pytest.mark.parametrize(("advantage_type", "weight_type"), list(WEIGHTS))
def test_the_four_filters(advantage_type: str, weight_type: str) -> None:
    config = CRRConfig.parse(
        {"advantage_type": advantage_type, "weight_type": weight_type, "beta": 2.0, "max_weight": CAP}
    )
    found = advantage(Q_DATA, Q_POLICY, advantage_type)
    torch.testing.assert_close(found, tensor(ADVANTAGES[advantage_type]))
    torch.testing.assert_close(advantage_weights(found, config), tensor(WEIGHTS[advantage_type, weight_type]))


@pytest.mark.parametrize(("advantage_type", "weight_type"), list(WEIGHTS))
def test_the_learner_filters_by_the_mean_of_both_critics(advantage_type: str, weight_type: str) -> None:
    learner, batch = (
        build(CRR, n_action_samples=3, advantage_type=advantage_type, weight_type=weight_type),
        random_batch(),
    )
    noise = torch.randn(4, 16, ACTIONS)

    def mean_q(actions: Tensor) -> Tensor:
        return learner.model.critics(batch.obs, actions).mean(0)

    samples = torch.stack([mean_q(learner.model.actor.sample(batch.obs, draw)) for draw in noise[1:]])
    baseline = samples.mean(0) if advantage_type == "mean" else samples.max(0).values
    advantages = mean_q(batch.actions) - baseline
    weights = (advantages > 0).float() if weight_type == "binary" else advantages.exp().clamp(max=20.0)
    logprobs = learner.model.actor.log_prob(batch.obs, batch.actions)
    loss, terms = learner.actor_loss(learner.outputs(batch, noise[0], noise[1:]))
    torch.testing.assert_close(terms["advantage_mean"], advantages.mean(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(loss, -(weights * logprobs).mean())


def test_the_target_is_the_minimum_at_an_action_of_the_target_policy() -> None:
    learner, batch = build(CRR, gamma=0.9), random_batch()
    noise = torch.randn(3, 16, ACTIONS)
    with torch.no_grad():  # make the two policies different
        learner.model.actor.net.head.bias.add_(1.0)
    _, terms = learner.critic_loss(learner.outputs(batch, noise[0], noise[1:]))

    def target(policy: torch.nn.Module) -> Tensor:
        q = learner.model.target_critics(batch.next_obs, policy.sample(batch.next_obs, noise[0]))
        return (batch.rewards + 0.9 * (1 - batch.dones) * q.min(0).values).mean()

    torch.testing.assert_close(terms["target_q_mean"], target(learner.target_actor))
    assert not torch.isclose(terms["target_q_mean"], target(learner.model.actor))


def test_the_target_policy_follows_by_tau_and_is_in_the_state() -> None:
    learner = build(CRR, tau=0.25)
    before = [p.clone() for p in learner.target_actor.parameters()]
    learner.update(random_batch(), global_step=0)
    for old, new, actor in zip(before, learner.target_actor.parameters(), learner.model.actor.parameters()):
        torch.testing.assert_close(new, old + 0.25 * (actor.detach() - old))
    names = learner.state_dict()["networks"]
    assert {f"target_actor.{name}" for name, _ in learner.target_actor.named_parameters()} <= set(names)


def test_a_filter_that_keeps_nothing_leaves_the_actor_where_it_is() -> None:
    learner, batch = build(CRR, weight_type="binary"), random_batch()
    with torch.no_grad():
        for p in learner.model.critics.parameters():
            p.zero_()  # every advantage is 0, and 0 is not > 0
    before = [p.detach().clone() for p in learner.model.actor.parameters()]
    metrics = learner.update(batch, global_step=0).metrics
    assert metrics["advantage_weight_mean"] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, learner.model.actor.parameters()))


def test_every_term_by_hand() -> None:
    terms = crr_loss(
        {
            "q1_values": tensor([1.0, 2.0]),
            "q2_values": tensor([0.0, 0.0]),
            "target_q_values": tensor([1.0, 0.0]),
            "behavior_logprobs": tensor([-1.0, -3.0]),
            "advantages": tensor([0.5, -1.5]),
            "advantage_weights": tensor([1.0, 0.0]),
        }
    )
    assert terms["critic_loss"] == pytest.approx(2.5)
    assert terms["actor_loss"] == pytest.approx(0.5)
    assert terms["advantage_mean"] == -0.5
    assert terms["behavior_logprob_mean"] == -2


def test_mistakes_are_named() -> None:
    model = build(CRR).model
    with pytest.raises(ValueError, match=r"^advantage_type must be 'mean' or 'max', got 'min'$"):
        CRR(model=model, advantage_type="min")
    with pytest.raises(ValueError, match=r"^n_action_samples must be >= 1, got 0$"):
        CRR(model=model, n_action_samples=0)
