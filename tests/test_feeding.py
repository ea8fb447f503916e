"""Prefetching: the right rows are prefetched, and updates do not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.algorithms import IQL, SAC, TD3, Learner
from rl_training.algorithms.execution import draw
from rl_training.data.mapped import Contents, as_tensor, make_packed, read_ahead
from rl_training.data.sources import BatchSource, MixedSource, Part, TensorSource, WeightedSource
from rl_training.updates.prefetch import BLOCK, CopyingPrefetcher, LookAhead, ReadingPrefetcher
from rl_training.updates.stack import Stack
from rl_training.updates.stacked import StackedUpdater
from rl_training.updates.updater import Updater, accelerate
from tests.helpers import BATCH, label
from tests.runs import mostly_slow
from tests.test_acceleration import (
    KINDS,
    REPRESENTATIVE,
    Kind,
    State,
    differences,
    layout_of,
    make_learner,
    needs_gpu,
    packed,
    plain,
    whole,
)

PARTS = (Part(40, 0.2), Part(24, 0.8))
# More than two blocks, in portions that end inside one.
PORTIONS = [1, BLOCK + 3, 2 * BLOCK + 1]

Made = Callable[[Learner], TensorSource]


def uniform(learner: Learner, **options: Any) -> TensorSource:
    kind = type(learner)
    return TensorSource(packed(kind), layout_of(kind), learner.generator, **options)


def weighted(learner: Learner, **options: Any) -> TensorSource:
    kind = type(learner)
    return WeightedSource(packed(kind), layout_of(kind), learner.generator, PARTS, **options)


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        pytest.param(kind, made, id=f"{label(kind)}-{made.__name__}", marks=marks)
        for kind in KINDS
        for made in (uniform, weighted)
        for marks in ([pytest.mark.slow] if made is weighted and kind not in REPRESENTATIVE else [],)
    ],
)
def test_future_draws_are_predicted(kind: Kind, made: Made) -> None:
    """For every learner, including its other random draws; the learner's own generator does not advance."""
    learner = make_learner(kind)
    source = made(learner)
    drawn: list[Tensor] = []
    original = source.draw

    def watched(batch_size: int, generator: torch.Generator | None = None) -> Tensor:
        index = original(batch_size, generator)
        drawn.extend([index] if generator is None else [])
        return index

    source.draw = watched  # type: ignore[method-assign]
    updater, look = Updater(learner, source, BATCH), LookAhead([(learner, source)], BATCH)
    for count in (1, 9):
        drawn.clear()
        before = whole(learner)
        look.begin()
        foreseen = [look.next()[0] for _ in range(count)]
        assert differences(whole(learner), before) == []
        assert not look.agrees()
        updater.run(count)
        assert len(drawn) == count
        assert all(torch.equal(one, other) for one, other in zip(foreseen, drawn))
        assert look.agrees()


def states(updater: Updater, portions: Sequence[int] = PORTIONS) -> list[State]:
    found = []
    for count in portions:
        updater.run(count)
        found.append(whole(updater.learner))
    return found


@pytest.mark.parametrize("kind", [IQL, TD3], ids=lambda kind: kind.name)
def test_rows_of_a_file_are_prefetched(kind: Kind) -> None:
    asked: list[np.ndarray] = []
    learner = make_learner(kind)
    reading = Updater(learner, uniform(learner, ahead=asked.append), BATCH)
    assert isinstance(reading._prefetcher, ReadingPrefetcher)
    at_hand = make_learner(kind)
    assert states(reading) == states(Updater(at_hand, uniform(at_hand), BATCH))
    assert sum(len(index) for index in asked) == BATCH * sum(PORTIONS)
    assert max(len(index) for index in asked) == BATCH * BLOCK


def test_nothing_is_prefetched_for_rows_in_memory_or_mixtures() -> None:
    learner = make_learner(SAC)
    assert Updater(learner, uniform(learner), BATCH)._prefetcher is None
    mixed = MixedSource(uniform(learner, ahead=lambda index: None), plain(learner), ratio=0.5)
    assert Updater(learner, mixed, BATCH)._prefetcher is None


def test_a_packed_file_is_read_ahead(tmp_path: Path) -> None:
    rows = packed(IQL).numpy()

    def fill(room: np.ndarray) -> Contents:
        room[: len(rows)] = rows
        return Contents(room[: len(rows)], np.array([9, 63]), {"of": "nothing"})

    made = make_packed(tmp_path / "a.rows", "me", (len(rows) + 5, rows.shape[1]), fill)
    np.testing.assert_array_equal(made.rows, rows)
    assert made.episode_ends.tolist() == [9, 63]
    assert made.about == {"of": "nothing"}
    ahead = read_ahead(made.rows)
    assert ahead is not None
    ahead(np.array([0, 63, 63, 5]))
    assert as_tensor(made.rows).data_ptr() == made.rows.ctypes.data
    assert read_ahead(rows) is None


class Stream:
    """Replaces a GPU stream; all operations are synchronous."""

    device = torch.device("cpu")

    def __init__(self, device: Any = None) -> None: ...

    def wait_stream(self, other: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def synchronize(self) -> None: ...


class Event:
    def record(self, stream: Any) -> None: ...


@pytest.fixture
def _no_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())


def copying(learner: Learner, source: TensorSource) -> Updater:
    """Updates on rows that are copied ahead, on a device that is the host."""
    updater = Updater(learner, source, BATCH)
    updater._staged = torch.empty((BATCH, source.layout.width))
    updater._prefetcher = CopyingPrefetcher(LookAhead([(learner, source)], BATCH), source, 1, BATCH)
    return updater


@pytest.mark.usefixtures("_no_streams")
@pytest.mark.parametrize("made", mostly_slow([uniform, weighted], weighted))
@pytest.mark.parametrize("kind", mostly_slow(KINDS, *REPRESENTATIVE), ids=label)
def test_rows_copied_ahead_are_those_that_would_be_drawn(kind: Kind, made: Made) -> None:
    learner, at_hand = make_learner(kind), make_learner(kind)
    portions = [1, BLOCK + 3, 2]
    ours = states(copying(learner, made(learner)), portions)
    assert ours == states(Updater(at_hand, made(at_hand), BATCH), portions)


@pytest.mark.usefixtures("_no_streams")
def test_updates_that_draw_more_than_was_foreseen_are_an_error() -> None:
    learner = make_learner(SAC)
    updater = copying(learner, uniform(learner))
    updater.run(3)
    original, calls = learner.execution.draw, 0

    def once_more(*arguments: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 1:
            draw("normal", (1,), learner.generator)
        return original(*arguments)

    learner.execution.draw = once_more
    with pytest.raises(RuntimeError, match="other random numbers than predicted"):
        updater.run(3)


def together(learners: Sequence[Learner], sources: Sequence[BatchSource]) -> StackedUpdater:
    singles = [Updater(learner, source, BATCH) for learner, source in zip(learners, sources)]
    return StackedUpdater(Stack(learners), singles)


def members(kind: Kind, device: str = "cpu") -> list[Learner]:
    found = [make_learner(kind, device=device) for _ in range(3)]
    for seed, learner in enumerate(found):
        learner.seed(seed)
    return found


@pytest.mark.parametrize("kind", [IQL, TD3], ids=lambda kind: kind.name)
def test_a_population_prefetches_the_rows_of_all_members(kind: Kind) -> None:
    asked: list[np.ndarray] = []
    rows, layout = packed(kind), layout_of(kind)
    found = []
    for options in ({"ahead": asked.append}, {}):
        learners = members(kind)
        updater = together(learners, [TensorSource(rows, layout, one.generator, **options) for one in learners])
        assert isinstance(updater._prefetcher, ReadingPrefetcher if options else type(None))
        updater.run(BLOCK + 2)
        found.append([whole(learner) for learner in learners])
    assert found[0] == found[1]
    assert sum(len(index) for index in asked) == 3 * BATCH * (BLOCK + 2)


# On a GPU.


@needs_gpu
@pytest.mark.parametrize("acceleration", ["eager", "graph"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_rows_in_host_memory_give_the_updates_of_rows_on_the_gpu(kind: Kind, acceleration: Any) -> None:
    found = []
    for there in (False, True):
        learner = make_learner(kind, device="cuda")
        accelerate(learner, acceleration)
        rows = packed(kind).to("cuda") if there else packed(kind)
        updater = Updater(learner, TensorSource(rows, layout_of(kind), learner.generator), BATCH)
        assert isinstance(updater._prefetcher, type(None) if there else CopyingPrefetcher)
        found.append(states(updater))
    assert [differences(one, other) for one, other in zip(*found)] == [[]] * len(PORTIONS)


@needs_gpu
@pytest.mark.parametrize("kind", [IQL, TD3], ids=lambda kind: kind.name)
def test_a_population_s_rows_in_host_memory_too(kind: Kind) -> None:
    found = []
    for rows in (packed(kind).to("cuda"), packed(kind)):
        learners = members(kind, "cuda")
        for learner in learners:
            accelerate(learner, "graph")
        together(learners, [TensorSource(rows, layout_of(kind), one.generator) for one in learners]).run(BLOCK + 2)
        found.append([whole(learner) for learner in learners])
    assert found[0] == found[1]


@needs_gpu
def test_prior_data_in_host_memory_are_mixed_with_a_buffer_on_the_gpu() -> None:
    found = []
    for rows in (packed(SAC).to("cuda"), packed(SAC)):
        learner = make_learner(SAC, device="cuda")
        accelerate(learner, "graph")
        prior = TensorSource(rows, layout_of(SAC), learner.generator)
        found.append(states(Updater(learner, MixedSource(prior, plain(learner, seed=5), ratio=0.25), BATCH)))
    assert found[0] == found[1]
