"""Cal-QL: the returns of episodes, the floor of the penalty's values, and the best of several next actions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, tensor

from rl_training.algorithms import CQL, CalQL, cal_ql_loss, cql_loss
from rl_training.algorithms.cal_ql import CalQLConfig, floored_values
from rl_training.data.datasets import TransitionDataset
from rl_training.data.extra_columns import MC_RETURNS, mc_returns
from rl_training.data.loading import DatasetConfig
from rl_training.errors import ConfigError, DatasetError
from tests.helpers import ACTIONS, BATCH, build, double, member, random_batch

GAMMA = 0.5


def returns(rewards: list[float], dones: list[float], failure: float | None = None) -> list[float]:
    given, ends = (np.array(column, np.float32) for column in (rewards, dones)), np.array([len(rewards) - 1])
    return mc_returns(*given, ends, (1.0, 0.0), GAMMA, failure).tolist()


def test_returns_by_hand() -> None:
    assert returns([1.0, 2.0, 4.0], [0, 0, 1]) == [3.0, 4.0, 4.0]
    assert returns([1.0, 2.0, 4.0], [0, 0, 0]) == [3.0, 4.0, 4.0], "a cut episode counts the rewards that it has"
    assert returns([1.0, 2.0, 4.0], [0, 1, 0]) == [2.0, 2.0, 4.0], "a termination inside a trajectory ends a return"


def test_an_episode_that_only_fails_fails_for_ever() -> None:
    assert returns([-1.0, -1.0, -1.0], [0, 0, 0], failure=-1.0) == [-2.0] * 3
    assert returns([-1.0, -1.0, 0.0], [0, 0, 1], failure=-1.0) == [-1.5, -1.0, 0.0]
    assert returns([-1.0, -1.0, -1.0], [0, 0, 0]) == [-1.75, -1.5, -1.0]


def dataset() -> TransitionDataset:
    """Two episodes: a success that terminates, and four failures up to a time limit."""
    n = 7
    return TransitionDataset.from_arrays(
        np.arange(3.0 * n).reshape(n, 3),
        np.zeros((n, 1)),
        rewards=[0, 0, 1, 0, 0, 0, 0],
        terminals=[0, 0, 1, 0, 0, 0, 0],
        timeouts=[0, 0, 0, 0, 0, 0, 1],
        next_observations=np.arange(3.0 * n).reshape(n, 3) + 3.0,
        action_low=-1.0,
        action_high=1.0,
    )


@pytest.mark.parametrize(("failure_reward", "last"), [(None, [-9.375, -8.75, -7.5, -5.0]), (0.0, [-10.0] * 4)])
def test_the_column_uses_scaled_rewards(failure_reward: float | None, last: list[float]) -> None:
    column = MC_RETURNS.bind(CalQLConfig(gamma=GAMMA, failure_reward=failure_reward))
    transform = DatasetConfig(reward_scale=10.0, reward_shift=-5.0).transform
    data = transform(dataset()).with_extras((column,))
    found = data.columns_at(np.arange(7)).mc_returns  # type: ignore[attr-defined]
    assert found.tolist() == [-6.25, -2.5, 5.0, *last]
    assert data.with_n_step(3, GAMMA).columns_at(np.arange(7)).mc_returns.tolist() == found.tolist()  # type: ignore[attr-defined]


def test_rows_without_an_order_have_no_returns() -> None:
    from dataclasses import replace

    column = MC_RETURNS.bind(CalQLConfig())
    with pytest.raises(DatasetError, match="needs episodes"):
        replace(dataset(), episode_ends=np.zeros(0, np.int64)).with_extras((column,))


def test_failing_for_ever_needs_a_discount() -> None:
    with pytest.raises(ConfigError, match="failure_reward needs gamma < 1"):
        CalQLConfig.parse({"gamma": 1.0, "failure_reward": -1.0})


def test_only_the_policys_actions_have_a_floor() -> None:
    q = tensor([[1.0], [3.0], [1.0]])  # two actions of the policy and a uniform one, one state
    floored, share = floored_values(q, tensor([2.0]))
    assert floored.tolist() == [[2.0], [3.0], [1.0]]
    assert share.item() == 0.5


def test_the_penalty_is_the_sum_over_single_actions() -> None:
    """Every critic a network of its own, every action alone, exponentials summed as the paper writes them."""
    n, m = 3, 4
    options: dict[str, Any] = {"n_actions": n, "backup_actions": m, "cql_alpha": 2.0, "gamma": 0.9}
    learner, batch = build(CalQL, **options), double(random_batch())
    learner.model.double()
    g = torch.Generator().manual_seed(3)
    noise = torch.randn(m + n, 2, BATCH, ACTIONS, generator=g, dtype=torch.float64)
    uniform = 2 * torch.rand(n, BATCH, ACTIONS, generator=g, dtype=torch.float64) - 1
    _, terms = learner.critic_loss(batch, noise, noise[0, 0], uniform)
    actor, floor, penalty, error = learner.model.actor, batch.mc_returns, 0.0, 0.0  # type: ignore[attr-defined]
    with torch.no_grad():
        candidates = [
            learner.model.target_critics(batch.next_obs, actor.sample(batch.next_obs, noise[k, 1])).min(0).values
            for k in range(m)
        ]
        y = batch.rewards + 0.9 * (1 - batch.dones) * torch.stack(candidates).max(0).values
        for critic in (member(learner.model.critics.net, i) for i in range(2)):

            def q(actions: Tensor, critic: Any = critic) -> Tensor:
                return critic(torch.cat([batch.obs, actions], -1))[:, 0]

            total = torch.zeros(BATCH, dtype=torch.float64)
            for k in range(n):
                total += q(uniform[k]).exp() / 0.5**ACTIONS
                for states, draw in ((batch.obs, noise[m + k, 0]), (batch.next_obs, noise[m + k, 1])):
                    actions, logprobs = actor.sample_with_logprob(states, draw)
                    total += q(actions).clamp(min=floor).exp() / logprobs.exp()
            penalty += 2.0 * float((total.log() - q(batch.actions)).mean())
            error += float(((q(batch.actions) - y) ** 2).mean())
    assert 0.0 < terms["floored_share"].item() < 1.0
    assert terms["conservative_loss"].item() == pytest.approx(penalty, rel=1e-6)
    assert terms["critic_mse_loss"].item() == pytest.approx(error, rel=1e-6)


def test_a_floor_below_all_values_is_cql() -> None:
    low = random_batch()._replace(mc_returns=torch.full((BATCH,), -1e6))  # type: ignore[call-arg]
    losses = []
    for kind in (CQL, CalQL):
        learner = build(kind, alpha=0.2, backup_actions=1)
        losses.append([learner.update(low, global_step=i).metrics["critic_loss"].item() for i in range(3)])
    assert losses[0] == losses[1]


def test_values_below_the_floor_are_not_lowered() -> None:
    """With the policy's values below every return, only the uniform actions and the data's action have slopes."""
    learner, batch = build(CalQL, n_actions=2), random_batch()._replace(mc_returns=torch.full((BATCH,), 1e3))  # type: ignore[call-arg]
    q = torch.zeros(2, 6, BATCH, requires_grad=True)
    values, terms = learner.penalised_values(q, batch)
    (slopes,) = torch.autograd.grad(values.sum(), q)
    assert terms["floored_share"].item() == 1.0
    assert slopes[:, :4].abs().max() == 0.0
    assert slopes[:, 4:].min() == 1.0


def test_entropy_in_the_backup_is_that_of_the_best_action() -> None:
    learner = build(CalQL, backup_entropy=True, alpha=0.5)
    obs, actions = random_batch().next_obs, 2 * torch.rand(3, BATCH, ACTIONS) - 1
    logprobs = torch.randn(3, BATCH)
    q = torch.stack([learner.model.target_critics(obs, one).min(0).values for one in actions])
    value, best = q.max(0)
    wanted = value - 0.5 * logprobs[best, torch.arange(BATCH)]
    torch.testing.assert_close(learner.next_value(obs, actions, logprobs), wanted)


def test_every_term_by_hand() -> None:
    given = {
        "q1_values": tensor([1.0]),
        "q2_values": tensor([0.0]),
        "target_q_values": tensor([2.0]),
        "q1_candidates": tensor([[0.0], [3.0], [0.0]]),
        "q2_candidates": tensor([[0.0], [0.0], [0.0]]),
        "candidate_log_densities": tensor([[0.0], [0.0], [1.0]]),
        "cql_alpha": 2.0,
        "sampled_q1": tensor([1.0]),
        "sampled_q2": tensor([4.0]),
        "sampled_logprobs": tensor([-1.0]),
        "alpha": 0.5,
    }
    terms = cal_ql_loss(given | {"mc_returns": tensor([1.0])})
    first = math.log(math.exp(1.0) + math.exp(3.0) + math.exp(-1.0)) - 1.0
    second = math.log(2 * math.exp(1.0) + math.exp(-1.0))
    assert terms["conservative_loss"].item() == pytest.approx(2.0 * (first + second))
    assert terms["critic_mse_loss"].item() == pytest.approx(1.0 + 4.0)
    assert terms["actor_loss"].item() == pytest.approx(-0.5 - 1.0)
    assert terms["floored_share"].item() == 0.75
    plain = cql_loss(given)["conservative_loss"].item()
    assert plain < terms["conservative_loss"].item()
