"""Running updates eagerly, compiled, or captured as CUDA graphs; the mathematics is the same.

`eager` calls `gradient_step` directly. `graph` captures each of its variants, including sampling, as one CUDA graph
of the same kernels; results are bit-for-bit equal to eager. `compile` fuses the losses, the optimiser and the
target update with torch.compile, and captures the result on a GPU; results differ from eager by rounding. `auto` is
`compile` on a GPU and `eager` on a CPU, where matrix products dominate, which compiling does not speed up.
"""

from __future__ import annotations

import copy
import logging
import shutil
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from rl_training.algorithms.base import Learner, Terms
from rl_training.algorithms.batch_checks import require_own_draws, require_terms
from rl_training.algorithms.capturing import capturing, known_warnings_ignored, streams
from rl_training.algorithms.execution import Execution
from rl_training.algorithms.optim import apply_lists
from rl_training.data.replay_buffer import PinnedStaging
from rl_training.data.sources import BatchSource
from rl_training.errors import ConfigError
from rl_training.experience.acting import ActingPolicy, WeightTransfer
from rl_training.models.mlp import HalfPrecision
from rl_training.updates.prefetch import prefetcher_for
from rl_training.updates.schedules import OptimizationConfig

Acceleration = Literal["auto", "eager", "compile", "graph"]
_log = logging.getLogger(__name__)
COMPILERS = ("cc", "gcc", "clang", "c++", "g++")
_WARM_UP_UPDATES = 3
# Number of updates in one graph, if that many are due: they share one launch.
_BLOCK = 10
# Largest `together` that gets a graph of its own.
_LONGEST = 32
# Number of calls of `run` whose captured updates may be queued on the device.
_QUEUED = 2


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    terms: Terms  # overwritten by each replay
    rates: Tensor  # learning rates that the graph reads, one row per update
    transfers: Sequence[WeightTransfer]  # weight copies at the end of the graph


def require_device(acceleration: Acceleration, device: torch.device) -> None:
    """Raise if the device does not support `acceleration`; called before a run folder is created."""
    if acceleration == "graph" and device.type != "cuda":
        raise ConfigError.of("acceleration", "'graph' needs a CUDA device; use 'auto', 'eager' or 'compile'")


def choose(acceleration: Acceleration, device: torch.device) -> Literal["eager", "compile", "graph"]:
    """Resolve `auto` for a device; without a C compiler, warn and do not compile."""
    require_device(acceleration, device)
    on_gpu = device.type == "cuda"
    chosen = ("compile" if on_gpu else "eager") if acceleration == "auto" else acceleration
    if chosen == "compile" and not any(map(shutil.which, COMPILERS)):
        fallback: Literal["graph", "eager"] = "graph" if on_gpu else "eager"
        _log.warning("no C compiler found: updates are not compiled (acceleration: %s)", fallback)
        return fallback
    return chosen


def set_precision(tf32: bool, bf16: bool = False) -> None:
    """Enable or disable TF32 matrix products, and bfloat16 products of wide layers, on a GPU."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    HalfPrecision.enabled = bf16


def accelerate(learner: Learner, acceleration: Acceleration) -> None:
    """Replace `learner.execution` according to `acceleration`.

    Compiling also raises torch's recompilation limit, because every learner of a process compiles the same few
    functions for its own shapes.
    """
    chosen, on_gpu = choose(acceleration, learner.device), learner.device.type == "cuda"
    execution = Execution.on(learner.device)
    execution.acceleration = chosen
    if chosen == "compile":
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 1_024)
        execution.transform = compiled
        execution.apply = compiled(apply_lists)
    if chosen != "eager" and on_gpu:
        execution.branches = streams(learner.device).branches
    learner.execution = execution


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` compiled as one graph, once per input shape."""
    return torch.compile(function, fullgraph=True, dynamic=False)


class Updater:
    """Runs updates of `learner` on minibatches of `source`, as set by `accelerate` (default: eagerly)."""

    # Numbers of updates that are captured as one graph, in decreasing order.
    blocks: tuple[int, ...] = (_BLOCK, 1)

    def __init__(
        self,
        learner: Learner,
        source: BatchSource,
        batch_size: int,
        *,
        schedule: OptimizationConfig | None = None,
        total_updates: int = 0,
        together: int = 1,
        acting: ActingPolicy | None = None,
    ) -> None:
        """`together`: usual number of updates per `run`. `acting`: the policy that acts after them; captured
        updates copy the weights to it."""
        self.learner = learner
        self.source = source
        self.batch_size = batch_size
        self.schedule = None if schedule is None or schedule.constant else schedule
        self.total_updates = total_updates
        self.together = together
        if together <= _LONGEST:
            self.blocks = tuple(sorted({*self.blocks, together}, reverse=True))
        self.acting = acting
        if learner.updates > 0:  # a resumed run reports the learning rates of its last update until the next one
            self._set_rates(self._rates(learner.updates - 1))
        self._graphs: dict[tuple[Hashable, ...], _Captured] = {}
        self._begun: set[Hashable] = set()  # variants that have had an update
        # Stream that draws minibatches concurrently with the updates; None if updates are not captured.
        captures = learner.execution.acceleration != "eager" and learner.device.type == "cuda"
        self._side = streams(learner.device).side if captures else None
        self._queued: deque[torch.cuda.Event] = deque()
        # Rows of a source in host memory are copied to this tensor before each update; a graph reads them here.
        self._staged: Tensor | None = None
        if source.device != learner.device:
            self._staged = torch.empty((batch_size, source.layout.width), device=learner.device)
        self._prefetcher = prefetcher_for(self._learners(), self._sources(), batch_size)

    def run(self, count: int) -> None:
        """Run `count` updates without reading anything back from the device.

        Captured updates are queued. Before many of them, wait for those of an earlier call, because a run notices
        signals and time limits only between two calls.
        """
        learner = self.learner
        many = self._side is not None and count >= _BLOCK
        if many and len(self._queued) == _QUEUED:
            self._queued.popleft().synchronize()
        if self._prefetcher is not None:
            self._prefetcher.begin(count)
        while count > 0:
            size = 1
            if self._side is not None and self._staged is None:
                size = next(block for block in self.blocks if block <= count)
            variants = tuple(learner.variant(learner.updates + i) for i in range(size))
            rates = [self._rates(learner.updates + i) for i in range(size)]
            rows = None if self._prefetcher is None else self._prefetcher.rows()
            if self._staged is not None:
                rows = self._sample() if rows is None else rows.view_as(self._staged)
                self._staged.copy_(rows, non_blocking=True)
            if self._side is None:
                self._set_rates(rates[0])
                with self._first_update(variants[0]):
                    terms = self._update(self._inputs(variants[0]), variants[0])
                self._finish(terms, size)
            else:
                self._replay(variants, rates, self._side)
            count -= size
        if many:
            self._queued.append(torch.cuda.current_stream(learner.device).record_event())
        if self._prefetcher is not None:
            self._prefetcher.end()

    def forget(self) -> None:
        """Drop the captured graphs, because the learner's tensors have moved."""
        self._graphs.clear()

    # Parts of an update that `StackedUpdater` overrides.

    def _arrivals(self) -> Sequence[PinnedStaging]:
        """Staged rows that must be written before minibatches are drawn on the device."""
        found = () if self._staged is not None else self._sources()
        return [arrivals for source in found for arrivals in source.arrivals]

    def _transfers(self) -> Sequence[WeightTransfer]:
        """The weight transfers that follow these updates."""
        transfer = None if self.acting is None else self.acting.transfer
        return () if transfer is None else (transfer,)

    def _sample(self) -> Tensor:
        """Packed rows of the next minibatch, on the device of the source."""
        return self.source.sample_rows(self.batch_size)

    def _inputs(self, variant: Hashable) -> Any:
        """Inputs of an update that do not depend on earlier updates: a minibatch with normalised observations."""
        rows = self._sample() if self._staged is None else self._staged
        return self.learner.normalized(self.source.layout.unpack(rows))

    def _update(self, inputs: Any, variant: Hashable) -> Terms:
        return require_terms(self.learner, self.learner.gradient_step(inputs, variant))

    def _finish(self, terms: Terms, count: int) -> None:
        self.learner.finish_steps(terms, count)

    def _learners(self) -> Sequence[Learner]:
        return (self.learner,)

    def _sources(self) -> Sequence[BatchSource]:
        return (self.source,)

    def _rates(self, update: int) -> list[float]:
        """The scheduled learning rates at `update`; empty without a schedule."""
        if self.schedule is None:
            return []
        learner, factor, total = self.learner, self.schedule.factor, self.total_updates
        return [
            one.base_learning_rate * factor(learner.schedule_step(one, update), total)
            for one in learner.scheduled_optimizers()
        ]

    def _set_rates(self, rates: Sequence[float] | Tensor) -> None:
        if self.schedule is not None:
            self.learner.set_learning_rates(rates)

    def _first_update(self, variant: Hashable) -> AbstractContextManager[None]:
        """In the first update of a variant: hides warnings of the compiler, or checks the draws of an eager one."""
        if variant in self._begun:
            return nullcontext()
        self._begun.add(variant)
        eager = self.learner.execution.acceleration == "eager"
        return require_own_draws(self.learner) if eager else known_warnings_ignored()

    def _replay(self, variants: tuple[Hashable, ...], rates: list[list[float]], side: torch.cuda.Stream) -> None:
        if variants not in self._graphs:
            with known_warnings_ignored():
                self._graphs[variants] = self._capture(variants, side)
        captured = self._graphs[variants]
        if self.schedule is not None:
            captured.rates.copy_(torch.tensor(rates), non_blocking=True)
        captured.graph.replay()
        for arrivals in self._arrivals():
            arrivals.written()
        self._finish(captured.terms, len(variants))
        for transfer in captured.transfers:
            transfer.sent()

    def _capture(self, variants: tuple[Hashable, ...], side: torch.cuda.Stream) -> _Captured:
        """Warm up and capture updates; networks, optimisers and random generators are restored afterwards.

        Minibatches do not depend on earlier updates, so they are drawn on a separate stream, concurrently with
        them. Random numbers are assigned in the order of the capture, so each draw equals that of an eager update.
        """
        learner = self.learner
        before = [(copy.deepcopy(one.state_dict()), one.generator.get_state()) for one in self._learners()]
        rates = torch.tensor(
            [self._rates(learner.updates + i) for i in range(len(variants))], device=learner.device
        )
        try:
            side.wait_stream(torch.cuda.current_stream(learner.device))
            with torch.cuda.stream(side):
                for variant in {*variants}:
                    for _ in range(_WARM_UP_UPDATES):
                        self._update(self._inputs(variant), variant)
            torch.cuda.current_stream(learner.device).wait_stream(side)
            torch.cuda.synchronize(learner.device)
            graph = torch.cuda.CUDAGraph()
            for one in self._learners():
                graph.register_generator_state(one.generator)
            terms: Terms = {}
            inputs = []  # kept until the end: the side stream must not reuse the memory of a minibatch
            with capturing(graph, learner.device):
                main = torch.cuda.current_stream(learner.device)
                for arrivals in self._arrivals():
                    arrivals.write()
                side.wait_stream(main)
                for i, variant in enumerate(variants):
                    with torch.cuda.stream(side):
                        inputs.append(self._inputs(variant))
                    main.wait_stream(side)
                    self._set_rates(rates[i])
                    terms |= self._update(inputs[i], variant)
                for transfer in self._transfers():
                    transfer.copy()
        finally:
            torch.cuda.synchronize(learner.device)  # a failed warm-up may still be running on its stream
            for one, (state, random_state) in zip(self._learners(), before):
                one.load_state_dict(state)
                one.generator.set_state(random_state)
        return _Captured(graph, terms, rates, self._transfers())
