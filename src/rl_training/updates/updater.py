"""How updates run: eagerly, compiled, or captured as CUDA graphs. The mathematics does not change.

`eager` calls `gradient_step` as it stands. `graph` captures each variant of it, sampling included, as one CUDA
graph of the same kernels: equal to eager to the bit. `compile` lets torch.compile fuse the losses and the optimiser
with the target update, and on a GPU captures the result; it differs from eager by rounding. `auto` is `compile` on
a GPU and `eager` on a CPU, where the time goes into matrix products that compiling does not touch.
"""

from __future__ import annotations

import copy
import gc
import logging
import shutil
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from rl_training.algorithms.base import Learner, Terms
from rl_training.algorithms.execution import Execution
from rl_training.algorithms.optim import apply_lists
from rl_training.data.replay_buffer import PinnedStaging
from rl_training.data.sources import BatchSource
from rl_training.errors import ConfigError
from rl_training.experience.acting import ActingPolicy, WeightTransfer
from rl_training.updates.prefetch import feed_of
from rl_training.updates.schedules import OptimizationConfig

Acceleration = Literal["auto", "eager", "compile", "graph"]
_log = logging.getLogger(__name__)
_WARM_UP_UPDATES = 3
# Updates captured together where that many are due: one launch, and one gap between launches, for all of them.
_BLOCK = 10
# The most of them that are captured as a block of their own, because a loop asks for so many each time.
_LONGEST = 32
# Streams beside the main one: IQL, the widest update, runs five networks side by side.
_BRANCHES = 4


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    terms: Terms  # overwritten by each replay
    rates: Tensor  # learning rates that it reads, one row per update
    couriers: Sequence[WeightTransfer]  # whose transfer is its last part


def require_device(acceleration: Acceleration, device: torch.device) -> None:
    """Refuse what the device cannot run; asked before a run folder is made."""
    if acceleration == "graph" and device.type != "cuda":
        raise ConfigError(
            "acceleration: 'graph' needs a CUDA device; use 'auto', 'eager' or 'compile'", key="acceleration"
        )


def choose(acceleration: Acceleration, device: torch.device) -> Literal["eager", "compile", "graph"]:
    """What `auto` means on a device; compiling is given up, with one warning, where no compiler is found."""
    require_device(acceleration, device)
    on_gpu = device.type == "cuda"
    chosen = ("compile" if on_gpu else "eager") if acceleration == "auto" else acceleration
    if chosen == "compile" and not _can_compile():
        fallback: Literal["graph", "eager"] = "graph" if on_gpu else "eager"
        _log.warning("no C compiler found: going on without compiling (acceleration: %s)", fallback)
        return fallback
    return chosen


def _can_compile() -> bool:
    return any(shutil.which(name) for name in ("cc", "gcc", "clang", "c++", "g++"))


def set_precision(tf32: bool) -> None:
    """TF32 products keep 10 bits of mantissa and are faster where products decide; off unless asked for."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")


def accelerate(learner: Learner, acceleration: Acceleration) -> None:
    """Let the updates of `learner` run as asked: replaces `learner.execution`.

    Compiling also raises torch's limit on recompilations: every learner of a process compiles the same few
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
        execution.branches = _streams(learner.device).branches
    learner.execution = execution


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` compiled whole, anew for every shape."""
    return torch.compile(function, fullgraph=True, dynamic=False)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Around capturing: what an earlier run left behind is freed before it, not in the middle.

    A tensor in pinned memory asks the GPU about itself when it goes, which breaks a capture and ends the process.
    """
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class _Streams(NamedTuple):
    main: torch.cuda.Stream  # what is captured begins and ends here
    side: torch.cuda.Stream  # draws minibatches
    branches: tuple[torch.cuda.Stream, ...]


@cache
def _streams(device: torch.device) -> _Streams:
    """Those of a process: torch has 32 and hands them out in turn, so that with streams of its own the eighth
    learner would find its branches on the stream it captures on, one after the other."""
    main, side, *branches = (torch.cuda.Stream(device) for _ in range(2 + _BRANCHES))  # type: ignore[no-untyped-call]
    return _Streams(main, side, tuple(branches))


@contextmanager
def _known_warnings_ignored() -> Iterator[None]:
    """Around compiling and capturing: torch warns there of what is intended here."""
    with warnings.catch_warnings():
        # torch advises TF32 when it compiles; here it is a switch of the configuration.
        warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
        # Gradients are returned by autograd.grad, never accumulated: an accumulating node's stream is never used.
        warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream does not match")
        yield


class Updater:
    """Runs updates of `learner` on minibatches of `source`, in the way that `accelerate` gave it (else eagerly)."""

    # How many updates are captured together, the largest number that is due first.
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
        """So many updates are asked for `together` as a rule; `acting` is the policy that waits for them, and
        captured ones send it the weights themselves."""
        self.learner = learner
        self.source = source
        self.batch_size = batch_size
        self.schedule = None if schedule is None or schedule.constant else schedule
        self.total_updates = total_updates
        self.together = together
        if together <= _LONGEST:
            self.blocks = tuple(sorted({*self.blocks, together}, reverse=True))
        self.acting = acting
        if learner.updates > 0:  # until the next update a resumed run reports the rates of the last one
            self._set_rates(self._rates(learner.updates - 1))
        self._graphs: dict[tuple[Hashable, ...], _Captured] = {}
        self._compiled: set[Hashable] = set()
        # Where minibatches are drawn beside the updates; without it nothing is captured.
        captures = learner.execution.acceleration != "eager" and learner.device.type == "cuda"
        self._side = _streams(learner.device).side if captures else None
        # Rows of a source in host memory are copied here before each update, so that a graph finds them.
        self._staged: Tensor | None = None
        if source.device != learner.device:
            self._staged = torch.empty((batch_size, source.layout.width), device=learner.device)
        # Brings rows nearer that lie elsewhere than on the device or in memory.
        self._feed = feed_of(self._learners(), self._sources(), batch_size)

    def run(self, count: int) -> None:
        """`count` updates; nothing is read back from the device."""
        if self._feed is not None:
            self._feed.begin(count)
        self._run(count)
        if self._feed is not None:
            self._feed.end()

    def _run(self, count: int) -> None:
        learner = self.learner
        while count > 0:
            size = 1
            if self._side is not None and self._staged is None:
                size = next(block for block in self.blocks if block <= count)
            variants = tuple(learner.variant(learner.updates + i) for i in range(size))
            rates = [self._rates(learner.updates + i) for i in range(size)]
            rows = None if self._feed is None else self._feed.rows()
            if self._staged is not None:
                rows = self._sample() if rows is None else rows.view_as(self._staged)
                self._staged.copy_(rows, non_blocking=True)
            if self._side is None:
                self._set_rates(rates[0])
                self._finish(self._step(variants[0]), size)
            else:
                self._replay(variants, rates, self._side)
            count -= size

    def forget(self) -> None:
        """Drop what was captured: the learner's tensors lie elsewhere now."""
        self._graphs.clear()

    # What updates are made of; a population's differ here (see `population.updates`).

    def _arrivals(self) -> Sequence[PinnedStaging]:
        """Rows to be written before minibatches are drawn on the device."""
        found = () if self._staged is not None else self._sources()
        return [arrivals for source in found for arrivals in source.arrivals]

    def _couriers(self) -> Sequence[WeightTransfer]:
        """Who waits for the weights after each of these updates."""
        transfer = None if self.acting is None else self.acting.transfer
        return () if transfer is None else (transfer,)

    def _sample(self) -> Tensor:
        """Packed rows of the next minibatch, where the source lies."""
        return self.source.sample_rows(self.batch_size)

    def _inputs(self, variant: Hashable) -> Any:
        """What an update needs that does not depend on those before it: the minibatch, observations normalised."""
        rows = self._sample() if self._staged is None else self._staged
        return self.learner.normalized(self.source.layout.unpack(rows))

    def _update(self, inputs: Any, variant: Hashable) -> Terms:
        return self.learner.gradient_step(inputs, variant)

    def _finish(self, terms: Terms, count: int) -> None:
        self.learner.finish_steps(terms, count)

    def _learners(self) -> Sequence[Learner]:
        return (self.learner,)

    def _sources(self) -> Sequence[BatchSource]:
        return (self.source,)

    # How they run.

    def _rates(self, update: int) -> list[float]:
        """The scheduled learning rates at an update; empty where nothing is scheduled."""
        if self.schedule is None:
            return []
        factor = self.schedule.factor(update, self.total_updates)
        return [o.base_learning_rate * factor for o in self.learner.scheduled_optimizers()]

    def _set_rates(self, rates: Sequence[float] | Tensor) -> None:
        if self.schedule is not None:
            self.learner.set_learning_rates(rates)

    def _step(self, variant: Hashable) -> Terms:
        """One update without a graph; the first of a variant compiles, where compiling was asked for."""
        if variant in self._compiled:
            return self._update(self._inputs(variant), variant)
        self._compiled.add(variant)
        with _known_warnings_ignored():
            return self._update(self._inputs(variant), variant)

    def _replay(self, variants: tuple[Hashable, ...], rates: list[list[float]], side: torch.cuda.Stream) -> None:
        if variants not in self._graphs:
            with _known_warnings_ignored():
                self._graphs[variants] = self._capture(variants, side)
        captured = self._graphs[variants]
        if self.schedule is not None:
            captured.rates.copy_(torch.tensor(rates), non_blocking=True)
        captured.graph.replay()
        for arrivals in self._arrivals():
            arrivals.written()
        self._finish(captured.terms, len(variants))
        for transfer in captured.couriers:
            transfer.sent()

    def _capture(self, variants: tuple[Hashable, ...], side: torch.cuda.Stream) -> _Captured:
        """Warm up and capture updates without leaving a trace in networks, optimisers or random numbers.

        Minibatches do not depend on the updates before them, so they are drawn on a branch of their own, beside
        those updates; random numbers are numbered as they are captured, so each draw is the one of an eager update.
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
            inputs = []  # kept until all is captured: the branch must not draw into a minibatch still in use
            with _undisturbed(), torch.cuda.graph(graph, stream=_streams(learner.device).main):
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
                for transfer in self._couriers():
                    transfer.copy()
        finally:
            torch.cuda.synchronize(learner.device)  # a warm-up that failed may still be at work on its stream
            for one, (state, random_state) in zip(self._learners(), before):
                one.load_state_dict(state)
                one.generator.set_state(random_state)
        return _Captured(graph, terms, rates, self._couriers())
