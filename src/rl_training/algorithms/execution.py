"""`Execution`: how the parts of an update run. The mathematics in the other files does not know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar

import torch
from torch import Tensor

from rl_training.algorithms.optim import Group, Polyak, apply_fused, apply_lists

Result = TypeVar("Result")
Kind = Literal["normal", "uniform"]
# How `minimize` passes on what it was given: inputs, losses by optimiser, and how far the targets move.
HandOver = Callable[[tuple[Any, ...], Mapping[str, Callable[..., Any]], Any], dict[str, Tensor]]


def draw(kind: Kind, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Standard normal numbers, or uniform ones in [0, 1)."""
    sample = torch.randn if kind == "normal" else torch.rand
    return sample(shape, device=generator.device, generator=generator)


@dataclass
class Execution:
    """Eager, compiled, or to be captured as CUDA graphs.

    `transform` may compile a function; `apply` steps an optimiser and moves the targets that follow it. With
    `branches`, parts that do not depend on each other run on CUDA streams of their own, which a CUDA graph turns
    into parallel branches. `draw` is where an update's random numbers come from. With `on_losses`, an update ends
    where its losses are known: they are handed over, and who asked takes the step.
    """

    acceleration: Literal["eager", "compile", "graph"] = "eager"
    transform: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    apply: Callable[[Group, Sequence[Polyak]], None] = apply_fused
    branches: tuple[torch.cuda.Stream, ...] = ()
    draw: Callable[[Kind, tuple[int, ...], torch.Generator], Tensor] = draw
    on_losses: HandOver | None = None
    _transformed: dict[Any, Callable[..., Any]] = field(default_factory=dict)

    @classmethod
    def on(cls, device: torch.device) -> Self:
        """Eager, with the optimiser step that suits the device."""
        return cls(apply=apply_lists if device.type == "cuda" else apply_fused)

    def parallel(self, jobs: Sequence[Callable[[], Result]]) -> list[Result]:
        """Results of jobs that do not depend on each other: the first runs here, the others on branches."""
        if not self.branches:
            return [job() for job in jobs]
        contexts: list[AbstractContextManager[Any]] = [nullcontext() for _ in jobs]
        branches = self.branches[: max(0, len(jobs) - 1)]
        for i, branch in enumerate(branches, start=1):
            branch.wait_stream(torch.cuda.current_stream(branch.device))
            contexts[i] = torch.cuda.stream(branch)
        results = []
        for context, job in zip(contexts, jobs):
            with context:
                results.append(job())
        for branch in branches:
            torch.cuda.current_stream(branch.device).wait_stream(branch)
        return results

    def prepared(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The transformed function, made once (bound methods compare equal, so they are good keys)."""
        if self.transform is None:
            return function
        if function not in self._transformed:
            self._transformed[function] = self.transform(function)
        return self._transformed[function]
