"""IQL: the expectile, the weights, all terms from before the step, and a Gaussian that is not squashed."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.distributions import Normal

from rl_training.algorithms import IQL, iql_loss
from tests.helpers import ACTIONS, OBS, build, random_batch


def test_every_term_by_hand() -> None:
    advantages = tensor([1.0, -2.0], requires_grad=True)
    terms = iql_loss(
        {
            "q1_values": tensor([1.0, 2.0]),
            "q2_values": tensor([0.0, 0.0]),
            "target_q_values": tensor([1.0, 0.0]),
            "advantages": advantages,
            "behavior_logprobs": tensor([-1.0, -3.0], requires_grad=True),
            "expectile": 0.8,
            "beta": 3.0,
            "max_weight": 10.0,
        }
    )
    weights = [10.0, math.exp(-6.0)]  # exp(3) is above the cap
    assert terms["critic_loss"].item() == pytest.approx((0 + 4) / 2 + (1 + 0) / 2)
    assert terms["value_loss"].item() == pytest.approx((0.8 * 1 + 0.2 * 4) / 2)
    assert terms["actor_loss"].item() == pytest.approx((weights[0] * 1 + weights[1] * 3) / 2)
    assert terms["advantage_weight_mean"].item() == pytest.approx(sum(weights) / 2)
    (slope,) = torch.autograd.grad(terms["actor_loss"], advantages, allow_unused=True)
    assert slope is None, "the actor's weights are constants"


def test_the_three_losses_are_those_of_the_paper_before_any_step() -> None:
    learner, batch = build(IQL, expectile=0.9, beta=2.0, gamma=0.95), random_batch()
    model = learner.model
    torch.nn.init.normal_(model.target_critics.net.head.weight)  # otherwise the targets equal the critics
    with torch.no_grad():
        q_bar = model.target_critics(batch.obs, batch.actions).min(0).values
        u = q_bar - model.value(batch.obs)
        y = batch.rewards + 0.95 * (1 - batch.dones) * model.value(batch.next_obs)
        q = model.critics(batch.obs, batch.actions)
        mean, log_std = model.actor(batch.obs)
        logprobs = Normal(mean, log_std.exp()).log_prob(batch.actions).sum(-1)
        expected = {
            "critic_loss": ((q[0] - y) ** 2).mean() + ((q[1] - y) ** 2).mean(),
            "value_loss": ((0.9 - (u < 0).float()).abs() * u**2).mean(),
            "actor_loss": -((2.0 * u).exp().clamp(max=100.0) * logprobs).mean(),
            "target_q_mean": y.mean(),
        }
    metrics = learner.update(batch, global_step=0).metrics
    for name, value in expected.items():
        torch.testing.assert_close(metrics[name], value, msg=name)


@pytest.mark.parametrize("name", ["critics", "value", "actor"])
def test_each_loss_reaches_only_its_owner(name: str) -> None:
    learner, batch = build(IQL), random_batch()
    losses = {"critics": learner.critic_loss, "value": learner.value_loss, "actor": learner.actor_loss}
    loss, _ = losses[name](learner.outputs(batch))
    parameters = [p for p in learner.model.parameters() if p.requires_grad]
    owned = {id(p) for p in learner.optimizers[name].parameters}
    for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True)):
        assert (gradient is not None) == (id(p) in owned)


def test_the_value_climbs_to_the_expectile_of_the_data() -> None:
    """One state, two actions worth 0 and 1: V goes to the 0.9-expectile, which is 0.9."""
    learner = build(IQL, expectile=0.9, learning_rate=1e-2, tau=1.0)
    batch = random_batch(done=1.0)
    rewards = tensor([0.0, 1.0]).repeat(8)
    actions = (2 * rewards - 1)[:, None].expand(16, ACTIONS)
    batch = batch._replace(obs=torch.ones(16, OBS), actions=actions, rewards=rewards)
    for i in range(300):
        learner.update(batch, global_step=i)
    assert learner.model.value(batch.obs)[0].item() == pytest.approx(0.9, abs=0.03)
    assert learner.model.policy.mode(batch.obs)[0, 0] > 0.5  # and the policy to the better action


def test_the_actor_is_a_gaussian_around_a_tanh_mean() -> None:
    model = build(IQL).model
    obs = torch.randn(50, OBS)
    assert torch.equal(model.actor.log_std, torch.zeros(ACTIONS))
    mode = model.policy.mode(obs)
    torch.testing.assert_close(model.policy.sample(obs, torch.zeros(50, ACTIONS)), mode)
    assert model.policy.sample(obs, torch.full((50, ACTIONS), 9.0)).max() == 1.0
    at_bound = model.actor.log_prob(obs, torch.ones(50, ACTIONS))
    torch.testing.assert_close(at_bound, Normal(mode, 1.0).log_prob(torch.ones(50, ACTIONS)).sum(-1))
    with torch.no_grad():
        model.actor.log_std.fill_(-30.0)
    assert model.actor(obs)[1][0] == -5.0


def test_weights_are_orthogonal() -> None:
    value = build(IQL).model.value.net
    (weight,) = value.hidden[1].weight
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(16), atol=1e-5, rtol=0)


def test_a_schedule_turns_the_actor_only() -> None:
    learner = build(IQL, learning_rate=1e-3)
    learner.set_learning_rates([1e-4])
    rates = {name: float(optimizer.learning_rate) for name, optimizer in learner.optimizers.items()}
    assert rates == pytest.approx({"critics": 1e-3, "value": 1e-3, "actor": 1e-4})


@pytest.mark.parametrize(("expectile", "message"), [(0.0, "> 0"), (1.0, "< 1")])
def test_the_expectile_is_inside_its_range(expectile: float, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^expectile must be {message}(\.0)?, got {expectile}$"):
        IQL(model=build(IQL).model, expectile=expectile)
