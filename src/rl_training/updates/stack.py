"""`Stack`: the tensors of S learners along one axis, and their update as one function.

Every parameter, buffer and optimiser moment of the members becomes a slice of one tensor `[S, …]`. The learners
keep their own tensor objects, which are now views of it. So a session, acting policy or checkpoint of a member uses
an ordinary learner, while the update computes all members at once.

A phase of the update is the learner's own `gradient_step` under `vmap`, with one member's slices as the networks'
parameters. It returns the losses of one `minimize` instead of stepping, and skips the others. Each loss has
gradients for the parameters of its own optimisers only, so one backward pass through their sum is enough. Random
numbers are drawn beforehand, from each member's own generator, in the order in which a single run would draw them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from rl_training.algorithms.base import Learner, Objectives, Terms, names_of
from rl_training.algorithms.execution import Execution, Kind
from rl_training.algorithms.optim import ADAM_SETTINGS, Adam, Group, Polyak
from rl_training.algorithms.trace import Variant, trace_draws
from rl_training.data.transitions import RowLayout
from rl_training.errors import ConfigError
from rl_training.models.flash import Sphere
from rl_training.models.own_network import same_value

Tensors = dict[str, Tensor]


class _Settings:
    """A learner's configuration in which tensors may replace numbers, one value per member under `vmap`."""

    def __init__(self, config: Any) -> None:
        self.__dict__.update(dict(config))

    def replace(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)


class _Trace:
    """Inputs and outputs of a traced update. Cleared after each trace, so that compiled code keeps no reference."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.draws: list[Tensor] = []
        self.used = 0
        self.phase = 0
        self.calls = 0  # of `minimize`
        self.loss: Any = None
        self.tau: Any = None
        self.statistics: dict[str, list[Tensor]] = {}

    def draw(self, kind: Kind, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        self.used += 1
        return self.draws[self.used - 1]

    def on_losses(self, inputs: tuple[Any, ...], objectives: Objectives, tau: Any) -> Terms:
        self.calls += 1
        if self.calls != self.phase + 1:
            return {}
        terms: Terms = {}
        found: dict[str, list[Tensor]] = {}
        loss: Any = 0.0
        for names, objective in zip(names_of(objectives), objectives.values()):
            value, named, *statistics = objective(*inputs)
            loss = loss + value
            terms |= named
            found.update(zip(names, statistics))
        self.loss, self.tau, self.statistics = loss, tau, found
        return {name: term.detach() for name, term in terms.items()}


class _Networks(nn.Module):
    """All modules of a learner as one module, so that `functional_call` can replace their tensors."""

    def __init__(self, learner: Learner) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(learner.all_modules())

    def forward(self, function: Callable[[], Any]) -> Any:
        return function()

    def tensors(self) -> Tensors:
        return dict(self.named_parameters()) | dict(self.named_buffers())


class _OptimizerStack:
    """One optimiser of every member: moments `[S, …]`, step counts and learning rates `[S]`."""

    def __init__(
        self, members: Sequence[Adam], keys: list[str], parameters: list[Tensor], spheres: list[Sphere]
    ) -> None:
        self.keys, self.parameters = keys, parameters
        self.settings = members[0].settings
        self.step = torch.stack([m.step for m in members])
        self.learning_rate = torch.stack([m.learning_rate for m in members])
        count = len(keys)
        self.exp_avg = [torch.stack([m.exp_avg[j] for m in members]) for j in range(count)]
        self.exp_avg_sq = [torch.stack([m.exp_avg_sq[j] for m in members]) for j in range(count)]
        self.spheres = spheres
        for i, member in enumerate(members):
            member.step, member.learning_rate = self.step[i], self.learning_rate[i]
            member.exp_avg = [moment[i] for moment in self.exp_avg]
            member.exp_avg_sq = [moment[i] for moment in self.exp_avg_sq]

    def group(self, gradients: Sequence[Tensor]) -> Group:
        state = self.exp_avg, self.exp_avg_sq, self.step, self.learning_rate
        return Group(self.parameters, gradients, *state, *self.settings)


def require_stackable(learners: Sequence[Learner]) -> None:
    """Raise if the updates of the members cannot be computed as one."""
    _require_same_shapes(learners)
    _require_same_start(learners)
    _require_same_constants(learners)


def _require_same_shapes(learners: Sequence[Learner]) -> None:
    """Raise if the members' networks differ in shape, as `init_from` may cause."""
    tensors = [_Networks(learner).tensors() for learner in learners]
    shapes = [{key: tensor.shape for key, tensor in own.items()} for own in tensors]
    for other in shapes[1:]:
        for key in {**shapes[0], **other}:
            if shapes[0].get(key) != other.get(key):
                name = key.removeprefix("parts.")
                raise ConfigError(
                    f"init_from: the members' networks differ (first in {name}) and cannot be trained as one; "
                    "set population: off",
                    key="init_from",
                )


def _require_same_start(learners: Sequence[Learner]) -> None:
    """Raise if the members' actors start, or stop cloning, at different updates, as `init_from` may cause."""
    cloning = [getattr(learner.config, "bc_steps", 0) for learner in learners]
    if any(steps != cloning[0] for steps in cloning):
        raise ConfigError(
            f"bc_steps: {cloning} updates of cloning are left to the members; set bc_steps: 0, or population: off",
            key="algo_kwargs.bc_steps",
        )
    starts = [learner.actor_starts for learner in learners]
    if any(start != starts[0] for start in starts):
        raise ConfigError(
            f"actor_starts: the members' actors start at different updates ({starts}), because critics were copied "
            "for some of them only; set actor_starts, or population: off",
            key="algo_kwargs.actor_starts",
        )


def _require_same_constants(learners: Sequence[Learner]) -> None:
    """Raise if the members differ in a number that an update would read from the first of them.

    Settings are read from `config`, which has a value for each member, and tensors of modules are stacked. A number
    that a learner or one of its modules stores, such as one computed from a setting, is neither.
    """
    owners = [[learner, *_Networks(learner).modules()] for learner in learners]
    for first, *others in zip(*owners):
        for name, value in vars(first).items():
            if not isinstance(value, float | Tensor) or name in learners[0].fixed_by_model:
                continue
            if any(not same_value(value, getattr(other, name, None)) for other in others):
                raise ConfigError(
                    f"{learners[0].name}: the members differ in {type(first).__name__}.{name}, of which an update "
                    "would read the first one's; compute it from self.config there, or use population: off",
                    key="population",
                )


class Stack:
    """S learners with networks of the same shapes; the constructor moves their tensors into the stack."""

    def __init__(self, learners: Sequence[Learner]) -> None:
        self.learners = list(learners)
        self.device = learners[0].device
        self.networks = _Networks(learners[0])
        first = self.networks.tensors()
        members = [_Networks(learner).tensors() for learner in learners]
        require_stackable(learners)
        self.tensors: Tensors = {key: torch.stack([own[key].detach() for own in members]) for key in first}
        for i, own in enumerate(members):
            for key, tensor in own.items():
                tensor.data = self.tensors[key][i]
        self.dtype = next(self.networks.parameters()).dtype
        self._key_of = {id(tensor): key for key, tensor in first.items()}
        self.optimizers = {name: self._stack_optimizer(name) for name in learners[0].optimizers}
        self.statistics = {name: list(map(self.stacked, own)) for name, own in learners[0].statistics().items()}
        self.varying = self._varying_settings()
        # A second learner that shares the first one's networks, used for tracing only.
        self._trace, self.template = _Trace(), copy.copy(learners[0])
        self.template.config = _Settings(learners[0].config)
        self.template.execution = Execution(draw=self._trace.draw, on_losses=self._trace.on_losses)

    def __len__(self) -> int:
        return len(self.learners)

    def _stack_optimizer(self, name: str) -> _OptimizerStack:
        members = [learner.optimizers[name] for learner in self.learners]
        for setting, values in zip(ADAM_SETTINGS, zip(*(member.settings for member in members))):
            if any(value != values[0] for value in values):
                raise ConfigError(
                    f"{setting}: the members' optimisers differ in it ({name}: {values}) and cannot be trained as "
                    "one; set population: off",
                    key=setting,
                )
        keys = [self._key_of[id(parameter)] for parameter in members[0].parameters]
        spheres = [
            sphere._replace(tensors=tuple(map(self.stacked, sphere.tensors))) for sphere in members[0].spheres
        ]
        return _OptimizerStack(members, keys, [self.tensors[key] for key in keys], spheres)

    def _varying_settings(self) -> Tensors:
        """The numeric hyperparameters in which the members differ, `[S]` each."""
        configs = [dict(learner.config) for learner in self.learners]
        found = {}
        for key, value in configs[0].items():
            values = [config[key] for config in configs]
            if any(other != value for other in values):
                found[key] = torch.tensor(values, dtype=self.dtype, device=self.device)
        return found

    def stacked(self, tensor: Tensor) -> Tensor:
        """The tensor `[S, …]` that contains the first member's `tensor`."""
        return self.tensors[self._key_of[id(tensor)]]

    def variant(self, variant: Hashable, layout: RowLayout, batch_size: int) -> Variant:
        """Random draws and phases of `variant`, from a dry run on rows of zeros."""
        rows = torch.zeros((batch_size, layout.width), dtype=self.dtype, device=self.device)
        found = trace_draws(self.template, variant, rows, layout)
        if found.derived and len(found.phases) > 1:  # `_Trace` returns the terms of one phase
            raise ConfigError(
                f"{self.template.name}: gradient_step calls minimize {len(found.phases)} times and computes the "
                f"term {found.derived[0]!r} from terms that it returned, which a population cannot; compute it in "
                "the loss, or set population: off",
                key="population",
            )
        if found.crossing:  # one backward pass through the sum of the losses
            loss, other = found.crossing[0]
            raise ConfigError(
                f"{self.template.name}: the loss of {loss} has gradients for parameters of {other}, which a "
                "population would add to those of their own loss; detach them there (frozen=True), or set "
                "population: off",
                key="population",
            )
        return found

    def function(self, variant: Hashable, phase: int, layout: RowLayout) -> Callable[..., Any]:
        """`(owned, others, settings, rows, draws) -> gradients, (terms, taus, statistics)` of one phase.

        All of them have the members as first axis. `taus` contains the Polyak coefficients `[S]` if the members
        differ in them; else it is empty.
        """
        return torch.vmap(grad(self._member(variant, phase, layout), has_aux=True), randomness="error")

    def _member(self, variant: Hashable, phase: int, layout: RowLayout) -> Callable[..., Any]:
        """The sum of one member's losses as a pure function of its tensors and of the `settings` that vary."""
        template, networks, trace = self.template, self.networks, self._trace
        defaults = {key: getattr(template.config, key) for key in self.varying}

        def losses(
            owned: Tensors, others: Tensors, settings: Tensors, rows: Tensor, draws: list[Tensor]
        ) -> tuple[Tensor, tuple[Terms, list[Tensor], dict[str, list[Tensor]]]]:
            def step() -> Terms:
                return template.gradient_step(template.normalized(layout.unpack(rows)), variant)

            trace.draws, trace.phase = draws, phase
            template.config.replace(settings)
            terms: Terms = functional_call(networks, {**owned, **others}, (step,))
            loss, taus = trace.loss, [trace.tau] if isinstance(trace.tau, Tensor) else []
            statistics = trace.statistics
            template.config.replace(defaults)
            trace.clear()
            return loss, (terms, taus, statistics)

        return losses

    def parts(self, stepped: Sequence[str]) -> tuple[Tensors, Tensors]:
        """The stacked tensors that the optimisers of `stepped` own, and all others."""
        keys = [key for name in stepped for key in self.optimizers[name].keys]
        owned = {key: self.tensors[key] for key in keys}
        return owned, {key: tensor for key, tensor in self.tensors.items() if key not in owned}

    def polyak(self, tau: float | Tensor) -> list[Polyak]:
        """The Polyak update of all target networks."""
        pairs = [
            (self.stacked(target), self.stacked(source))
            for one, other in self.learners[0].targets().items()
            for target, source in zip(one.parameters(), other.parameters())
        ]
        return [([target for target, _ in pairs], [source for _, source in pairs], tau)] if pairs else []
