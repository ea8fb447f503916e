"""DQN: double Q-learning, the target network and its update interval, and exploration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms import DQN, dqn_loss
from rl_training.models import MLPQNetwork
from rl_training.models.mlp_q import GreedyQ
from tests.helpers import OBS, constant_outputs, random_batch, sequential, snapshot


def table(q: GreedyQ, values: list[float]) -> None:
    """Make the network return `values` in every state."""
    constant_outputs(q.net, [values])


def learner(**options: Any) -> DQN:
    return DQN(model=MLPQNetwork(OBS, 4, (16,)), **options)


@pytest.mark.parametrize(("double_q", "value"), [(False, 30.0), (True, 20.0)])
def test_double_dqn_values_the_online_network_s_choice(double_q: bool, value: float) -> None:
    agent = learner(double_q=double_q, gamma=0.5)
    table(agent.model.actor, [0.0, 5.0, 2.0, 1.0])  # chooses action 1
    table(agent.model.target, [10.0, 20.0, 30.0, 0.0])
    batch = random_batch(discrete=True)._replace(
        rewards=torch.ones(16), dones=torch.tensor([0.0, 1.0]).repeat(8), actions=torch.full((16,), 2)
    )
    metrics = agent.update(batch, global_step=0).metrics
    bootstrapped = 1.0 + 0.5 * value
    assert float(metrics["target_q_mean"]) == pytest.approx((bootstrapped + 1.0) / 2)
    assert float(metrics["q_mean"]) == pytest.approx(2.0)  # of the action taken
    huber = ((bootstrapped - 2.0 - 0.5) + 0.5) / 2
    assert float(metrics["loss"]) == pytest.approx(huber)


@pytest.mark.parametrize("tau", [1.0, 0.25])
def test_the_target_moves_only_every_interval(tau: float) -> None:
    agent = learner(target_update_interval=3, tau=tau, learning_rate=1e-2)
    for i in range(1, 7):
        before = [p.clone() for p in agent.model.target.parameters()]
        agent.update(random_batch(discrete=True, seed=i), global_step=i)
        for old, new, online in zip(before, agent.model.target.parameters(), agent.model.actor.parameters()):
            if i % 3:
                assert torch.equal(new, old)
            elif tau == 1.0:
                assert torch.equal(new, online)
            else:
                torch.testing.assert_close(new, 0.75 * old + 0.25 * online.detach())


@pytest.mark.parametrize("double_q", [False, True])
def test_the_update_is_torch_s(double_q: bool) -> None:
    agent = learner(double_q=double_q, target_update_interval=2, learning_rate=1e-3)
    q, target = sequential(agent.model.actor.net), sequential(agent.model.target.net)
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
    for i in range(5):
        batch = random_batch(discrete=True, seed=i)
        agent.update(batch, global_step=i)
        with torch.no_grad():
            chosen = (q if double_q else target)(batch.next_obs).argmax(1)
            value = target(batch.next_obs)[torch.arange(16), chosen]
            goal = batch.rewards + 0.99 * (1 - batch.dones) * value
        loss = torch.nn.functional.smooth_l1_loss(q(batch.obs)[torch.arange(16), batch.actions], goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 2:
            target.load_state_dict(q.state_dict())
    for ours, theirs in ((agent.model.actor, q), (agent.model.target, target)):
        for p, expected in zip(sequential(ours.net).parameters(), theirs.parameters()):
            torch.testing.assert_close(p, expected, atol=1e-6, rtol=0)


def test_epsilon_falls_linearly_and_then_stays() -> None:
    agent = learner(exploration_initial_eps=1.0, exploration_final_eps=0.2, exploration_fraction=0.5)
    assert [agent.epsilon(p) for p in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert learner(exploration_fraction=0.0).epsilon(0.0) == pytest.approx(0.05)


def test_epsilon_is_the_share_of_random_actions() -> None:
    agent = learner(exploration_initial_eps=0.4, exploration_final_eps=0.0, exploration_fraction=1.0)
    table(agent.model.actor, [0.0, 1.0, 0.0, 0.0])
    obs, policy = torch.zeros(20_000, OBS), agent.model.policy
    assert (agent.explore(policy, obs, np.random.default_rng(0), 1.0) == 1).all()
    counts = torch.bincount(agent.explore(policy, obs, np.random.default_rng(0), 0.0), minlength=4) / 20_000
    torch.testing.assert_close(counts, torch.tensor([0.1, 0.7, 0.1, 0.1]), atol=0.01, rtol=0)


def test_the_loss_helper_and_the_update_agree() -> None:
    agent = learner()
    batch = random_batch(discrete=True)
    q = agent.model.q_values(batch.obs).gather(1, batch.actions[:, None])[:, 0]
    with torch.no_grad():
        goal = batch.rewards + 0.99 * (1 - batch.dones) * agent.model.target(batch.next_obs).amax(1)
    expected = dqn_loss({"q_values": q, "target_q_values": goal})
    before = snapshot(agent)
    metrics = agent.update(batch, global_step=0).metrics
    assert {name: float(term) for name, term in metrics.items()} == pytest.approx(
        {name: term.item() for name, term in expected.items()}, rel=1e-5
    )
    assert any(not torch.equal(before[name], tensor) for name, tensor in snapshot(agent).items())
