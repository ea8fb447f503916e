"""Dry run of `gradient_step`: records its random draws, its phases and the terms that it reads."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_training.algorithms.base import Learner, Objectives, Terms, names_of
from rl_training.algorithms.batch_checks import require_terms
from rl_training.algorithms.execution import Execution, Kind


class Draw(NamedTuple):
    """A random tensor that an update draws."""

    kind: Kind
    shape: tuple[int, ...]


class Phase(NamedTuple):
    """One call of `minimize`."""

    stepped: tuple[str, ...]  # optimisers
    tau: float | None  # of the targets; the first member's if members differ


@dataclass
class Variant:
    """Draws and phases of one variant of `gradient_step`, and the terms of `minimize` that it reads."""

    draws: list[Draw] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)


class _Terms(Terms):
    """Terms that append the name of each one that is read to `reads`."""

    def __init__(self, terms: Terms, reads: list[str]) -> None:
        super().__init__(terms)
        self._reads = reads

    def __getitem__(self, name: str) -> Tensor:
        self._reads.append(name)
        return super().__getitem__(name)


def trace_draws(learner: Learner, variant: Hashable, rows: Tensor, layout: Any) -> Variant:
    """Dry run of `variant` on `rows [B, width]` with any values; the learner does not change."""
    found = Variant()

    def draw(kind: Kind, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        found.draws.append(Draw(kind, tuple(shape)))
        return torch.zeros(shape, device=rows.device)

    def on_losses(inputs: tuple[Any, ...], objectives: Objectives, tau: Any) -> Terms:
        _, terms = template.compute_phase(inputs, objectives)
        found.phases.append(Phase(tuple(chain(*names_of(objectives))), tau))
        return _Terms(terms, found.reads)

    template = copy.copy(learner)
    template.execution = Execution(draw=draw, on_losses=on_losses)
    require_terms(template, template.gradient_step(template.normalized(layout.unpack(rows)), variant))
    return found
