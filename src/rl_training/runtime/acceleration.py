"""How updates run: eagerly, compiled, or recorded as CUDA graphs. The mathematics does not change.

`eager` calls `gradient_step` as it stands. `graph` records each phase of it, sampling included, as one CUDA graph
of the same kernels: equal to eager to the bit. `compile` lets torch.compile fuse the losses and the optimiser with
the target update, and on a GPU records the result; it differs from eager by rounding. `auto` is `compile` on a GPU
and `eager` on a CPU, where the time goes into matrix products that compiling does not touch.
"""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Hashable, Sequence
from typing import Literal

import torch
from torch import Tensor

from rl_training.algorithms.base import Execution, Learner, Terms
from rl_training.algorithms.optim import apply_lists
from rl_training.data.sources import BatchSource
from rl_training.data.transitions import TransitionBatch
from rl_training.errors import ConfigError
from rl_training.runtime.schedules import OptimizationConfig

Acceleration = Literal["auto", "eager", "compile", "graph"]
_log = logging.getLogger(__name__)
_WARM_UP_UPDATES = 3
# Updates recorded together where that many are due: one launch, and one gap between launches, for all of them.
_BLOCK = 10
# Streams beside the main one: IQL, the widest update, evaluates five networks side by side.
_BRANCHES = 4
# A graph, the terms its replay overwrites, and the learning rates it reads, one row per update.
_Recorded = tuple[torch.cuda.CUDAGraph, Terms, Tensor]


def require_device(acceleration: Acceleration, device: torch.device) -> None:
    """Refuse a mode the device cannot run; asked before a run folder is made."""
    if acceleration == "graph" and device.type != "cuda":
        raise ConfigError(
            "acceleration: 'graph' needs a CUDA device; use 'auto', 'eager' or 'compile'", key="acceleration"
        )


def choose(acceleration: Acceleration, device: torch.device) -> Literal["eager", "compile", "graph"]:
    """The mode to run in; compiling is given up, with one warning, where no compiler is found."""
    require_device(acceleration, device)
    on_gpu = device.type == "cuda"
    mode = ("compile" if on_gpu else "eager") if acceleration == "auto" else acceleration
    if mode == "compile" and not _can_compile():
        fallback: Literal["graph", "eager"] = "graph" if on_gpu else "eager"
        _log.warning("no C compiler found: going on without compiling (acceleration: %s)", fallback)
        return fallback
    return mode


def _can_compile() -> bool:
    return any(shutil.which(name) for name in ("cc", "gcc", "clang", "c++", "g++"))


def set_precision(tf32: bool) -> None:
    """TF32 products keep 10 bits of mantissa and are faster where products decide; off unless asked for."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Updater:
    """Runs updates of `learner` on minibatches of `source`."""

    def __init__(
        self,
        learner: Learner,
        source: BatchSource,
        batch_size: int,
        *,
        mode: Acceleration = "auto",
        schedule: OptimizationConfig | None = None,
        total_updates: int = 0,
    ) -> None:
        self.learner = learner
        self.source = source
        self.batch_size = batch_size
        self.mode = choose(mode, learner.device)
        self.schedule = None if schedule is None or schedule.constant else schedule
        self.total_updates = total_updates
        if learner.updates > 0:  # until the next update a resumed run reports the rates of the last one
            self._set_rates(self._rates(learner.updates - 1))
        self._graphs: dict[tuple[Hashable, ...], _Recorded] = {}
        on_gpu = learner.device.type == "cuda"
        if self.mode == "compile":
            # Every learner of a process compiles the same few functions for its own shapes.
            torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 1_024)
            learner.execution = Execution(
                transform=lambda loss: torch.compile(loss, fullgraph=True, dynamic=False),
                apply=torch.compile(apply_lists, fullgraph=True, dynamic=False),
            )
            # torch advises TF32 at each compilation; here it is a switch of the configuration.
            warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
        # Where minibatches are drawn; without it nothing is recorded.
        self._side: torch.cuda.Stream | None = None
        if self.mode != "eager" and on_gpu:
            self._side = _stream(learner.device)
            # Gradients are returned by autograd.grad, never accumulated: the stream of a node that would is moot.
            warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream does not match")
            learner.execution.branches = tuple(_stream(learner.device) for _ in range(_BRANCHES))
        # Rows of a source in host memory are copied here before each update, so that a graph finds them.
        self._staged: Tensor | None = None
        if source.device != learner.device:
            self._staged = torch.empty((batch_size, source.layout.width), device=learner.device)

    def run(self, count: int) -> None:
        """`count` updates; nothing is read back from the device."""
        while count > 0:
            size = _BLOCK if self._side is not None and self._staged is None and count >= _BLOCK else 1
            phases = self._upcoming(size)
            rates = [self._rates(self.learner.updates + i) for i in range(size)]
            if self._staged is not None:
                self._staged.copy_(self.source.sample_rows(self.batch_size), non_blocking=True)
            if self._side is None:
                self._set_rates(rates[0])
                terms = self.learner.gradient_step(self._batch(), phases[0])
            else:
                terms = self._replay(phases, rates, self._side)
            self.learner.finish_steps(terms, size)
            count -= size

    def _upcoming(self, size: int) -> tuple[Hashable, ...]:
        """The phases of the next `size` updates."""
        first = self.learner.updates
        try:
            phases = []
            for i in range(size):
                self.learner.updates = first + i
                phases.append(self.learner.phase())
        finally:
            self.learner.updates = first
        return tuple(phases)

    def _rates(self, update: int) -> list[float]:
        """The scheduled learning rates at an update; empty where nothing is scheduled."""
        if self.schedule is None:
            return []
        factor = self.schedule.factor(update, self.total_updates)
        return [o.base_learning_rate * factor for o in self.learner.scheduled_optimizers()]

    def _set_rates(self, rates: Sequence[float] | Tensor) -> None:
        if self.schedule is not None:
            self.learner.set_learning_rates(rates)

    def _batch(self) -> TransitionBatch:
        """The next minibatch, observations normalised."""
        rows = self.source.sample_rows(self.batch_size) if self._staged is None else self._staged
        return self.learner.normalized(self.source.layout.unpack(rows))

    def _replay(self, phases: tuple[Hashable, ...], rates: list[list[float]], side: torch.cuda.Stream) -> Terms:
        if phases not in self._graphs:
            self._graphs[phases] = self._record(phases, side)
        graph, terms, inputs = self._graphs[phases]
        if self.schedule is not None:
            inputs.copy_(torch.tensor(rates), non_blocking=True)
        graph.replay()
        return terms

    def _record(self, phases: tuple[Hashable, ...], side: torch.cuda.Stream) -> _Recorded:
        """Warm up and record updates without leaving a trace in networks, optimisers or random numbers.

        Minibatches do not depend on the updates before them, so they are drawn on a branch of their own, beside
        those updates; random numbers are numbered as they are recorded, so each draw stays the one of eager mode.
        """
        learner = self.learner
        state = learner.state_dict()
        tensors = [*state["networks"].values(), *state["optimizers"].values()]
        saved = [tensor.clone() for tensor in tensors]
        random_state = learner.generator.get_state()
        rates = torch.tensor([self._rates(learner.updates + i) for i in range(len(phases))], device=learner.device)
        side.wait_stream(torch.cuda.current_stream(learner.device))
        with torch.cuda.stream(side):
            for phase in {*phases}:
                for _ in range(_WARM_UP_UPDATES):
                    learner.gradient_step(self._batch(), phase)
        torch.cuda.current_stream(learner.device).wait_stream(side)
        torch.cuda.synchronize(learner.device)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(learner.generator)
        terms: Terms = {}
        batches = []  # kept until all is recorded: the branch must not draw into a minibatch still in use
        with torch.cuda.graph(graph):
            main = torch.cuda.current_stream(learner.device)
            side.wait_stream(main)
            for i, phase in enumerate(phases):
                with torch.cuda.stream(side):
                    batches.append(self._batch())
                main.wait_stream(side)
                self._set_rates(rates[i])
                terms |= learner.gradient_step(batches[i], phase)
        with torch.no_grad():
            for tensor, before in zip(tensors, saved):
                tensor.copy_(before)
        learner.generator.set_state(random_state)
        return graph, terms, rates
