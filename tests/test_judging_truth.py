"""FQE, importance sampling and doubly robust estimates compared with true values in closed form."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms.fqe import FQEConfig
from rl_training.data.datasets import TransitionDataset
from rl_training.data.episodes import Episodes, resamples
from rl_training.experience.fqe_data import Units, estimated_returns
from rl_training.models.mlp import NetworkConfig
from rl_training.models.policies import Policy
from rl_training.off_policy_evaluation.fitting import Fit, Plan, fit
from rl_training.off_policy_evaluation.importance import (
    Logs,
    doubly_robust,
    doubly_robust_of,
    effective_episodes,
    log_weights,
    weighted_mean,
)
from rl_training.seeding import resampling
from tests.judging_worlds import Chain, Linear, Weighted, policy

CPU = torch.device("cpu")
PLAN = Plan(
    updates=600,
    batch_size=64,
    config=FQEConfig(gamma=0.9, learning_rate=3e-3, tau=0.1),
    network=NetworkConfig(hidden_sizes=(32, 32), activation="silu"),
)


def fitted(data: TransitionDataset, policies: list[Policy], bootstraps: int = 1, **changes: Any) -> Fit:
    episodes = Episodes.of(data, "a test")
    parts = resamples(episodes, bootstraps, resampling(0), CPU)
    plan = Plan(**{name: getattr(PLAN, name) for name in PLAN.__dataclass_fields__} | changes)
    return fit(data, episodes, policies, parts, plan, CPU, keep=True)


def chain_data(chain: Chain, episodes: int = 60, **options: Any) -> TransitionDataset:
    columns = chain.data(episodes, **options)
    columns.pop("action_probs")
    return TransitionDataset.from_arrays(**columns, num_actions=2, name="chain")


def test_a_chain() -> None:
    """Three policies, two of which never terminate; errors are below 1 % of the range of values."""
    chain = Chain()
    rules = (lambda s: True, lambda s: s < 2, lambda s: s == 0)
    truth = np.array([chain.value(lambda s, rule=rule: float(rule(s)))[0] for rule in rules])
    found = fitted(chain_data(chain), [chain.policy(rule) for rule in rules])
    assert np.abs(found.values[:, 0] - truth).max() <= 0.01 * np.ptp(truth)
    assert list(np.argsort(-found.values[:, 0])) == list(np.argsort(-truth))
    assert np.abs(found.drift).max() <= 0.01 * np.ptp(truth)


@pytest.mark.slow
def test_a_linear_quadratic_system() -> None:
    """Three gains; errors are below 5 % of the range of values, and the ranking is correct."""
    world, gains = Linear(), (0.8, 0.0, -0.15)
    data = world.data(200)
    starts = data.rows[Episodes.of(data, "a test").starts, 0].astype(np.float64)
    truth = np.array([world.value(gain, starts).mean() for gain in gains])
    found = fitted(data, [world.policy(gain) for gain in gains])
    assert np.abs(found.values[:, 0] - truth).max() <= 0.05 * np.ptp(truth)
    assert list(np.argsort(-found.values[:, 0])) == list(np.argsort(-truth))


def test_a_policy_that_is_sampled() -> None:
    """The cost of its noise matches the closed form within 5 % of the value; its mode would have no such cost."""
    world = Linear()
    data = world.data(200)
    starts = data.rows[Episodes.of(data, "a test").starts, 0].astype(np.float64)
    plain, noisy = (float(world.value(0.5, starts, spread).mean()) for spread in (0.0, 0.4))
    noisy_policy = world.policy(0.5, 0.4)
    by_mode, by_samples = (
        float(fitted(data, [noisy_policy], sampled=sampled).values[0, 0]) for sampled in (False, True)
    )
    assert abs(by_mode - plain) <= 0.05 * abs(noisy)
    assert abs(by_samples - noisy) <= 0.05 * abs(noisy)
    assert plain - noisy > 0.3 * abs(noisy)


def test_equal_policies_have_equal_values_alone_and_with_others() -> None:
    """Up to rounding: members differ only in their policies and equal single runs."""
    chain = Chain()
    data = chain_data(chain, 30)
    one, other = chain.policy(lambda s: True), chain.policy(lambda s: s >= 0)
    third = chain.policy(lambda s: False)
    together = fitted(data, [one, third, other], bootstraps=2, updates=60).values
    alone = fitted(data, [one], bootstraps=2, updates=60).values
    assert together[0] == pytest.approx(together[2], abs=1e-4)
    assert together[0] == pytest.approx(alone[0], abs=1e-4)
    assert abs(together[0] - together[1]).min() > 1e-3
    assert abs(together[0, 0] - together[0, 1]) > 1e-3  # another resample, another start


def test_the_same_call_gives_the_same_numbers() -> None:
    chain = Chain()
    data = chain_data(chain, 20)
    policies = [chain.policy(lambda s: True), chain.policy(lambda s: s < 2)]
    first, second = (fitted(data, policies, bootstraps=2, updates=40) for _ in range(2))
    for name in ("values", "drift", "clipped"):
        assert np.array_equal(getattr(first, name), getattr(second, name))


def test_estimated_returns_are_sums_over_the_rest_of_an_episode() -> None:
    rng = np.random.default_rng(0)
    lengths = np.array([1, 7, 2, 16, 5])
    rewards, dones = rng.normal(size=lengths.sum()), np.zeros(lengths.sum(), np.float32)
    starts = np.cumsum(lengths) - lengths
    episodes = Episodes(starts, lengths)
    dones[episodes.ends[[0, 2]]] = 1.0
    found, gamma = estimated_returns(rewards, dones, episodes, 0.9), 0.9
    for start, length, over in zip(starts, lengths, dones[episodes.ends]):
        following = 0.0 if over else rewards.mean() / (1.0 - gamma * (1.0 - 2 / lengths.sum()))
        for row in range(start + length - 1, start - 1, -1):
            following = rewards[row] + gamma * following
            assert found[row] == pytest.approx(following)


def test_units_of_constant_rewards_are_finite() -> None:
    data = TransitionDataset.from_arrays(
        np.zeros((6, 1)), np.zeros(6, int), np.ones(6), np.zeros(6, bool), np.tile([0, 0, 1], 2), num_actions=2
    )
    units = Units.of(data, Episodes.of(data, "a test"), 0.9)
    assert units.scale > 0
    assert units.low == units.high == pytest.approx(10.0)


# Importance sampling.


def every_episode(chain: Chain, chance: float, length: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Every sequence of actions up to a time limit, as logged data, and the probability of each."""
    columns: dict[str, list[Any]] = {name: [] for name in ("states", "actions", "rewards", "over", "last")}
    weights, seen = [], set()
    for plan in itertools.product((0, 1), repeat=length):
        state, taken, rows = 0, [], []
        for action in plan:
            following, reward, over = chain.step(state, action)
            rows.append((state, action, reward, over))
            taken.append(action)
            state = following
            if over:
                break
        if tuple(taken) in seen:
            continue
        seen.add(tuple(taken))
        weights.append(np.prod([chance if action else 1 - chance for action in taken]))
        for i, (at, action, reward, over) in enumerate(rows):
            for name, value in zip(columns, (at, action, reward, over, i == len(rows) - 1)):
                columns[name].append(value)
    return {name: np.array(column) for name, column in columns.items()}, np.array(weights)


def episodes_in(last: np.ndarray) -> Episodes:
    ends = np.flatnonzero(last)
    starts = np.concatenate([[0], ends[:-1] + 1])
    return Episodes(starts, ends - starts + 1)


@pytest.mark.parametrize("error", [0.0, 3.0])
def test_doubly_robust_is_unbiased_for_any_model(error: float) -> None:
    """Over all possible episodes, weighted by probability; with true values every single episode is exact."""
    chain, chance, wanted = Chain(states=3), 0.6, 0.8
    columns, weights = every_episode(chain, chance, 6)
    episodes = episodes_in(columns["last"])
    assert weights.sum() == pytest.approx(1.0)
    value = chain.value(lambda s: wanted)
    rng = np.random.default_rng(0)
    model = value + error * rng.normal(size=3)
    q = np.empty((3, 2))
    for state, action in itertools.product(range(3), range(2)):
        following, reward, over = chain.step(state, action)
        q[state, action] = reward + (0.0 if over else chain.gamma * value[following]) + error * rng.normal()
    consistent = q[:, 0] * (1 - wanted) + q[:, 1] * wanted if error else model
    states, actions = columns["states"], columns["actions"]
    ratios = np.where(actions == 1, wanted / chance, (1 - wanted) / (1 - chance))
    # What follows a cut is taken as it truly is: only the model in between may be wrong.
    after = np.array(
        [0.0 if columns["over"][end] else value[chain.step(states[end], actions[end])[0]] for end in episodes.ends]
    )
    each = doubly_robust(
        ratios, columns["rewards"], q[states, actions], consistent[states], after, episodes, chain.gamma
    )
    assert (weights * each).sum() == pytest.approx(value[0], abs=1e-9)
    assert (np.ptp(each) < 1e-9) == (error == 0.0)


def test_weighted_importance_sampling_finds_the_value() -> None:
    """Over all possible episodes, weighted by the logging policy, the estimate is the true value."""
    chain, chance, wanted = Chain(states=3), 0.6, 0.8
    columns, weights = every_episode(chain, chance, 6)
    episodes = episodes_in(columns["last"])
    ratios = np.where(columns["actions"] == 1, wanted / chance, (1 - wanted) / (1 - chance))
    logs = log_weights(ratios, episodes)
    assert np.exp(logs) * weights == pytest.approx(every_episode(chain, wanted, 6)[1])
    steps = np.concatenate([np.arange(length) for length in episodes.lengths])
    returns = np.add.reduceat(columns["rewards"] * chain.gamma**steps, episodes.starts)
    part = resamples(episodes, 1, resampling(0), CPU)[0]
    shares = torch.from_numpy(weights)
    found = weighted_mean(logs, returns, [type(part)(shares, part.edges, part.shifts)])
    assert found[0] == pytest.approx((every_episode(chain, wanted, 6)[1] * returns).sum())


def test_importance_of_logged_data() -> None:
    """For a sampled policy close to the logging policy, both estimates are within 8 % of the truth."""
    chain, wanted = Chain(states=3), 0.75
    columns = chain.data(600, limit=30)
    probs = columns.pop("action_probs")
    data = TransitionDataset.from_arrays(**columns, num_actions=2, name="chain")
    episodes = Episodes.of(data, "a test")
    logs, actor = Logs(data, episodes, probs, chain.gamma), policy(Weighted(wanted), 3)
    truth, own = (float(chain.value(lambda s, c=c: c)[0]) for c in (wanted, 0.6))
    ratios = logs.ratios(actor, sampled=True)
    parts = resamples(episodes, 3, resampling(0), CPU)
    weights = log_weights(ratios, episodes)
    importance = weighted_mean(weights, data.episode_returns(chain.gamma), parts)
    learners = fitted(data, [actor], bootstraps=3, sampled=True).learners[0]
    robust = doubly_robust_of(logs, actor, ratios, learners, parts, sampled=True)
    assert abs(truth - own) > 0.16 * abs(truth)
    assert importance.mean() == pytest.approx(truth, rel=0.08)
    assert robust.mean() == pytest.approx(truth, rel=0.08)
    assert 10 < effective_episodes(weights) < 600


def test_a_policy_without_a_matching_episode_has_no_value() -> None:
    never = np.array([-np.inf, -np.inf])
    episodes = Episodes(np.array([0, 1]), np.array([1, 1]))
    parts = resamples(episodes, 2, resampling(0), CPU)
    assert np.isnan(weighted_mean(never, np.ones(2), parts)).all()
    assert effective_episodes(never) == 0.0
