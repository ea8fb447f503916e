"""Acceleration of updates: selected by `accelerate`, reported by the learner's execution, without effect on
results.

Tested for every algorithm of the registry. On a CPU an `Updater` is compared with the learner's own `update` and
`step`; on a GPU captured updates are compared with eager ones. Everything an update changes must be bit-identical.
"""

from __future__ import annotations

import copy
import gc
import logging
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # imported here, so that its side effects are not attributed to this package
from torch import Tensor

from benchmarks.speed.depth import TOLERANCE
from rl_training.algorithms import CRR, DQN, IQL, SAC, TD3, FlashSAC, Learner, capturing
from rl_training.algorithms.base import Terms
from rl_training.algorithms.optim import apply_lists
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.sources import BatchSource, MixedSource, TensorSource
from rl_training.data.transitions import RowLayout
from rl_training.errors import ConfigError
from rl_training.experience.acting import ActingPolicy, WeightTransfer
from rl_training.experiment.registry import list_algorithm_specs
from rl_training.models.arrays import ArrayMLP
from rl_training.models.mlp import MLP
from rl_training.updates.schedules import OptimizationConfig
from rl_training.updates.updater import _BLOCK, Acceleration, Updater, accelerate, choose
from tests.helpers import BATCH, CONTINUOUS, DISCRETE, OBS, build, label, random_batch
from tests.runs import mostly_slow

Kind = type[Learner]
KINDS: list[Kind] = [learner for spec in list_algorithm_specs() for learner in spec.learners]
TOTAL = 40  # total updates of a schedule
SCHEDULES: dict[str, dict[str, Any]] = {
    "cosine": {"learning_rate_schedule": "cosine"},
    "linear": {"learning_rate_schedule": "linear"},
    "linear to a tenth": {"learning_rate_schedule": {"type": "linear", "final_factor": 0.1}},
    "warm-up": {"warmup_steps": 5},
    "warm-up, then cosine": {"warmup_steps": 5, "learning_rate_schedule": "cosine"},
}

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
REPRESENTATIVE = (SAC, IQL, DQN)  # online, offline and discrete, for tests that do not depend on the algorithm

every_learner = pytest.mark.parametrize("kind", KINDS, ids=label)
few_learners = pytest.mark.parametrize("kind", mostly_slow(KINDS, *REPRESENTATIVE, FlashSAC), ids=label)
every_device = pytest.mark.parametrize("device", DEVICES)


def needs_gpu(test: Any) -> Any:
    """Skip a test once without a GPU, regardless of its parameters."""
    if not torch.cuda.is_available():
        test.pytestmark = [pytest.mark.skip(reason="needs a CUDA device")]
    return test


def layout_of(kind: Kind) -> RowLayout:
    return RowLayout.of(DISCRETE if kind.discrete else CONTINUOUS, kind.extras)


def packed(kind: Kind, *, seed: int = 0, size: int = 64) -> Tensor:
    """Random rows `[size, width]`, with next actions if the learner needs them."""
    first, second = (random_batch(discrete=kind.discrete, seed=seed + i, size=size) for i in range(2))
    columns = (column.numpy() for column in first[:5])
    extras = {column.name: getattr(second, column.like).numpy() for column in kind.extras}
    return torch.from_numpy(layout_of(kind).pack(*columns, **extras))


def plain(learner: Learner, *, seed: int = 0) -> TensorSource:
    kind = type(learner)
    return TensorSource(packed(kind, seed=seed).to(learner.device), layout_of(kind), learner.generator)


def pinned(learner: Learner) -> TensorSource:
    kind = type(learner)
    return TensorSource(packed(kind).pin_memory(), layout_of(kind), torch.Generator().manual_seed(3))


def mixed(learner: Learner) -> MixedSource:
    return MixedSource(plain(learner, seed=0), plain(learner, seed=5), ratio=0.25)


def replay(learner: Learner, generator: torch.Generator | None = None, *, pin: bool = False) -> ReplayBuffer:
    kind = type(learner)
    buffer = ReplayBuffer(48, layout_of(kind), generator or learner.generator, pin=pin)
    buffer.add(packed(kind, size=20).numpy())
    return buffer


def pinned_replay(learner: Learner) -> ReplayBuffer:
    return replay(learner, torch.Generator().manual_seed(3), pin=True)


@dataclass(frozen=True)
class Setting:
    """Settings of updates in addition to the learner; `changes` apply to learners that have the key."""

    source: Callable[[Learner], BatchSource] = plain
    normalize: bool = False
    schedule: str | None = None
    changes: dict[str, Any] = field(default_factory=dict)

    def suits(self, kind: Kind) -> bool:
        return not self.changes or bool(self.known(kind))

    def known(self, kind: Kind) -> dict[str, Any]:
        return {key: value for key, value in self.changes.items() if key in kind.Config.model_fields}


PLAIN = Setting()
SETTINGS = {
    "rows": PLAIN,
    "normalised": Setting(normalize=True),
    "scheduled": Setting(schedule="warm-up, then cosine"),
    "mixed": Setting(mixed),
    "replay": Setting(replay),
    # Periods that do not divide a block; behaviour cloning that ends inside one.
    "other-periods": Setting(changes={"policy_delay": 3, "target_update_interval": 3, "bc_steps": 7}),
    "every-optimiser": Setting(changes={"alpha": "auto", "lagrange_threshold": 5.0}),
    "gaussian": Setting(changes={"policy_distribution": "gaussian", "stochastic": True}),
    "tanh": Setting(changes={"policy_distribution": "tanh", "stochastic": True}),
}
HOST_SETTINGS = {
    "pinned": Setting(pinned),
    "pinned-replay": Setting(pinned_replay, schedule="linear"),
}


def combinations(settings: dict[str, Setting], *, mostly_slow: Sequence[str] = ()) -> Any:
    """Every learner with every suitable setting; those in `mostly_slow` run with a few learners by default."""
    found = [
        pytest.param(
            kind,
            setting,
            id=f"{label(kind)}-{name}",
            marks=[pytest.mark.slow] if name in mostly_slow and kind not in REPRESENTATIVE else [],
        )
        for kind in KINDS
        for name, setting in settings.items()
        if setting.suits(kind)
    ]
    return pytest.mark.parametrize(("kind", "setting"), found)


def make_learner(kind: Kind, setting: Setting = PLAIN, device: str = "cpu") -> Learner:
    learner: Learner = build(kind, normalize=setting.normalize, device=device, **setting.known(kind))
    if setting.normalize:
        learner.model.normalizer.set_moments(torch.linspace(-1.0, 1.0, OBS), torch.linspace(0.5, 2.0, OBS))
    return learner


def make_updater(learner: Learner, setting: Setting = PLAIN, acceleration: Acceleration | None = None) -> Updater:
    if acceleration is not None:
        accelerate(learner, acceleration)
    schedule = None if setting.schedule is None else OptimizationConfig.parse(SCHEDULES[setting.schedule])
    return Updater(learner, setting.source(learner), BATCH, schedule=schedule, total_updates=TOTAL)


def make(
    kind: Kind, setting: Setting = PLAIN, device: str = "cpu", acceleration: Acceleration | None = None
) -> Updater:
    return make_updater(make_learner(kind, setting, device), setting, acceleration)


State = dict[str, bytes]


def contents(learner: Learner) -> State:
    """Bytes of the state that updates read and write, without counters: networks, moments, rates, generators."""
    state = learner.state_dict()
    tensors = {
        **state["networks"],
        **{f"optimizer {name}": tensor for name, tensor in state["optimizers"].items()},
        **{f"rate {name}": optimizer.learning_rate for name, optimizer in learner.optimizers.items()},
        "generator": learner.generator.get_state(),
    }
    return {name: tensor.detach().cpu().numpy().tobytes() for name, tensor in tensors.items()}


def whole(learner: Learner) -> State:
    """`contents`, the terms and the number of updates."""
    terms = {f"term {name}": term.detach().cpu().numpy().tobytes() for name, term in learner.terms.items()}
    return contents(learner) | terms | {"updates": str(learner.updates).encode()}


def differences(one: State, other: State) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def follow(updater: Updater, counts: Sequence[int]) -> list[State]:
    """The state after each of `counts` further updates; a replay buffer grows in between, past its capacity."""
    found = []
    for count in counts:
        updater.run(count)
        found.append(whole(updater.learner))
        if isinstance(updater.source, ReplayBuffer):
            updater.source.add(packed(type(updater.learner), seed=updater.learner.updates, size=12).numpy())
    return found


def different(ours: list[State], theirs: list[State]) -> list[list[str]]:
    """What differs at each stop; empty if two ways of updating are equal."""
    assert len(ours) == len(theirs)
    return [differences(one, other) for one, other in zip(ours, theirs)]


def global_state() -> Any:
    """Process-wide state that updates must not change."""
    return (
        list(warnings.filters),
        torch._dynamo.config.recompile_limit,
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_rng_state().numpy().tobytes(),
    )


# On any machine.


def by_update(learner: Learner, rows: BatchSource) -> None:
    batch = rows.layout.unpack(rows.sample_rows(BATCH))
    learner.update(batch, global_step=learner.updates)


def by_step(learner: Learner, rows: BatchSource) -> None:
    learner.step(rows.layout.unpack(rows.sample_rows(BATCH)))


@combinations(
    {name: setting for name, setting in SETTINGS.items() if setting.schedule is None},
    mostly_slow=("normalised", "mixed", "replay", "gaussian", "tanh"),
)
def test_updates_are_those_of_the_learner(kind: Kind, setting: Setting) -> None:
    """Compared with `update` and `step` on the same minibatches; the caller need not advance the counter."""
    updater, learner = make(kind, setting, acceleration="eager"), make_learner(kind, setting)
    rows = setting.source(learner)
    for count in (1, 3, 5):
        updater.run(count)
        for i in range(count):
            (by_update if i % 2 == 0 else by_step)(learner, rows)
        assert differences(whole(updater.learner), whole(learner)) == []
    assert learner.updates == 9


@pytest.mark.parametrize("acceleration", ["eager", "auto"])
def test_without_accelerate_updates_are_eager(acceleration: Acceleration) -> None:
    ours, theirs = make(TD3), make(TD3, acceleration=acceleration)
    assert ours.learner.execution == theirs.learner.execution
    assert different(follow(ours, [3]), follow(theirs, [3])) == [[]]


@every_device
@combinations(
    {name: SETTINGS[name] for name in ("rows", "scheduled", "other-periods")}, mostly_slow=("rows", "scheduled")
)
def test_updates_do_not_depend_on_how_they_are_requested(kind: Kind, setting: Setting, device: str) -> None:
    """All at once, one by one, or in other portions."""
    acceleration: Acceleration = "graph" if device == "cuda" else "eager"
    count = 2 * _BLOCK + 3 if device == "cuda" else _BLOCK + 1
    whole_lot, *others = (
        follow(make(kind, setting, device, acceleration), counts)[-1:]
        for counts in ([count], [1] * count, [5, 1, count - 6])
    )
    assert [different(portions, whole_lot) for portions in others] == [[[]], [[]]]


def test_zero_updates_change_nothing() -> None:
    updater = make(SAC)
    before = whole(updater.learner)
    updater.run(0)
    assert differences(whole(updater.learner), before) == []


def record_rates(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """Record the learning rate of each optimiser at each following update."""
    found: list[dict[str, float]] = []
    original = learner.gradient_step

    def watched(*args: Any) -> Any:
        found.append({name: float(optimizer.learning_rate) for name, optimizer in learner.optimizers.items()})
        return original(*args)

    monkeypatch.setattr(learner, "gradient_step", watched)
    return found


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, id=f"{label(kind)}-{name}", marks=marks)
        for kind in KINDS
        for name in SCHEDULES
        for marks in ([] if kind is SAC or name == "warm-up, then cosine" else [pytest.mark.slow],)
    ],
)
def test_a_schedule_sets_the_rates_of_each_update(kind: Kind, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scheduled optimisers follow `OptimizationConfig.factor`, also beyond its end; the others keep their rate."""
    schedule, updates = OptimizationConfig.parse(SCHEDULES[name]), 12
    learner = make_learner(kind)
    for i, optimizer in enumerate(learner.optimizers.values(), start=1):  # each its own, so that none is mistaken
        optimizer.base_learning_rate *= i
        optimizer.learning_rate.fill_(optimizer.base_learning_rate)
    updater = Updater(learner, plain(learner), BATCH, schedule=schedule, total_updates=updates - 2)
    rates = record_rates(learner, monkeypatch)
    updater.run(5)
    updater.run(updates - 5)
    turned = {key for key, optimizer in learner.optimizers.items() if optimizer in learner.scheduled_optimizers()}

    def factor(key: str, update: int) -> float:
        if kind is FlashSAC and key == "actor":  # whose own steps count
            update = sum(map(learner.variant, range(update)))
        return schedule.factor(update, updates - 2) if key in turned else 1.0

    assert len({factor(key, update) for key in turned for update in range(updates)}) > 1
    assert turned
    assert rates == [
        {
            key: float(torch.tensor(optimizer.base_learning_rate * factor(key, update)))
            for key, optimizer in learner.optimizers.items()
        }
        for update in range(updates)
    ]


@pytest.mark.parametrize("schedule", [None, OptimizationConfig(), OptimizationConfig(batch_size=4)])
def test_without_a_schedule_rates_are_left_alone(schedule: OptimizationConfig | None) -> None:
    learner = make_learner(SAC)
    learner.optimizers["actor"].learning_rate.fill_(0.5)
    Updater(learner, plain(learner), BATCH, schedule=schedule, total_updates=TOTAL).run(3)
    assert float(learner.optimizers["actor"].learning_rate) == 0.5


def test_the_host_queues_the_updates_of_two_calls_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class Event:
        def __init__(self) -> None:
            self.number = sum(one.startswith("queue") for one in log)
            log.append(f"queue {self.number}")

        def synchronize(self) -> None:
            log.append(f"wait for {self.number}")

    class Stream:
        record_event = staticmethod(Event)

    learner = make_learner(SAC)
    updater = Updater(learner, plain(learner), BATCH)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    monkeypatch.setattr(updater, "_side", object())
    monkeypatch.setattr(updater, "_replay", lambda variants, rates, side: None)
    for count in (_BLOCK, _BLOCK, 1, _BLOCK, _BLOCK):
        updater.run(count)
    assert log == ["queue 0", "queue 1", "wait for 0", "queue 2", "wait for 1", "queue 3"]


@pytest.mark.parametrize(
    ("device", "done"),
    [
        pytest.param("cpu", 1, marks=pytest.mark.slow),
        *((device, 13 if device == "cuda" else 7) for device in DEVICES),
    ],
)
@combinations({name: SETTINGS[name] for name in ("rows", "scheduled")}, mostly_slow=["rows"])
def test_a_restored_learner_continues_bit_for_bit(kind: Kind, setting: Setting, done: int, device: str) -> None:
    """A new learner with a new updater starts with the rates of the last update."""
    acceleration: Acceleration = "graph" if device == "cuda" else "eager"
    straight = make(kind, setting, device, acceleration)
    if kind is FlashSAC:
        done -= 1  # then the next update has all terms, which are not part of the state
    straight.run(done)
    saved = copy.deepcopy(straight.learner.state_dict()), straight.learner.generator.get_state()
    learner = make_learner(kind, setting, device)
    learner.seed(99)
    learner.load_state_dict(saved[0])
    learner.generator.set_state(saved[1])
    resumed = make_updater(learner, setting, acceleration)
    assert differences(contents(learner), contents(straight.learner)) == []
    counts = [1, 12 if device == "cuda" else 5]
    assert different(follow(resumed, counts), follow(straight, counts)) == [[], []]


@every_device
@pytest.mark.parametrize("acceleration", ["eager", "compile"])
@few_learners
def test_making_an_updater_changes_nothing(kind: Kind, acceleration: Acceleration, device: str) -> None:
    learner = make_learner(kind, device=device)
    accelerate(learner, acceleration)
    source = plain(learner)
    execution, torch_state, learner_state = learner.execution, global_state(), whole(learner)
    copied = copy.copy(execution)
    schedule = OptimizationConfig.parse(SCHEDULES["cosine"])
    Updater(learner, source, BATCH, schedule=schedule, total_updates=TOTAL)
    assert learner.execution is execution
    assert execution == copied
    assert global_state() == torch_state
    assert differences(whole(learner), learner_state) == []


@every_device
@few_learners
def test_updates_change_the_learner_only(kind: Kind, device: str) -> None:
    before = global_state()
    learner = make_learner(kind, device=device)
    accelerate(learner, "graph" if device == "cuda" else "eager")
    prepared = copy.copy(learner.execution)
    torch_state = global_state()
    make_updater(learner).run(_BLOCK + 1)
    assert learner.execution.branches == prepared.branches
    assert learner.execution.acceleration == prepared.acceleration
    assert global_state() == torch_state
    assert torch_state[:-1] == before[:-1]  # building the networks has drawn from torch's own generator


def test_accelerating_again_starts_from_scratch() -> None:
    learner = build(SAC)
    plain_execution = learner.execution
    accelerate(learner, "compile")
    assert learner.execution.acceleration == "compile"
    assert learner.execution.apply is not plain_execution.apply
    accelerate(learner, "auto")
    assert learner.execution == plain_execution


def test_graphs_without_a_gpu_are_refused_in_one_line() -> None:
    learner = build(SAC)
    execution = learner.execution
    with pytest.raises(ConfigError, match=r"^acceleration: 'graph' needs a CUDA device; use [^\n]*$") as refused:
        accelerate(learner, "graph")
    assert refused.value.key == "acceleration"
    assert learner.execution is execution


@pytest.fixture
def _no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@every_device
@pytest.mark.usefixtures("_no_compiler")
def test_without_a_compiler_updates_continue_with_one_warning(
    device: str, caplog: pytest.LogCaptureFixture
) -> None:
    """On a GPU they are still captured."""
    fallback: Acceleration = "graph" if device == "cuda" else "eager"
    ours = make(TD3, device=device, acceleration="compile")
    assert ours.learner.execution.acceleration == fallback
    assert different(follow(ours, [13]), follow(make(TD3, device=device, acceleration="eager"), [13])) == [[]]
    assert warned(caplog) == [f"no C compiler found: updates are not compiled (acceleration: {fallback})"]


@pytest.mark.parametrize(
    ("acceleration", "device", "chosen", "warnings_given"),
    [
        ("auto", "cpu", "eager", 0),
        ("eager", "cpu", "eager", 0),
        ("compile", "cpu", "eager", 1),
        ("auto", "cuda", "graph", 1),
        ("compile", "cuda", "graph", 1),
        ("eager", "cuda", "eager", 0),
        ("graph", "cuda", "graph", 0),
    ],
)
@pytest.mark.usefixtures("_no_compiler")
def test_the_mode_that_is_selected_without_a_compiler(
    acceleration: Acceleration, device: str, chosen: str, warnings_given: int, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no warning unless compilation was requested."""
    assert choose(acceleration, torch.device(device)) == chosen
    assert len(warned(caplog)) == warnings_given


def parameters(learner: Learner) -> Tensor:
    networks = learner.state_dict()["networks"].values()
    return torch.cat([t.detach().cpu().double().reshape(-1) for t in networks if t.is_floating_point()])


@pytest.mark.slow
@every_device
@pytest.mark.parametrize(
    ("kind", "setting"),
    [(TD3, "rows"), (IQL, "rows"), (CRR, "gaussian")],
    ids=lambda part: getattr(part, "name", part),
)
def test_compiled_updates_are_as_near_as_is_said(kind: Kind, setting: str, device: str) -> None:
    """After one update, relative to how far the parameters have moved."""
    eager, compiled = (make(kind, SETTINGS[setting], device, mode) for mode in ("eager", "compile"))
    assert compiled.learner.execution.acceleration == "compile", "needs a C compiler"
    start = parameters(eager.learner)
    assert torch.equal(start, parameters(compiled.learner))
    for updater in (eager, compiled):
        updater.run(1)
    moved = parameters(eager.learner) - start
    apart = parameters(compiled.learner) - parameters(eager.learner)
    assert moved.norm() > 0
    assert apart.norm() <= TOLERANCE[1] * moved.norm()
    assert compiled.learner.terms.keys() == eager.learner.terms.keys()


def test_a_cpu_acts_with_the_learner_s_own_tensors() -> None:
    learner = build(SAC)
    acting, obs = ActingPolicy(learner), random_batch().obs
    learner.update(random_batch(), global_step=0)
    assert torch.equal(acting.current().mode(obs), learner.model.policy.mode(obs))


# On a GPU.


# Adam's first steps one by one; a block, a block again, and the single updates that are left over.
STOPS = [1, 1, 1, _BLOCK, _BLOCK + 7]


@needs_gpu
@combinations(SETTINGS | HOST_SETTINGS)
def test_captured_updates_equal_eager_ones(kind: Kind, setting: Setting) -> None:
    eager, captured = (make(kind, setting, "cuda", acceleration) for acceleration in ("eager", "graph"))
    assert different(follow(captured, STOPS), follow(eager, STOPS)) == [[]] * len(STOPS)
    sizes = {len(variants) for variants in captured._graphs}
    assert sizes == ({1} if captured.source.device.type == "cpu" else {1, _BLOCK})
    assert eager._graphs == {}
    used = {variant for variants in captured._graphs for variant in variants}
    assert used == {captured.learner.variant(update) for update in range(sum(STOPS))}


class Leftover:
    """Rows in pinned memory that only the garbage collector can free."""

    def __init__(self) -> None:
        self.rows = torch.zeros(64, pin_memory=True)
        self.there = torch.empty(64, device="cuda")
        self.there.copy_(self.rows, non_blocking=True)
        self.myself = self


@needs_gpu
def test_nothing_is_freed_while_updates_are_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage is freed before the capture; freeing it during the capture would end this process."""
    updater, seen = make(SAC, PLAIN, "cuda", "graph"), []
    original = updater.learner.gradient_step

    def watched(*given: Any) -> Terms:
        if torch.cuda.is_current_stream_capturing():
            seen.append((gc.isenabled(), left() is None))
        return original(*given)

    left = weakref.ref(Leftover())
    monkeypatch.setattr(updater.learner, "gradient_step", watched)
    updater.run(1)
    assert seen == [(False, True)]
    assert gc.isenabled()


@needs_gpu
@every_learner
def test_updates_that_are_requested_together_are_captured_together(kind: Kind) -> None:
    """And equals eager updates bit for bit; the remaining updates are captured as usual."""
    eager = make(kind, SETTINGS["scheduled"], "cuda", "eager")
    plain = make(kind, SETTINGS["scheduled"], "cuda", "graph")
    options = {"schedule": plain.schedule, "total_updates": plain.total_updates}
    captured = Updater(plain.learner, plain.source, plain.batch_size, together=8, **options)
    stops = [8, 8, 3, 8, 21]
    assert different(follow(captured, stops), follow(eager, stops)) == [[]] * len(stops)
    assert {len(variants) for variants in captured._graphs} == {1, 8, _BLOCK}


def follow_moments(updater: Updater, stops: Sequence[int], *, change: bool = True) -> list[State]:
    """The state after each of `stops`, between which the clipped normaliser gets other moments."""
    updater.learner.model.normalizer.clip(1.5)
    found = []
    for i, stop in enumerate(stops):
        if change:
            updater.learner.normalize_by(torch.full((OBS,), 0.1 * i), torch.linspace(0.1, 1.0 + i, OBS))
        found += follow(updater, [stop])
    return found


@needs_gpu
@combinations({"replay": Setting(replay, normalize=True), "pinned": Setting(pinned_replay, normalize=True)})
def test_captured_updates_see_moments_that_change(kind: Kind, setting: Setting) -> None:
    """As with running statistics between rounds of updates: no new graph is captured, nothing is read back."""
    eager, captured = (make(kind, setting, "cuda", acceleration) for acceleration in ("eager", "graph"))
    ours = follow_moments(captured, STOPS)
    graphs = {*captured._graphs}
    assert different(ours, follow_moments(eager, STOPS)) == [[]] * len(STOPS)
    assert {*captured._graphs} == graphs
    still = follow_moments(make(kind, setting, "cuda", "graph"), STOPS, change=False)
    assert all(different(ours, still))


@needs_gpu
@combinations({"rows": PLAIN, "scheduled": SETTINGS["scheduled"], "pinned": HOST_SETTINGS["pinned"]})
def test_capturing_leaves_no_trace(kind: Kind, setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture without a replay changes neither parameters, optimisers nor random numbers."""
    updater = make(kind, setting, "cuda", "graph")
    updater.run(3)
    before = contents(updater.learner)
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda self: None)
    for count in (1, _BLOCK):
        updater._graphs.clear()
        updater.run(count)
        assert updater._graphs
        assert differences(contents(updater.learner), before) == []


@needs_gpu
@every_learner
def test_an_update_that_fails_before_it_is_captured_leaves_no_trace(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes made by the warm-up updates are undone."""
    updater = make(kind, device="cuda", acceleration="graph")
    before, original, calls = whole(updater.learner), updater.learner.gradient_step, 0

    def fails(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError("no")
        return original(*args)

    monkeypatch.setattr(updater.learner, "gradient_step", fails)
    with pytest.raises(RuntimeError, match="no"):
        updater.run(1)
    assert differences(whole(updater.learner), before) == []
    assert not updater._graphs
    monkeypatch.undo()
    theirs = make(kind, device="cuda", acceleration="eager")
    assert different(follow(updater, [2]), follow(theirs, [2])) == [[]]


@needs_gpu
@every_learner
def test_graphs_follow_a_state_that_is_loaded(kind: Kind) -> None:
    """A captured update keeps addresses, so a state is restored in place."""
    updater = make(kind, device="cuda", acceleration="graph")
    learner = updater.learner
    updater.run(3)
    saved = copy.deepcopy(learner.state_dict()), learner.generator.get_state()
    first = follow(updater, [_BLOCK + 1])
    captured = {*updater._graphs}
    learner.load_state_dict(saved[0])
    learner.generator.set_state(saved[1])
    assert different(follow(updater, [_BLOCK + 1]), first) == [[]]
    assert {*updater._graphs} == captured


@needs_gpu
@every_learner
def test_two_updaters_of_one_learner_take_turns(kind: Kind) -> None:
    """As in RLPD: first prior data, then minibatches from two sources, with another number of updates."""
    states = []
    for acceleration in ("eager", "graph"):
        learner = make_learner(kind, device="cuda")
        accelerate(learner, acceleration)
        first, second = (make_updater(learner, Setting(source)) for source in (plain, mixed))
        found = follow(first, [_BLOCK + 1])
        learner.period_offset = learner.updates
        states.append([*found, *follow(second, [_BLOCK, 3]), *follow(first, [2])])
    assert different(*states) == [[]] * 4


@needs_gpu
def test_destroying_a_graph_does_not_free_the_memory_of_others() -> None:
    """Both are captured on one stream; the first graph is the first to use cuBLAS on it."""
    earlier, later = (make(SAC, device="cuda", acceleration="graph") for _ in range(2))
    eager = follow(make(SAC, device="cuda", acceleration="eager"), [_BLOCK + 1, _BLOCK + 1])
    earlier.run(1)
    first = follow(later, [_BLOCK + 1])
    earlier.forget()
    torch.cuda.empty_cache()  # unmaps what was freed
    assert different([*first, *follow(later, [_BLOCK + 1])], eager) == [[], []]


@needs_gpu
@every_learner
def test_captured_updates_read_nothing_back(kind: Kind) -> None:
    updater = make(kind, device="cuda", acceleration="graph")
    updater.run(2 * _BLOCK + 4)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        updater.run(2 * _BLOCK + 4)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    ("kind", "activation"),
    [
        pytest.param(kind, activation, id=f"{label(kind)}-{activation}", marks=marks)
        for kind in KINDS
        for activation in ("relu", "tanh", "elu", "gelu")
        for marks in ([] if kind in REPRESENTATIVE or activation == "relu" else [pytest.mark.slow],)
    ],
)
def test_the_acting_copy_equals_the_policy(kind: Kind, activation: str) -> None:
    """With numpy if it has the activation; one row, many rows, any noise, after an update and a new normaliser."""
    free = {"eta": 0.0} if "eta" in kind.Config.model_fields else {}  # of the activation
    learner = build(kind, normalize=True, network={"activation": activation}, **free)
    acting, policy = ActingPolicy(learner, copies=True), learner.model.policy
    for _ in range(2):
        copied = acting.current()
        assert copied is not policy
        on_arrays = isinstance(policy.actor.net, MLP) and activation in ("relu", "tanh")
        assert isinstance(copied.actor.net, ArrayMLP) == on_arrays
        for rows in (1, 7):
            obs = 3.0 * torch.randn(rows, OBS)
            noise = torch.randn(rows, learner.model.action_dim) if policy.stochastic else None
            with torch.inference_mode():
                assert torch.allclose(copied.mode(obs), policy.mode(obs), rtol=0, atol=1e-6)
                if noise is not None:
                    assert torch.allclose(copied.sample(obs, noise), policy.sample(obs, noise), rtol=0, atol=1e-6)
        assert differences(held(copied), held(policy)) == []
        learner.update(random_batch(discrete=kind.discrete), global_step=0)
        learner.normalize_by(torch.linspace(-1.0, 1.0, OBS), torch.linspace(0.5, 2.0, OBS))


def held(policy: torch.nn.Module) -> State:
    return {name: tensor.detach().cpu().numpy().tobytes() for name, tensor in policy.state_dict().items()}


@needs_gpu
@every_learner
def test_from_a_gpu_the_acting_copy_follows_the_learner(kind: Kind) -> None:
    """After eager and captured updates and after loading a state; it stays the same object on the CPU."""
    updater = make(kind, SETTINGS["normalised"], "cuda", "graph")
    learner, policy = updater.learner, updater.learner.model.policy
    acting, obs = ActingPolicy(learner), random_batch().obs
    copied = acting.current()
    assert {tensor.device.type for tensor in copied.state_dict().values()} == {"cpu"}

    def same() -> bool:
        assert acting.current() is copied
        near = torch.allclose(copied.mode(obs), policy.mode(obs.cuda()).cpu(), atol=1e-5)
        return near and differences(held(copied), held(policy)) == []

    assert same()
    start, seen = copy.deepcopy(learner.state_dict()), held(copied)
    for count in (1, 1, _BLOCK, 3):
        updater.run(count)
        assert same()
    assert differences(held(copied), seen)
    by_step(learner, updater.source)
    assert same()
    learner.load_state_dict(start)
    assert same()
    assert differences(held(copied), seen) == []


@needs_gpu
@every_learner
def test_captured_updates_transfer_the_weights_to_the_acting_copy(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transfer is part of the graph, no other one is started, and the copy equals the policy bit for bit."""
    updater = make(kind, SETTINGS["normalised"], "cuda", "graph")
    acting, policy = ActingPolicy(updater.learner), updater.learner.model.policy
    updater.acting, original = acting, WeightTransfer.copy

    def captured_alone(self: WeightTransfer) -> None:
        assert torch.cuda.is_current_stream_capturing(), "copied beside the graph"
        original(self)

    for count in (1, _BLOCK, 1, _BLOCK):
        with monkeypatch.context() as watching:
            watching.setattr(WeightTransfer, "copy", captured_alone)
            updater.run(count)
            seen = held(acting.current())
        assert differences(seen, held(policy)) == []
    by_step(updater.learner, updater.source)
    assert differences(held(acting.current()), held(policy)) == []


@every_device
@every_learner
def test_the_acting_copy_gets_moments_that_change_before_the_first_update(kind: Kind, device: str) -> None:
    """Running statistics change the normaliser only, without waiting for the device."""
    learner = make_learner(kind, Setting(normalize=True), device)
    learner.model.normalizer.clip()
    acting = ActingPolicy(learner)
    for i in range(3):
        mean, std = torch.full((OBS,), 5.0 * i), torch.linspace(0.01, 1.0 + i, OBS)
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        try:
            learner.normalize_by(mean, std)
        finally:
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("default")
        seen = acting.current().normalizer
        assert torch.equal(seen.shift, mean)
        assert torch.equal(seen.scale, 1.0 / (std + 1e-3))
        assert seen(torch.full((1, OBS), 99.0)).max() == 10.0


@needs_gpu
def test_the_acting_copy_is_made_once_per_version(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner(SAC, device="cuda")
    rows, acting, copies, original = plain(learner), ActingPolicy(learner), 0, torch.cat

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        nonlocal copies
        copies += 1
        return original(*args, **kwargs)

    for expected in (1, 2, 3):
        by_step(learner, rows)
        with monkeypatch.context() as watching:
            watching.setattr(torch, "cat", counted)
            for _ in range(3):
                acting.current()
        assert copies == expected


@needs_gpu
def test_on_a_gpu_eager_updates_use_the_list_operations_that_are_captured() -> None:
    assert make_learner(SAC, device="cuda").execution.apply is apply_lists


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.11.0+cu130", ["begin", "end"]), ("2.13.0+cu130", ["clear", "begin", "end", "clear"])],
)
def test_a_graph_has_its_own_workspaces_of_cublas(
    version: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Existing workspaces and those of the graph must not be in the memory of another graph."""
    done: list[str] = []

    @contextmanager
    def graph(_: object, *, stream: object) -> Iterator[None]:
        assert stream == "main"
        done.append("begin")
        yield
        done.append("end")

    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: done.append("clear"), raising=False)
    monkeypatch.setattr(capturing, "streams", lambda device: capturing.Streams("main", "side", ()))  # type: ignore[arg-type]
    with capturing.capturing(object(), torch.device("cuda")):  # type: ignore[arg-type]
        assert done[-1] == "begin"
    assert done == expected
