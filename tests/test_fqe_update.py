"""FQE's update: formula, bounds, both kinds of actions, and members compared with single runs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_training import algorithms
from rl_training.algorithms import FQE, fqe_loss
from rl_training.algorithms.fqe import value_bounds
from rl_training.errors import ConfigError
from rl_training.experiment.registry import algorithm_names
from rl_training.models import MLPFQEModel
from rl_training.updates.stack import Stack
from tests.helpers import CHOICES, OBS, build, double, member, random_batch, snapshot
from tests.test_population_updates import SIZE, assert_members_equal, learners_of, numbers_of


class DiscreteFQE(FQE):
    """The same learner where the tests ask a class for its kind of actions."""

    discrete = True


KINDS = [FQE, DiscreteFQE]
UNITS = (-3.0, 2.5, -4.0, 1.5)  # offset, scale, low, high
RATE = 2.0**-7  # one that float32 has exactly


def judge(kind: type[FQE], **options: Any) -> FQE:
    """A small learner in float64, in normalised units."""
    learner: FQE = build(kind, normalize=True, **options)
    learner.model.normalizer.set_moments(torch.linspace(-1.0, 1.0, OBS), torch.linspace(0.5, 2.0, OBS))
    learner.model.double()
    learner.model.set_units(*UNITS)
    for optimizer in learner.optimizers.values():
        optimizer.exp_avg = [moment.double() for moment in optimizer.exp_avg]
        optimizer.exp_avg_sq = [moment.double() for moment in optimizer.exp_avg_sq]
    return learner


def reference_value(net: torch.nn.Sequential, learner: FQE, obs: Tensor, actions: Tensor) -> Tensor:
    """Q in normalised units, as torch would write it."""
    seen = (obs - learner.model.normalizer.shift) * learner.model.normalizer.scale
    if learner.model.num_actions:
        every = net(seen)
        return torch.stack([every[i, int(action)] for i, action in enumerate(actions)])
    return net(torch.cat([seen, actions], 1))[:, 0]


def test_it_has_two_names_and_trains_no_policy() -> None:
    assert algorithms.FQEAlgorithm is FQE
    assert {"FQE", "FQEAlgorithm", "fqe_loss"} <= set(algorithms.__all__)
    assert "fqe" not in algorithm_names()


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_formula_of_the_page(kind: type[FQE]) -> None:
    """Written again with `torch.nn`, in float64: targets, clipping, loss, step and target network."""
    learner = judge(kind, gamma=0.9, tau=0.25, learning_rate=RATE, weight_decay=0.125)
    batch = random_batch(discrete=kind.discrete)
    actions, next_actions = batch.actions, batch.next_actions
    batch = double(batch)
    if kind.discrete:
        batch = batch._replace(actions=actions, next_actions=next_actions)
    net, target_net = (member(one.net, 0) for one in (learner.model.critic, learner.model.target_critic))
    offset, scale, low, high = UNITS
    with torch.no_grad():
        following = offset + scale * reference_value(target_net, learner, batch.next_obs, next_actions)
        target = batch.rewards + 0.9 * (1.0 - batch.dones) * following
        bounded = torch.minimum(torch.maximum(target, torch.tensor(low)), torch.tensor(high))
    said = reference_value(net, learner, batch.obs, batch.actions)
    loss = ((said - (bounded - offset) / scale) ** 2).mean()
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=0.125)
    loss.backward()
    optimizer.step()
    learner.step(batch)
    share = float(((target < low) | (target > high)).double().mean())
    assert 0.0 < share < 1.0
    assert float(learner.terms["critic_loss"]) == pytest.approx(float(loss.detach()), rel=1e-12)
    assert float(learner.terms["clipped_share"]) == pytest.approx(share)
    assert float(learner.terms["target_q_mean"]) == pytest.approx(float(bounded.mean()), rel=1e-12)
    after, moved = member(learner.model.critic.net, 0), member(learner.model.target_critic.net, 0)
    for ours, theirs in zip(after.parameters(), net.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    for ours, new, old in zip(moved.parameters(), net.parameters(), target_net.parameters()):
        torch.testing.assert_close(ours, 0.75 * old + 0.25 * new, rtol=0, atol=1e-12)


def test_the_helper_computes_the_same_terms() -> None:
    q, target = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([-9.0, -2.0, 4.0])
    terms = fqe_loss(
        {
            "q_values": q,
            "target_q_values": target,
            **{name: torch.tensor(value) for name, value in zip(("offset", "scale", "low", "high"), UNITS)},
        }
    )
    bounded = [-4.0, -2.0, 1.5]
    expected = sum((x - (y + 3.0) / 2.5) ** 2 for x, y in zip(q.tolist(), bounded)) / 3
    assert float(terms["critic_loss"]) == pytest.approx(expected)
    assert float(terms["clipped_share"]) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("lowest", "highest", "terminates", "bounds"),
    [
        (-1.0, 2.0, False, (-10.0, 20.0)),
        (-1.0, 2.0, True, (-10.0, 20.0)),
        (1.0, 2.0, False, (10.0, 20.0)),
        (1.0, 2.0, True, (1.0, 20.0)),  # one reward may be all there is
        (-2.0, -1.0, True, (-20.0, -1.0)),
    ],
)
def test_bounds_of_values(lowest: float, highest: float, terminates: bool, bounds: tuple[float, float]) -> None:
    assert value_bounds(lowest, highest, 0.9, terminates=terminates) == pytest.approx(bounds)


def test_values_are_in_the_original_units_and_within_the_bounds() -> None:
    model = MLPFQEModel(OBS, 2, (8,))
    with torch.no_grad():
        model.critic.net.head.weight.zero_()
        model.critic.net.head.bias.fill_(0.5)
    model.set_units(10.0, 4.0, -100.0, 100.0)
    assert model.q_values(torch.zeros(5, OBS), torch.zeros(5, 2)).tolist() == [12.0] * 5
    model.set_units(10.0, 4.0, -100.0, 11.0)
    assert model.q_values(torch.zeros(OBS), torch.zeros(2)).tolist() == [11.0]


def test_a_discrete_policy_gives_an_index() -> None:
    model = MLPFQEModel(OBS, 1, (8,), num_actions=CHOICES)
    obs, chosen = torch.randn(6, OBS), torch.tensor([0, 1, 2, 3, 0, 1])
    every = model.all_q_values(obs)
    assert every.shape == (6, CHOICES)
    assert torch.equal(model.q_values(obs, chosen), every[torch.arange(6), chosen])


@pytest.mark.parametrize("value", [1.0, 1.5, -0.1, math.nan])
def test_a_discount_must_be_below_1(value: float) -> None:
    with pytest.raises(ValueError, match=r"^gamma must be"):
        FQE(model=MLPFQEModel(OBS, 2, (8,)), gamma=value)


def test_a_batch_without_the_policy_s_actions_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^batch: fqe needs the column 'next_actions'"):
        build(FQE).update(random_batch()._replace(next_actions=None), global_step=0)


def test_an_update_moves_the_critic_and_its_target_only() -> None:
    learner = judge(FQE)
    before = snapshot(learner)
    learner.step(double(random_batch()))
    moved = {name.split(".")[1] for name, old in before.items() if not torch.equal(old, snapshot(learner)[name])}
    assert moved == {"critic", "target_critic"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_is_its_single_run(kind: type[FQE]) -> None:
    assert_members_equal(kind, updates=8, normalize=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_member_is_its_single_run_for_long(kind: type[FQE]) -> None:
    assert_members_equal(kind, updates=100, normalize=True)


def test_members_may_differ_in_numbers() -> None:
    """But for the decay, which belongs to the optimiser of all."""
    changes = [numbers_of(FQE, place) | {"weight_decay": 0.01} for place in range(SIZE)]
    assert_members_equal(FQE, changes, updates=6)
    assert len(learners_of(FQE, changes)) == SIZE


def test_members_may_not_differ_in_the_settings_of_their_optimisers() -> None:
    """One decay for the whole stack: two would be the first member's on a GPU."""
    one, other = (FQE.structure(FQE.Config(weight_decay=decay)) for decay in (0.01, 0.02))
    assert one != other
    assert FQE.structure(FQE.Config(gamma=0.9)) == FQE.structure(FQE.Config(gamma=0.8))
    learners = learners_of(FQE, [{"weight_decay": decay} for decay in (0.01, 0.01, 0.02)])
    with pytest.raises(ConfigError, match=r"^weight_decay: the members' optimisers differ in it \(critic: [^\n]*$"):
        Stack(learners)
