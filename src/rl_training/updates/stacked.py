"""`StackedUpdater`: the updates of all members at once, eager, compiled or captured as for a single run.

On a CPU each member's optimiser takes the step, with the same kernel as in a single run. On a GPU one step updates
the whole stack, in list operations that broadcast per-member values (learning rate, step count).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_training.algorithms.base import Gradients, Learner, Terms
from rl_training.algorithms.optim import Group, Polyak, apply_lists, apply_projected, polyak_update, project
from rl_training.algorithms.trace import Variant
from rl_training.data.sources import BatchSource, TensorSource
from rl_training.updates.stack import Stack
from rl_training.updates.updater import Updater, compiled


class Inputs(NamedTuple):
    """Inputs of one update of all members; they do not depend on the updates before it."""

    rows: Tensor  # [S, B, width]
    draws: list[Tensor]  # [S, …] each


def apply_stacked(groups: list[Group], polyak: list[Polyak]) -> None:
    """Step every optimiser of the stack, then update the target networks."""
    for group in groups:
        apply_lists(group, [])
    polyak_update(polyak)


class StackedUpdater(Updater):
    """Runs `updaters`, one per member of `stack`, as one; their sources draw from the members' generators."""

    # Each graph replay first sets the random state of every member, so a graph should contain many updates.
    blocks = (50, 10, 1)

    def __init__(self, stack: Stack, updaters: Sequence[Updater]) -> None:
        first = updaters[0]
        self.stack, self.members = stack, list(updaters)
        super().__init__(
            first.learner,
            first.source,
            first.batch_size,
            schedule=first.schedule,
            total_updates=first.total_updates,
            together=first.together,
            acting=first.acting,  # its transfer copies the weights of all members
        )
        if self._staged is not None:
            self._staged = torch.empty((len(stack), *self._staged.shape), device=stack.device)
        self._variants: dict[Hashable, Variant] = {}
        self._functions: dict[tuple[Hashable, int], Callable[..., Any]] = {}
        compiles = first.learner.execution.acceleration == "compile"
        self._transform = compiled if compiles else lambda function: function
        self._apply, self._project = self._transform(apply_stacked), self._transform(project)

    def _learners(self) -> Sequence[Learner]:
        return self.stack.learners

    def _sources(self) -> Sequence[BatchSource]:
        return [member.source for member in self.members]

    def _rates(self, update: int) -> list[float]:
        return [rate for member in self.members for rate in Updater._rates(member, update)]

    def _set_rates(self, rates: Sequence[float] | Tensor) -> None:
        if self.schedule is not None:
            each = len(rates) // len(self.members)
            for i, member in enumerate(self.members):
                member.learner.set_learning_rates(rates[i * each : (i + 1) * each])

    def _sample(self) -> Tensor:
        sources = self._sources()
        first = sources[0]
        if isinstance(first, TensorSource) and all(getattr(one, "rows", None) is first.rows for one in sources):
            # All members share one data set: one gather.
            index = torch.cat([one.draw(self.batch_size) for one in sources if isinstance(one, TensorSource)])
            return first.gather(index).view(len(sources), self.batch_size, -1)
        return torch.stack([one.sample_rows(self.batch_size) for one in sources])

    def _inputs(self, variant: Hashable) -> Inputs:
        needed = self._variant(variant).draws
        rows = self._sample() if self._staged is None else self._staged
        drawn = [
            [learner.execution.draw(kind, shape, learner.generator) for kind, shape in needed]
            for learner in self.stack.learners
        ]
        return Inputs(rows, [torch.stack(draws) for draws in zip(*drawn)])

    def _update(self, inputs: Inputs, variant: Hashable) -> Terms:
        step = self._step_each if self.stack.device.type == "cpu" else self._step_all
        found: Terms = {}
        self.stack.template.updates = self.learner.updates  # an eager `gradient_step` may read it
        for i, phase in enumerate(self._variant(variant).phases):
            owned, others = self.stack.parts(phase.stepped)
            function = self._function(variant, i)
            gradients, (terms, taus, statistics) = function(owned, others, self.stack.varying, *inputs)
            for learner in self.stack.learners:
                learner.step_interrupted = True
            step(phase.stepped, gradients, taus[0] if taus else phase.tau)
            for name, values in statistics.items():
                torch._foreach_copy_(self.stack.statistics[name], values)
            found |= terms
        return found

    def _function(self, variant: Hashable, phase: int) -> Callable[..., Any]:
        if (variant, phase) not in self._functions:
            function = self.stack.function(variant, phase, self.source.layout)
            self._functions[variant, phase] = self._transform(function)
        return self._functions[variant, phase]

    def _variant(self, variant: Hashable) -> Variant:
        if variant not in self._variants:
            self._variants[variant] = self.stack.variant(variant, self.source.layout, self.batch_size)
        return self._variants[variant]

    def _step_each(self, stepped: Sequence[str], gradients: dict[str, Tensor], tau: Any) -> None:
        keys = {name: self.stack.optimizers[name].keys for name in stepped}
        taus = tau.tolist() if isinstance(tau, Tensor) else [tau] * len(self.stack)
        for i, learner in enumerate(self.stack.learners):
            own = {name: [gradients[key][i] for key in keys[name]] for name in stepped}
            learner.take_steps(Gradients(own, {}), taus[i])

    @torch.no_grad()
    def _step_all(self, stepped: Sequence[str], gradients: dict[str, Tensor], tau: Any) -> None:
        optimizers = [self.stack.optimizers[name] for name in stepped]
        groups = [one.group([gradients[key] for key in one.keys]) for one in optimizers]
        polyak = [] if tau is None else self.stack.polyak(tau)
        if self.learner.targets_first:
            polyak_update(polyak)
            polyak = []
        spheres = [sphere for one in optimizers for sphere in one.spheres]
        apply_projected(self._apply, self._project, groups, spheres, polyak)

    def _finish(self, terms: Terms, count: int) -> None:
        for i, learner in enumerate(self.stack.learners):
            learner.finish_steps({name: term[i] for name, term in terms.items()}, count)
