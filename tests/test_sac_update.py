"""SAC: the whole update against an independent one, and a temperature that moves the right way."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from rl_training.algorithms import SAC, sac_loss
from rl_training.models import MLPSACModel
from tests.helpers import ACTIONS, OBS, constant_outputs, double, member, random_batch, same_noise, sequential


class Reference:
    """SAC as a textbook writes it: separate networks, torch's distributions, torch's Adam, one backward each."""

    def __init__(self, model: MLPSACModel, *, learning_rate: float, gamma: float, tau: float) -> None:
        self.gamma, self.tau = gamma, tau
        self.actor = sequential(model.actor.net)
        self.critics = nn.ModuleList(member(model.critics.net, i) for i in (0, 1))
        self.targets = copy.deepcopy(self.critics)
        self.log_alpha = torch.zeros((), requires_grad=True)
        owned = [*self.actor.parameters()], [*self.critics.parameters()], [self.log_alpha]
        self.optimizers = [torch.optim.Adam(p, lr=learning_rate) for p in owned]

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(obs).chunk(2, 1)
        std = log_std.clamp(-20, 2).exp()
        before_tanh = mean + std * noise
        squashed = TransformedDistribution(Normal(mean, std), TanhTransform(cache_size=1))
        tanh = squashed.transforms[0]
        action = tanh(before_tanh)  # the cache lets log_prob see the exact pre-image
        return action, squashed.log_prob(action).sum(1)

    def q(self, critics: nn.ModuleList, obs: Tensor, actions: Tensor) -> list[Tensor]:
        return [critic(torch.cat([obs, actions], 1))[:, 0] for critic in critics]

    def update(self, batch: Any, noise: Tensor) -> dict[str, float]:
        alpha = self.log_alpha.exp().item()
        with torch.no_grad():
            next_actions, next_logprobs = self.sample(batch.next_obs, noise[0])
            next_q = torch.minimum(*self.q(self.targets, batch.next_obs, next_actions))
            goal = batch.rewards + self.gamma * (1 - batch.dones) * (next_q - alpha * next_logprobs)
        critic_loss = sum(0.5 * ((q - goal) ** 2).mean() for q in self.q(self.critics, batch.obs, batch.actions))
        actions, logprobs = self.sample(batch.obs, noise[1])
        actor_loss = (alpha * logprobs - torch.minimum(*self.q(self.critics, batch.obs, actions))).mean()
        alpha_loss = -(self.log_alpha * (logprobs.detach() - ACTIONS)).mean()
        for optimizer, loss in zip(self.optimizers, (actor_loss, critic_loss, alpha_loss)):
            parameters = optimizer.param_groups[0]["params"]
            for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters, retain_graph=True)):
                p.grad = gradient
        for optimizer in self.optimizers:
            optimizer.step()
        with torch.no_grad():
            for t, s in zip(self.targets.parameters(), self.critics.parameters()):
                t.copy_((1 - self.tau) * t + self.tau * s)
        return {
            "critic_loss": float(critic_loss.detach()),
            "actor_loss": float(actor_loss.detach()),
            "target_q_mean": float(goal.mean()),
            "entropy_term": alpha * float(logprobs.mean().detach()),
            "alpha": alpha,
        }


def test_the_update_equals_an_independent_one() -> None:
    model = MLPSACModel(OBS, ACTIONS, (16, 16)).double()
    settings = {"learning_rate": 3e-3, "gamma": 0.9, "tau": 0.1}
    agent = SAC(model=model, alpha="auto", **settings)
    agent.seed(11)
    reference = Reference(model, **settings)
    for i, noise in zip(range(6), same_noise(11, 2, 16, ACTIONS)):
        batch = double(random_batch(seed=i))
        agent.step(batch)
        expected = reference.update(batch, noise.double())
        assert {name: float(term) for name, term in agent.terms.items()} == pytest.approx(
            expected, rel=1e-5, abs=1e-6
        )
    ours = [
        *sequential(model.actor.net).parameters(),
        *(p for i in (0, 1) for p in member(model.critics.net, i).parameters()),
        *(p for i in (0, 1) for p in member(model.target_critics.net, i).parameters()),
        agent.temperature.log_alpha.double(),
    ]
    theirs = [
        *reference.actor.parameters(),
        *reference.critics.parameters(),
        *reference.targets.parameters(),
        reference.log_alpha.double(),
    ]
    assert len(ours) == len(theirs)
    for p, q in zip(ours, theirs):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("target_entropy", "direction"), [(50.0, 1), (-50.0, -1)])
def test_alpha_rises_while_the_policy_is_too_certain(target_entropy: float, direction: int) -> None:
    agent = SAC(
        model=MLPSACModel(OBS, ACTIONS, (16,)), alpha="auto", initial_alpha=0.5, target_entropy=target_entropy
    )
    seen = [float(agent.update(random_batch(seed=i), global_step=i).metrics["alpha"]) for i in range(5)]
    assert seen[0] == pytest.approx(0.5)
    assert all(direction * (b - a) > 0 for a, b in itertools.pairwise(seen))


def test_a_fixed_alpha_stays() -> None:
    agent = SAC(model=MLPSACModel(OBS, ACTIONS, (16,)), alpha=0.3)
    for i in range(3):
        metrics = agent.update(random_batch(seed=i), global_step=i).metrics
    assert float(metrics["alpha"]) == pytest.approx(0.3)
    assert not list(agent.temperature.parameters())


def test_the_target_entropy_is_minus_the_number_of_actions_unless_given() -> None:
    model = MLPSACModel(OBS, ACTIONS, (16,))
    assert SAC(model=model, alpha="auto").temperature.target_entropy == -ACTIONS
    assert SAC(model=model, alpha="auto", target_entropy=-7.0).temperature.target_entropy == -7.0


def test_the_backup_can_leave_the_entropy_out() -> None:
    model = MLPSACModel(OBS, ACTIONS, (16,))
    constant_outputs(model.target_critics.net, [4.0, 7.0])
    batch = random_batch(done=0.0)._replace(rewards=torch.zeros(16))
    plain, soft = (
        float(
            SAC(model=copy.deepcopy(model), gamma=0.5, backup_entropy=entropy)
            .update(batch, global_step=0)
            .metrics["target_q_mean"]
        )
        for entropy in (False, True)
    )
    assert plain == pytest.approx(2.0)
    assert soft != pytest.approx(2.0, abs=1e-3)


def test_the_actor_takes_the_smaller_critic() -> None:
    agent = SAC(model=MLPSACModel(OBS, ACTIONS, (16,)))
    constant_outputs(agent.model.critics.net, [4.0, -9.0])
    metrics = agent.update(random_batch(), global_step=0).metrics
    assert float(metrics["actor_loss"]) == pytest.approx(float(metrics["entropy_term"]) + 9.0, rel=1e-5)


def test_loss_helper_by_hand() -> None:
    terms = sac_loss(
        {
            "q1_values": torch.tensor([1.0, 2.0]),
            "q2_values": torch.tensor([0.0, 0.0]),
            "target_q_values": torch.tensor([0.0, 4.0]),
            "sampled_logprobs": torch.tensor([-1.0, 3.0]),
            "sampled_q1": torch.tensor([5.0, 1.0]),
            "sampled_q2": torch.tensor([4.0, 2.0]),
            "alpha": 0.5,
        }
    )
    assert {k: float(v) for k, v in terms.items()} == pytest.approx(
        {
            "critic_loss": 0.5 * (2.5 + 8.0),
            "target_q_mean": 2.0,
            "actor_loss": (-0.5 - 4.0 + 1.5 - 1.0) / 2,
            "entropy_term": 0.5,
        }
    )
