"""TD3: smoothed targets, the smaller of two critics, and an actor that waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms import TD3, td3_loss
from rl_training.algorithms.td3 import smoothed_action
from rl_training.models import MLPTD3Model
from tests.helpers import ACTIONS, OBS, constant_outputs, member, random_batch, same_noise, sequential, snapshot


def learner(**options: Any) -> TD3:
    return TD3(model=MLPTD3Model(OBS, ACTIONS, (16, 16)), **options)


def changed(agent: TD3, before: dict[str, torch.Tensor]) -> set[str]:
    return {name.split(".")[1] for name, tensor in snapshot(agent).items() if not torch.equal(tensor, before[name])}


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_actor_and_targets_move_only_every_delay(delay: int) -> None:
    agent = learner(policy_delay=delay)
    losses = []
    for i in range(1, 2 * delay + 1):
        before = snapshot(agent)
        metrics = agent.update(random_batch(seed=i), global_step=i).metrics
        due = i % delay == 0
        everything = {"critics", "target_critics", "actor", "target_actor"}
        assert changed(agent, before) == (everything if due else {"critics"})
        losses.append(float(metrics["actor_loss"]))
        if not due:  # a term keeps its last value between the updates that form it
            assert losses[-1] == (0.0 if i < delay else losses[-2])


def test_the_smoothing_noise_and_the_action_are_clipped() -> None:
    smoothed = smoothed_action(torch.tensor([0.0, 0.0, 0.9, -0.9]), torch.tensor([0.3, -2.0, 2.0, -0.05]), 0.5)
    torch.testing.assert_close(smoothed, torch.tensor([0.3, -0.5, 1.0, -0.95]))


def test_the_target_is_the_smaller_critic_at_the_smoothed_target_action() -> None:
    agent = learner(target_policy_noise=0.8, target_noise_clip=0.3, gamma=0.9)
    torch.nn.init.normal_(agent.model.target_critics.net.head.weight)
    torch.nn.init.normal_(agent.model.target_actor.net.head.bias)
    agent.seed(5)
    noise = 0.8 * next(same_noise(5, 16, ACTIONS))
    batch = random_batch()
    with torch.no_grad():
        actor = sequential(agent.model.target_actor.net)
        action = (actor(batch.next_obs).tanh() + noise.clip(-0.3, 0.3)).clip(-1, 1)
        both = [member(agent.model.target_critics.net, i)(torch.cat([batch.next_obs, action], 1)) for i in (0, 1)]
        goal = batch.rewards + 0.9 * (1 - batch.dones) * torch.minimum(*both)[:, 0]
        q = agent.model.q_values(batch.obs, batch.actions)
        loss = (q - goal[:, None]).square().mean(0).sum()
    metrics = agent.update(batch, global_step=0).metrics
    assert float(metrics["target_q_mean"]) == pytest.approx(goal.mean().item(), abs=1e-5)
    assert float(metrics["critic_loss"]) == pytest.approx(loss.item(), rel=1e-5)


def test_without_clip_there_is_no_smoothing() -> None:
    targets = [
        float(
            learner_with_seed(target_policy_noise=5.0, target_noise_clip=0.0, seed=seed)
            .update(random_batch(), global_step=0)
            .metrics["target_q_mean"]
        )
        for seed in (1, 2)
    ]
    assert targets[0] == targets[1]


def learner_with_seed(*, seed: int, **options: Any) -> TD3:
    torch.manual_seed(0)
    agent = learner(**options)
    agent.seed(seed)
    return agent


def test_the_actor_uses_the_first_critic_only() -> None:
    agent = learner(policy_delay=1)
    constant_outputs(agent.model.critics.net, [3.0, -100.0])
    metrics = agent.update(random_batch(), global_step=0).metrics
    assert float(metrics["actor_loss"]) == pytest.approx(-3.0)


def test_exploration_noise_is_scaled_and_stays_inside_the_bounds() -> None:
    obs = torch.randn(20, OBS)
    noise = torch.from_numpy(np.random.default_rng(3).standard_normal((20, ACTIONS), dtype=np.float32))
    for scale in (0.0, 0.25, 4.0):
        agent = learner(exploration_noise=scale)
        policy = agent.model.policy
        actions = agent.explore(policy, obs, np.random.default_rng(3), progress=0.0)
        torch.testing.assert_close(actions, (policy.mode(obs) + scale * noise).clip(-1, 1))
    assert actions.abs().max() == 1.0


def test_loss_helper_by_hand() -> None:
    terms = td3_loss(
        {
            "q1_values": torch.tensor([1.0, 2.0]),
            "q2_values": torch.tensor([0.0, 4.0]),
            "target_q_values": torch.tensor([0.0, 4.0]),
            "policy_q1": torch.tensor([3.0, 5.0]),
        }
    )
    assert {k: float(v) for k, v in terms.items()} == {
        "critic_loss": 2.5,
        "target_q_mean": 2.0,
        "actor_loss": -4.0,
    }
