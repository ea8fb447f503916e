"""Members of a population compared with single runs, update for update, for every algorithm of the registry.

Random draws are bit-identical. Computed values are equal up to the order of summation: in float64 within 1e-7 after
a hundred updates, in float32 within the tolerance of compiled updates.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.speed.depth import TOLERANCE
from rl_training.algorithms import CQL, IQL, SAC, TD3, CrossQ, Learner
from rl_training.algorithms.base import Terms
from rl_training.algorithms.execution import draw
from rl_training.data.sources import BatchSource, MixedSource, TensorSource
from rl_training.data.transitions import TransitionBatch
from rl_training.errors import ConfigError
from rl_training.experience.acting import ActingPolicy, fetch_together
from rl_training.experience.fqe_data import Units
from rl_training.updates.schedules import OptimizationConfig
from rl_training.updates.stack import Stack
from rl_training.updates.stacked import StackedUpdater
from rl_training.updates.updater import Acceleration, Updater, accelerate
from tests.helpers import BATCH, OBS, build, label, random_batch, snapshot
from tests.runs import mostly_slow
from tests.test_acceleration import (
    DEVICES,
    KINDS,
    REPRESENTATIVE,
    SCHEDULES,
    TOTAL,
    Kind,
    State,
    differences,
    every_learner,
    layout_of,
    needs_gpu,
    packed,
    parameters,
    replay,
    whole,
)

SIZE = 3
SEEDS = (0, 4, 7)
# Every variant several times over; and far enough that a difference of formulas could not hide.
SHORT = 5
LENGTHS = [SHORT, pytest.param(100, marks=pytest.mark.slow)]
EVERY_OPTIMISER = {"alpha": "auto", "lagrange_threshold": 5.0}
Sources = Callable[[Sequence[Learner]], list[BatchSource]]
# For what a stack does alike to every learner.
few_learners = pytest.mark.parametrize("kind", mostly_slow(KINDS, *REPRESENTATIVE, CQL), ids=label)


def rows_of(learner: Learner, seed: int = 0) -> Tensor:
    """Random rows in the learner's precision, on its device."""
    example = next(learner.model.parameters())
    return packed(type(learner), seed=seed).to(example)


def shared(learners: Sequence[Learner]) -> list[BatchSource]:
    """One data set for all members; each samples its own minibatches."""
    rows = rows_of(learners[0])
    return [TensorSource(rows, layout_of(type(one)), one.generator) for one in learners]


def apart(learners: Sequence[Learner]) -> list[BatchSource]:
    """Separate rows for each member, as collected by online members."""
    return [TensorSource(rows_of(one, i), layout_of(type(one)), one.generator) for i, one in enumerate(learners)]


def mixed(learners: Sequence[Learner]) -> list[BatchSource]:
    return [MixedSource(one, two, ratio=0.25) for one, two in zip(shared(learners), apart(learners))]


def replays(learners: Sequence[Learner]) -> list[BatchSource]:
    return [replay(one) for one in learners]


def learners_of(
    kind: Kind,
    changes: Sequence[dict[str, Any]] = ({},) * SIZE,
    *,
    normalize: bool = False,
    double: bool = False,
    device: str = "cpu",
    network: dict[str, Any] | None = None,
) -> list[Learner]:
    """One learner per seed, with different hyperparameters if `changes` is given."""
    found = []
    for i, (seed, change) in enumerate(zip(SEEDS, changes, strict=True)):
        known = {key: value for key, value in change.items() if key in kind.Config.model_fields}
        learner: Learner = build(kind, normalize=normalize, network=network, seed=seed, device=device, **known)
        if normalize:
            moments = torch.linspace(-1.0, 1.0, OBS) + i, torch.linspace(0.5, 2.0, OBS)
            learner.model.normalizer.set_moments(*(moment.to(device) for moment in moments))
        if double:
            in_double_precision(learner)
        found.append(learner)
    return found


def in_double_precision(learner: Learner) -> None:
    for module in learner.modules().values():
        module.double()
    for optimizer in learner.optimizers.values():
        optimizer.exp_avg = [moment.double() for moment in optimizer.exp_avg]
        optimizer.exp_avg_sq = [moment.double() for moment in optimizer.exp_avg_sq]


def alone(
    learners: Sequence[Learner],
    sources: Sources = shared,
    *,
    schedule: str | None = None,
    acceleration: Acceleration = "eager",
) -> list[Updater]:
    """An ordinary updater for each."""
    turned = None if schedule is None else OptimizationConfig.parse(SCHEDULES[schedule])
    for learner in learners:
        accelerate(learner, acceleration)
    return [
        Updater(learner, source, BATCH, schedule=turned, total_updates=TOTAL)
        for learner, source in zip(learners, sources(learners))
    ]


def together(*arguments: Any, **options: Any) -> StackedUpdater:
    """One updater for all of those that `alone` makes."""
    updaters = alone(*arguments, **options)
    return StackedUpdater(Stack([updater.learner for updater in updaters]), updaters)


def furthest(stacked: StackedUpdater, singles: Sequence[Updater]) -> float:
    """The largest difference of any number that an update leaves, between each member and its single run."""
    found = [0.0]
    for ours, theirs in zip(stacked.stack.learners, (single.learner for single in singles), strict=True):
        for part in ("networks", "optimizers"):
            here, there = (one.state_dict()[part] for one in (ours, theirs))
            assert here.keys() == there.keys()
            found += [float((here[key] - there[key]).abs().max()) for key in here]
        assert ours.terms.keys() == theirs.terms.keys()
        found += [float((ours.terms[key] - theirs.terms[key]).abs()) for key in ours.terms]
    return max(found)


def unmoved(before: dict[str, Tensor], learner: Learner) -> list[str]:
    """Parameters, targets included, that are as they were; what is fixed aside."""
    fixed = ("model.normalizer.", "temperature.fixed", *(f"model.{unit}" for unit in Units._fields))
    after = snapshot(learner)
    return [name for name in before if not name.startswith(fixed) and torch.equal(before[name], after[name])]


def assert_members_equal(kind: Kind, *arguments: Any, updates: int, **options: Any) -> None:
    """In float64, after one update and after many: networks, optimisers, terms, random numbers, counters."""
    sources = {key: options.pop(key) for key in ("sources", "schedule") if key in options}
    ours, theirs = (learners_of(kind, *arguments, double=True, **options) for _ in range(2))
    before = [snapshot(learner) for learner in ours]
    stacked, singles = together(ours, **sources), alone(theirs, **sources)
    assert furthest(stacked, singles) == 0.0
    for count in (1, updates - 1):
        stacked.run(count)
        for single in singles:
            single.run(count)
        assert furthest(stacked, singles) <= 1e-7
    for start, learner, single in zip(before, ours, theirs):
        assert unmoved(start, learner) == []
        assert torch.equal(learner.generator.get_state(), single.generator.get_state())
        assert learner.updates == single.updates == updates
        assert learner.version == single.version
        for name, optimizer in learner.optimizers.items():
            assert torch.equal(optimizer.learning_rate, single.optimizers[name].learning_rate)


# What each member is made of.


@few_learners  # a wrong draw of any learner is seen in `test_with_all_that_can_be_learned`
def test_random_draws_are_bit_identical(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Initial networks, minibatches, noise and generator states, for several updates."""
    ours, theirs = learners_of(kind), learners_of(kind)
    assert [differences(whole(one), whole(other)) for one, other in zip(ours, theirs)] == [[]] * SIZE
    stacked, singles = together(ours), alone(theirs)
    drawn: dict[int, list[Tensor]] = {id(learner): [] for learner in (*ours, *theirs)}

    def watch(learner: Learner) -> None:
        def watched(*arguments: Any) -> Tensor:
            drawn[id(learner)].append(draw(*arguments))
            return drawn[id(learner)][-1]

        learner.execution.draw = watched

    def watch_rows(updater: Updater, learners: Sequence[Learner]) -> None:
        original = updater._sample

        def watched() -> Tensor:
            rows = original()
            for learner, own in zip(learners, rows.view(len(learners), BATCH, -1)):
                drawn[id(learner)].append(own)
            return rows

        monkeypatch.setattr(updater, "_sample", watched)

    for learner in (*ours, *theirs):
        watch(learner)
    watch_rows(stacked, ours)
    for single in singles:
        watch_rows(single, [single.learner])
    for updater in (stacked, *singles):
        updater.run(5)
    for one, other in zip(ours, theirs):
        pairs = list(zip(drawn[id(one)], drawn[id(other)], strict=True))
        assert len(pairs) >= 5
        assert all(torch.equal(*pair) for pair in pairs)
        assert torch.equal(one.generator.get_state(), other.generator.get_state())
    assert not torch.equal(drawn[id(ours[0])][0], drawn[id(ours[1])][0])


@pytest.mark.slow
@every_learner
def test_a_member_is_its_single_run(kind: Kind) -> None:
    assert_members_equal(kind, updates=100)


@every_learner
def test_with_all_that_can_be_learned(kind: Kind) -> None:
    """Temperatures and multipliers, normalised observations, rows of their own, a schedule."""
    options: dict[str, Any] = {"normalize": True, "sources": apart, "schedule": "warm-up, then cosine"}
    assert_members_equal(kind, (EVERY_OPTIMISER,) * SIZE, updates=SHORT, **options)


def numbers_of(kind: Kind, place: int) -> dict[str, Any]:
    """Every hyperparameter that is a plain number, for one member: moved a little, each by another share."""
    config = build(kind).config
    usual = {key: value for key, value in dict(config).items() if isinstance(value, float)}
    optional = {"target_entropy": -1.5, "lagrange_threshold": 5.0}
    usual |= {key: value for key, value in optional.items() if key in kind.Config.model_fields}
    usual = {
        key: value for key, value in usual.items() if key not in kind.structure(config.model_copy(update=usual))
    }
    factors = torch.linspace(0.8, 0.95, len(usual)).tolist()
    return {
        key: value * factor**place if value else 0.01 * factor * place
        for (key, value), factor in zip(usual.items(), factors)
    }


@pytest.mark.parametrize("updates", LENGTHS)
@every_learner
def test_members_may_differ_in_every_number(kind: Kind, updates: int) -> None:
    changes = [numbers_of(kind, place) for place in range(SIZE)]
    of_data = {name for column in kind.extras for name in column.settings}
    assert {"learning_rate", "gamma"} - of_data <= changes[0].keys()
    assert all(len({change[key] for change in changes}) == SIZE for key in changes[0])
    ours = learners_of(kind, changes, double=True)
    assert together(ours).stack.varying.keys() == changes[0].keys()
    assert_members_equal(kind, changes, updates=updates)


_PLACES = itertools.count()


class _Head(torch.nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale


class _Stored(SAC):
    """Computes a number from a setting once, which the update of a population cannot see."""

    where = "learner"

    def __init__(self, *, model: Any, **hyperparameters: Any) -> None:
        super().__init__(model=model, **hyperparameters)
        half = 0.5 * self.config.gamma
        self.last, self.place = float("nan"), next(_PLACES)  # as a learner may have of its own
        self.fill = torch.full((2,), torch.nan).to_sparse()
        if self.where == "learner":
            self.half = half
        elif self.where == "tensor":
            self.half = torch.tensor(half)
        else:
            self.head = _Head(half)

    def modules(self) -> dict[str, torch.nn.Module]:
        return super().modules() | ({"head": self.head} if self.where == "module" else {})


@pytest.mark.parametrize("where", ["learner", "tensor", "module"])
def test_a_number_that_is_stored_must_be_the_same_for_all(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Stored, "where", where)
    assert len(together(learners_of(_Stored)).stack) == SIZE
    place = "_Head.scale" if where == "module" else "_Stored.half"
    with pytest.raises(ConfigError, match=rf"the members differ in {place}, .* first one's") as caught:
        together(learners_of(_Stored, ({}, {"gamma": 0.5}, {})))
    assert "\n" not in str(caught.value)


class _Crossing(SAC):
    """The loss of one optimiser has gradients for another one, of which a single run takes none."""

    shares = False

    def __init__(self, *, model: Any, **hyperparameters: Any) -> None:
        super().__init__(model=model, **hyperparameters)
        if self.shares:
            self.optimizers["actor"] = self.adam(model.actor, model.critics.net.head)

    def actor_loss(self, batch: TransitionBatch, next_noise: Tensor, noise: Tensor) -> tuple[Tensor, Terms]:
        loss, terms = super().actor_loss(batch, next_noise, noise)
        return loss + self.model.critics(batch.obs, batch.actions).mean(), terms


@pytest.mark.parametrize("shares", [False, True])
def test_a_loss_with_gradients_for_another_optimiser_is_refused(
    shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Crossing, "shares", shares)
    ours = learners_of(_Crossing)
    alone(learners_of(_Crossing))[0].run(1)
    before = [whole(learner) for learner in ours]
    with pytest.raises(ConfigError, match=r"has gradients for parameters of .* set population: off$") as caught:
        together(ours).run(1)
    assert "\n" not in str(caught.value)
    assert [differences(whole(learner), own) for learner, own in zip(ours, before)] == [[]] * SIZE


class _Counting(SAC):
    """An update changes a buffer in place."""

    def __init__(self, *, model: Any, **hyperparameters: Any) -> None:
        super().__init__(model=model, **hyperparameters)
        self.seen = torch.nn.Module()
        self.seen.register_buffer("rows", torch.zeros(()))

    def modules(self) -> dict[str, torch.nn.Module]:
        return super().modules() | {"seen": self.seen}

    def gradient_step(self, batch: TransitionBatch, variant: object) -> Terms:
        rows = self.seen.get_buffer("rows").add_(len(batch.rewards))
        return super().gradient_step(batch._replace(rewards=batch.rewards / rows), variant)


def test_an_update_may_change_a_buffer_in_place() -> None:
    assert_members_equal(_Counting, updates=SHORT)


class _Noisy(SAC):
    """The losses draw random numbers."""

    def critic_loss(self, batch: TransitionBatch, next_noise: Tensor, noise: Tensor) -> tuple[Tensor, Terms]:
        noisy = batch._replace(rewards=batch.rewards + self.normal(len(batch.rewards)))
        return super().critic_loss(noisy, next_noise, noise)

    def actor_loss(self, batch: TransitionBatch, next_noise: Tensor, noise: Tensor) -> tuple[Tensor, Terms]:
        loss, terms = super().actor_loss(batch, next_noise, noise)
        return loss * self.uniform(1)[0], terms


def test_a_loss_may_draw_random_numbers() -> None:
    assert_members_equal(_Noisy, updates=SHORT)


class _Annealed(SAC):
    """The weight of a loss depends on the number of updates."""

    def critic_loss(self, batch: TransitionBatch, next_noise: Tensor, noise: Tensor) -> tuple[Tensor, Terms]:
        loss, terms = super().critic_loss(batch, next_noise, noise)
        return loss / (1 + self.updates), terms | {"weight": loss.new_tensor(1 / (1 + self.updates))}


def test_an_eager_update_may_read_its_number() -> None:
    assert_members_equal(_Annealed, updates=SHORT)


@few_learners
def test_each_number_reaches_its_own_member(kind: Kind) -> None:
    """Another gamma or rate for one member changes that one, and the others not by a bit."""
    usual = together(learners_of(kind))
    usual.run(3)
    changed = together(learners_of(kind, ({}, {"learning_rate": 1e-2, "gamma": 0.5}, {})))
    changed.run(3)
    same = [
        torch.equal(parameters(one), parameters(other))
        for one, other in zip(usual.stack.learners, changed.stack.learners)
    ]
    assert same == [True, False, True]


@pytest.mark.parametrize("sources", [apart, mixed, replays], ids=lambda sources: sources.__name__)
@pytest.mark.parametrize("kind", mostly_slow([TD3, SAC, CQL], SAC), ids=lambda kind: kind.name)
def test_from_any_source(kind: Kind, sources: Sources) -> None:
    if sources is replays:  # which keeps float32
        stacked, singles = together(learners_of(kind), sources), alone(learners_of(kind), sources)
        stacked.run(5)
        for single in singles:
            single.run(5)
        assert furthest(stacked, singles) <= 1e-4
    else:
        assert_members_equal(kind, sources=sources, updates=6)


@pytest.mark.parametrize("schedule", mostly_slow(SCHEDULES, "warm-up, then cosine"))
def test_a_schedule_turns_every_member_s_own_rate(schedule: str) -> None:
    changes = [{"learning_rate": rate} for rate in (1e-3, 3e-4, 1e-4)]
    assert_members_equal(IQL, changes, schedule=schedule, updates=12)


def test_a_resumed_member_reports_the_rates_of_its_last_update() -> None:
    first = together(learners_of(SAC), schedule="cosine")
    first.run(7)
    rates = [float(learner.optimizers["actor"].learning_rate) for learner in first.stack.learners]
    again = learners_of(SAC)
    for learner, saved in zip(again, first.stack.learners):
        learner.load_state_dict(saved.state_dict())
    resumed = together(again, schedule="cosine")
    assert [float(learner.optimizers["actor"].learning_rate) for learner in resumed.stack.learners] == rates


@few_learners
def test_in_float32_after_one_update(kind: Kind) -> None:
    """As near as compiled updates are to eager ones, relative to how far the parameters have moved."""
    stacked, singles = together(learners_of(kind)), alone(learners_of(kind))
    starts = [parameters(learner) for learner in stacked.stack.learners]
    stacked.run(1)
    for start, learner, single in zip(starts, stacked.stack.learners, singles):
        single.run(1)
        moved = parameters(single.learner) - start
        assert moved.norm() > 0
        assert (parameters(learner) - parameters(single.learner)).norm() <= TOLERANCE[1] * moved.norm()
        for name, term in single.learner.terms.items():
            torch.testing.assert_close(learner.terms[name], term, rtol=1e-4, atol=1e-5)


# What a stack does to the learners in it.


@few_learners
def test_a_stack_changes_no_number_and_is_seen_through_its_members(kind: Kind) -> None:
    """Objects that reference a member (a session, an acting policy, a checkpoint) see the updates of the stack."""
    learners = learners_of(kind, normalize=True)
    before = [whole(learner) for learner in learners]
    acting = [ActingPolicy(learner) for learner in learners]
    stacked = together(learners)
    assert [differences(whole(one), was) for one, was in zip(learners, before)] == [[]] * SIZE
    obs = random_batch().obs
    seen = [policy.current().mode(obs) for policy in acting]
    stacked.run(2)
    for learner, policy, was in zip(learners, acting, seen):
        assert torch.equal(policy.current().mode(obs), learner.model.policy.mode(obs))
        assert kind.discrete or not torch.equal(policy.current().mode(obs), was)


@few_learners
def test_policies_that_act_are_copied_in_one_transfer(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first access after a change transfers the weights of all members."""
    learners = learners_of(kind, normalize=True)
    acting = [ActingPolicy(learner, copies=True) for learner in learners]
    stacked = together(learners)
    fetch_together(acting, stacked.stack.stacked)
    joined, transfers = torch.cat, []
    monkeypatch.setattr(torch, "cat", lambda *args, **options: transfers.append(args) or joined(*args, **options))
    obs = random_batch().obs
    for _ in range(2):
        stacked.run(2)
        transfers.clear()
        copies = [one.current() for one in acting]
        assert len(transfers) == 1
        for learner, policy in zip(learners, copies):
            assert torch.allclose(policy.mode(obs), learner.model.policy.mode(obs), rtol=0, atol=1e-6)
    learners[1].normalize_by(torch.ones(OBS), 2.0 * torch.ones(OBS))
    assert torch.equal(acting[1].current().normalizer.shift, torch.ones(OBS))
    assert not torch.equal(acting[0].current().normalizer.shift, torch.ones(OBS))


def test_a_loaded_state_is_what_the_next_update_starts_from() -> None:
    """Loading copies in place, so the stack follows."""
    straight = together(learners_of(SAC))
    straight.run(3)
    saved = [(learner.state_dict(), learner.generator.get_state()) for learner in straight.stack.learners]
    other = together(learners_of(SAC))
    other.run(1)
    for learner, (state, random) in zip(other.stack.learners, saved):
        learner.load_state_dict(state)
        learner.generator.set_state(random)
    straight.run(3)
    other.run(3)
    found: list[list[State]] = [[whole(one) for one in stack.stack.learners] for stack in (straight, other)]
    assert [differences(*pair) for pair in zip(*found)] == [[]] * SIZE


@few_learners
def test_one_that_is_not_finite_leaves_the_others_alone(kind: Kind) -> None:
    usual, disturbed = together(learners_of(kind)), together(learners_of(kind))
    with torch.no_grad():
        for parameter in disturbed.stack.learners[1].model.parameters():
            parameter.fill_(torch.nan)
    for updater in (usual, disturbed):
        updater.run(3)
    same = [
        differences(whole(one), whole(other)) == []
        for one, other in zip(usual.stack.learners, disturbed.stack.learners)
    ]
    assert same == [True, False, True]


def test_the_remaining_members_continue_in_a_smaller_stack() -> None:
    usual, singles = together(learners_of(SAC, double=True)), alone(learners_of(SAC, double=True))
    usual.run(4)
    left = usual.members[:2]
    smaller = StackedUpdater(Stack([updater.learner for updater in left]), left)
    smaller.run(4)
    left[0].run(2)  # the last one, without a stack
    for single, count in zip(singles, (10, 8, 4)):
        single.run(count)
        assert single.learner.updates == count
    assert furthest(usual, singles) <= 1e-7


# On a GPU.


# Single updates, blocks of ten and of fifty.
STOPS = [1, 1, 1, 10, 64]


@needs_gpu
@every_learner
def test_captured_updates_equal_eager_ones(kind: Kind) -> None:
    changes = [numbers_of(kind, place) for place in range(SIZE)]
    found = []
    for acceleration in ("eager", "graph"):
        updater = together(
            learners_of(kind, changes, normalize=True, device="cuda"),
            schedule="warm-up, then cosine",
            acceleration=acceleration,
        )
        states = []
        for count in STOPS:
            updater.run(count)
            states += [whole(learner) for learner in updater.stack.learners]
        found.append(states)
    assert [differences(*pair) for pair in zip(*found)] == [[]] * (SIZE * len(STOPS))
    assert {len(variants) for variants in updater._graphs} == {1, 10, 50}


@needs_gpu
@every_learner
def test_on_a_gpu_a_member_is_its_single_run_in_float64(kind: Kind) -> None:
    changes = [numbers_of(kind, place) for place in range(SIZE)]
    assert_members_equal(kind, changes, device="cuda", updates=30)


@needs_gpu
@every_learner
def test_captured_updates_read_nothing_back(kind: Kind) -> None:
    changes = [numbers_of(kind, place) for place in range(SIZE)]
    updater = together(learners_of(kind, changes, device="cuda"), acceleration="graph")
    updater.run(64)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        updater.run(64)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [TD3, IQL, SAC, CrossQ], ids=lambda kind: kind.name)
def test_compiled_updates_are_as_near_as_is_said(kind: Kind, device: str) -> None:
    changes = [numbers_of(kind, place) for place in range(SIZE)]
    eager, compiled = (
        together(learners_of(kind, changes, device=device), acceleration=mode) for mode in ("eager", "compile")
    )
    assert compiled.learner.execution.acceleration == "compile", "needs a C compiler"
    starts = [parameters(learner) for learner in eager.stack.learners]
    for updater in (eager, compiled):
        updater.run(1)
    for start, one, other in zip(starts, eager.stack.learners, compiled.stack.learners):
        moved = parameters(one) - start
        assert moved.norm() > 0
        assert (parameters(other) - parameters(one)).norm() <= TOLERANCE[1] * moved.norm()
        assert other.terms.keys() == one.terms.keys()
