"""Dry run of `gradient_step`: records its random draws, its optimisers and tau.

It ends at the first `minimize`, before which all random numbers are drawn.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_training.algorithms.base import Learner, Terms
from rl_training.algorithms.execution import Execution, Kind


class _Ended(Exception):
    """Ends a dry run."""


class Draw(NamedTuple):
    """A random tensor that an update draws."""

    kind: Kind
    shape: tuple[int, ...]


@dataclass
class Variant:
    """Draws, optimisers and tau of one variant of `gradient_step`."""

    draws: list[Draw] = field(default_factory=list)
    stepped: tuple[str, ...] = ()  # optimisers
    tau: float | None = None  # of the targets; the first member's if members differ


def trace_draws(learner: Learner, variant: Hashable, rows: Tensor, layout: Any) -> Variant:
    """Dry run of `variant` on `rows [B, width]` with any values; the learner does not change."""
    found = Variant()

    def draw(kind: Kind, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        found.draws.append(Draw(kind, tuple(shape)))
        return torch.zeros(shape, device=rows.device)

    def on_losses(inputs: tuple[Any, ...], objectives: Mapping[str, Any], tau: Any) -> Terms:
        found.stepped, found.tau = tuple(objectives), tau
        raise _Ended

    template = copy.copy(learner)
    template.execution = Execution(draw=draw, on_losses=on_losses)
    with contextlib.suppress(_Ended):
        template.gradient_step(template.normalized(layout.unpack(rows)), variant)
    return found
