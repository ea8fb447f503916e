"""Dry run of `gradient_step`: records its random draws, its phases and the terms it computes from others."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_training.algorithms.base import Learner, Objectives, Terms, names_of
from rl_training.algorithms.batch_checks import (
    require_optimizers,
    require_own_draws,
    require_scalar,
    require_terms,
)
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
    """Draws and phases of one variant of `gradient_step`."""

    draws: list[Draw] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    derived: list[str] = field(default_factory=list)  # terms that it computes from those that `minimize` returned
    # Losses with gradients for parameters of another optimiser of their phase, and that optimiser.
    crossing: list[tuple[str, str]] = field(default_factory=list)


def trace_draws(learner: Learner, variant: Hashable, rows: Tensor, layout: Any) -> Variant:
    """Dry run of `variant` on `rows [B, width]` with any valid values; the learner does not change."""
    found, returned = Variant(), list[Tensor]()

    def draw(kind: Kind, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        found.draws.append(Draw(kind, tuple(shape)))
        return torch.zeros(shape, device=rows.device)

    def on_losses(inputs: tuple[Any, ...], objectives: Objectives, tau: Any) -> Terms:
        terms, crossing = _losses(template, inputs, objectives)
        found.crossing += crossing
        found.phases.append(Phase(tuple(chain(*names_of(objectives))), tau))
        returned.extend(term.requires_grad_() for term in terms.values() if term.is_floating_point())
        return terms

    def is_derived(term: Tensor) -> bool:
        used = term.grad_fn and torch.autograd.grad(term, returned, allow_unused=True, retain_graph=True)
        return any(gradient is not None for gradient in used or ())

    template = copy.copy(learner)
    template.execution = Execution(draw=draw, on_losses=on_losses)
    buffers = [buffer for module in learner.all_modules().values() for buffer in module.buffers()]
    before = [buffer.clone() for buffer in buffers]
    with require_own_draws(template):
        terms = template.gradient_step(template.normalized(layout.unpack(rows)), variant)
    for buffer, value in zip(buffers, before):  # an update may change them in place
        buffer.copy_(value)
    require_terms(template, terms)
    found.derived = [name for name, term in terms.items() if is_derived(term)]
    return found


def _losses(
    learner: Learner, inputs: tuple[Any, ...], objectives: Objectives
) -> tuple[Terms, list[tuple[str, str]]]:
    """The terms of a phase, and each loss with gradients for parameters of another optimiser, and that optimiser.

    Each loss is computed once, because it may draw random numbers.
    """
    require_optimizers(learner, objectives)
    terms, crossing = Terms(), list[tuple[str, str]]()
    for own, (key, loss) in zip(names_of(objectives), objectives.items()):
        value, named, *_ = loss(*inputs)
        require_scalar(learner, own, value)
        terms |= {name: term.detach() for name, term in named.items()}
        for name in chain(*names_of(objectives)):
            gradients = torch.autograd.grad(
                value, learner.optimizers[name].parameters, retain_graph=True, allow_unused=name not in own
            )
            if name not in own and any(gradient is not None for gradient in gradients):
                crossing.append((key, name))
    return terms, crossing
