"""DDPG: one update equals the same thing written with torch.nn and torch.optim."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from rl_training.algorithms import DDPG, ddpg_loss
from rl_training.models import MLPDDPGModel
from tests.helpers import ACTIONS, OBS, double, member, random_batch, sequential


def test_the_update_is_the_one_written_by_hand() -> None:
    model = MLPDDPGModel(OBS, ACTIONS, (16, 16)).double()
    agent = DDPG(model=model, learning_rate=1e-3, gamma=0.9, tau=0.1)
    actor, critic = torch.nn.Sequential(sequential(model.actor.net), torch.nn.Tanh()), member(model.critics.net, 0)
    target_actor, target_critic = copy.deepcopy(actor), copy.deepcopy(critic)
    actor_step = torch.optim.Adam(actor.parameters(), lr=1e-3)
    critic_step = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for i in range(4):
        batch = double(random_batch(seed=i))
        agent.step(batch)
        with torch.no_grad():
            next_q = target_critic(torch.cat([batch.next_obs, target_actor(batch.next_obs)], 1))[:, 0]
            goal = batch.rewards + 0.9 * (1 - batch.dones) * next_q
        critic_loss = (critic(torch.cat([batch.obs, batch.actions], 1))[:, 0] - goal).square().mean()
        actor_loss = -critic(torch.cat([batch.obs, actor(batch.obs)], 1)).mean()
        critic_gradients = torch.autograd.grad(critic_loss, list(critic.parameters()))
        actor_gradients = torch.autograd.grad(actor_loss, list(actor.parameters()))
        for network, gradients in ((critic, critic_gradients), (actor, actor_gradients)):
            for p, gradient in zip(network.parameters(), gradients):
                p.grad = gradient
        critic_step.step()
        actor_step.step()
        with torch.no_grad():
            for target, source in ((target_critic, critic), (target_actor, actor)):
                for t, s in zip(target.parameters(), source.parameters()):
                    t.mul_(0.9).add_(0.1 * s)
        assert float(agent.terms["critic_loss"]) == pytest.approx(critic_loss.item(), rel=1e-6)
        assert float(agent.terms["actor_loss"]) == pytest.approx(actor_loss.item(), rel=1e-6)
    pairs = [
        (sequential(model.actor.net), actor),
        (sequential(model.target_actor.net), target_actor),
        (member(model.critics.net, 0), critic),
        (member(model.target_critics.net, 0), target_critic),
    ]
    for ours, theirs in pairs:
        for p, q in zip(ours.parameters(), theirs.parameters()):
            torch.testing.assert_close(p, q, atol=1e-7, rtol=0)


def test_the_actor_and_targets_move_at_every_update() -> None:
    agent = DDPG(model=MLPDDPGModel(OBS, ACTIONS, (16,)))
    for i in range(3):
        before = [p.clone() for p in (*agent.model.actor.parameters(), *agent.model.target_actor.parameters())]
        agent.update(random_batch(seed=i), global_step=i)
        after = (*agent.model.actor.parameters(), *agent.model.target_actor.parameters())
        assert not any(torch.equal(a, b) for a, b in zip(after, before))


def test_exploration_is_gaussian_around_the_mode() -> None:
    agent = DDPG(model=MLPDDPGModel(OBS, ACTIONS, (16,)), exploration_noise=0.1)
    obs = torch.zeros(20_000, OBS)
    noise = agent.explore(agent.model.policy, obs, np.random.default_rng(0), 0.5) - agent.model.policy.mode(obs)
    assert noise.mean().item() == pytest.approx(0.0, abs=0.005)
    assert noise.std().item() == pytest.approx(0.1, rel=0.02)


def test_loss_helper_by_hand() -> None:
    terms = ddpg_loss(
        {
            "q_values": torch.tensor([1.0, 2.0]),
            "target_q_values": torch.tensor([0.0, 4.0]),
            "policy_q": torch.tensor([3.0, 5.0]),
        }
    )
    assert {k: float(v) for k, v in terms.items()} == {
        "critic_loss": 2.5,
        "target_q_mean": 2.0,
        "actor_loss": -4.0,
    }
