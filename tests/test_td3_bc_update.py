"""TD3+BC: lambda, the cloning term, and a critic update that is TD3's."""

from __future__ import annotations

import pytest
import torch
from torch import tensor

from rl_training.algorithms import TD3, TD3BC, td3_bc_loss
from tests.helpers import build, constant_outputs, random_batch


def test_every_term_by_hand() -> None:
    q = tensor([2.0, -4.0], requires_grad=True)
    terms = td3_bc_loss(
        {
            "q1_values": tensor([1.0, 2.0]),
            "q2_values": tensor([0.0, 0.0]),
            "target_q_values": tensor([1.0, 0.0]),
            "policy_q1": q,
            "policy_actions": tensor([[0.0, 1.0], [1.0, 1.0]]),
            "actions": tensor([[0.0, 0.0], [0.0, 1.0]]),
            "bc_alpha": 6.0,
        }
    )
    assert terms["q_scale"].item() == 2.0  # 6 / mean(|2|, |-4|)
    assert terms["bc_loss"].item() == 0.5  # averaged over the action's dimensions too
    assert terms["actor_loss"].item() == pytest.approx(0.5 - 2.0 * (-1.0))
    assert terms["critic_loss"].item() == pytest.approx((0 + 4) / 2 + (1 + 0) / 2)
    (slope,) = torch.autograd.grad(terms["actor_loss"], q)
    torch.testing.assert_close(slope, tensor([-1.0, -1.0]))  # lambda is a constant: -2 / B each


def test_the_actor_loss_uses_the_first_critic_at_its_own_actions() -> None:
    learner, batch = build(TD3BC, bc_alpha=1.5), random_batch()
    own = learner.model.actor(batch.obs)
    q = learner.model.critics(batch.obs, own)[0]
    expected = ((own - batch.actions) ** 2).mean() - 1.5 * q.mean() / q.abs().mean()
    loss, _ = learner.actor_loss(batch, torch.zeros_like(batch.actions))
    torch.testing.assert_close(loss, expected)


def test_the_actor_uses_the_first_critic_only() -> None:
    learner, batch = build(TD3BC, bc_alpha=1.5), random_batch()
    constant_outputs(learner.model.critics.net, [3.0, -100.0])
    _, terms = learner.actor_loss(batch, torch.zeros_like(batch.actions))
    assert terms["q_scale"].item() == pytest.approx(0.5)
    assert terms["actor_loss"].item() == pytest.approx(terms["bc_loss"].item() - 1.5)


def test_its_critics_are_td3_s_to_the_bit_until_the_actor_moves() -> None:
    ours, td3 = build(TD3BC, policy_delay=3), build(TD3, policy_delay=3)
    for i in range(3):
        for learner in (ours, td3):
            learner.update(random_batch(seed=i), global_step=i)
    for a, b in zip(ours.model.critics.parameters(), td3.model.critics.parameters()):
        assert torch.equal(a, b)
    assert any(not torch.equal(a, b) for a, b in zip(ours.model.actor.parameters(), td3.model.actor.parameters()))


def test_a_small_bc_alpha_is_cloning() -> None:
    learner, batch = build(TD3BC, bc_alpha=1e-3, policy_delay=1, learning_rate=1e-2), random_batch()
    batch = batch._replace(actions=torch.tanh(batch.obs[:, :2]))
    for i in range(300):
        metrics = learner.update(batch, global_step=i).metrics
    assert metrics["bc_loss"].item() < 0.02


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"^bc_alpha must be > 0.0, got 0.0$"):
        TD3BC(model=build(TD3BC).model, bc_alpha=0.0)
