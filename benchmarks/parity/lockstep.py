"""Run two implementations of one update in lockstep in float64.

Both get the same weights, batches and noise. The results are the losses and gradients of every update and the
parameters after the last one. Tensors are named and laid out as in `state_dict()["networks"]` of our learner; a
`Place` locates such a tensor in a peer. Some peers step one optimiser before they compute the next loss. `Held`
brings them into our order: all losses from the parameters before the update, then the optimiser steps, then the
target updates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Normal

if TYPE_CHECKING:  # peers in other Python environments import this module without the package
    from rl_training.algorithms.base import Learner
    from rl_training.data.extra_columns import Column
    from rl_training.data.transitions import TransitionBatch

UPDATES, BATCH, OBS, ACTIONS, CHOICES = 20, 16, 3, 2, 4
SEED = 21
# Our optimisers store their learning rate in float32, which represents this one exactly.
LEARNING_RATE = 2.0**-10

Tensors = dict[str, Tensor]
Losses = dict[str, float]
# Random draws of one update, in the order of our learner.
Noise = tuple[Tensor, ...]


@contextmanager
def float64() -> Iterator[None]:
    """Create new tensors in float64, so that a different order of summation is not mistaken for a different
    formula."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def widened() -> Iterator[None]:
    """Make peers that request float32 explicitly use float64."""
    with (
        patch.object(torch, "float32", torch.float64),
        patch.object(torch, "float", torch.float64),
        patch.object(Tensor, "float", Tensor.double),
    ):
        yield


@contextmanager
def normal_draws(*draws: Tensor) -> Iterator[None]:
    """Make a peer's Gaussian samples use these draws in order."""
    left = iter(draws)
    with patch.object(Normal, "rsample", lambda normal, _shape=(): normal.loc + normal.scale * next(left)):
        yield


def random_batches(*, discrete: bool = False, extras: tuple[Column, ...] = ()) -> list[TransitionBatch]:
    """One batch of random transitions per update; about a third of them terminate."""
    from rl_training.data.transitions import TransitionBatch

    g = torch.Generator().manual_seed(SEED)

    def actions() -> Tensor:
        if discrete:
            return torch.randint(CHOICES, (BATCH,), generator=g)
        return 2.0 * torch.rand(BATCH, ACTIONS, generator=g) - 1.0

    def columns() -> Tensors:
        return {
            "obs": torch.randn(BATCH, OBS, generator=g),
            "actions": actions(),
            "rewards": torch.randn(BATCH, generator=g),
            "next_obs": torch.randn(BATCH, OBS, generator=g),
            "dones": (torch.rand(BATCH, generator=g) < 0.3).to(torch.get_default_dtype()),
        } | {one.name: actions() if one.like == "actions" else torch.randn(BATCH, generator=g) for one in extras}

    drawn = [columns() for _ in range(UPDATES)]
    return [TransitionBatch.from_mapping(one, extras)._replace(**one) for one in drawn]  # not in float32


def noises(draw: Callable[[torch.Generator], Noise]) -> list[Noise]:
    """The draws of every update, from a generator with the learner's seed in `prepare`."""
    g = torch.Generator().manual_seed(SEED)
    return [draw(g) for _ in range(UPDATES)]


@dataclass
class Trace:
    """Record of one implementation; a parameter that an update does not step has no gradient in it."""

    losses: list[Losses] = field(default_factory=list)
    gradients: list[Tensors] = field(default_factory=list)
    parameters: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Distance:
    """Largest relative differences of losses, and of entries relative to the largest entry of their tensor."""

    losses: float
    gradients: float
    parameters: float

    @property
    def largest(self) -> float:
        return _largest([self.losses, self.gradients, self.parameters])


def distance(ours: Trace, theirs: Trace) -> Distance:
    """Largest differences over all updates; ours may report more losses, but must step the same parameters."""
    for mine, other in zip([*ours.gradients, ours.parameters], [*theirs.gradients, theirs.parameters], strict=True):
        if mine.keys() != other.keys():
            raise ValueError(f"only one of the two has {', '.join(sorted(mine.keys() ^ other.keys()))}")
    return Distance(
        losses=_largest(
            [
                abs(mine[name] - value) / (abs(value) or 1.0)
                for mine, other in zip(ours.losses, theirs.losses, strict=True)
                for name, value in other.items()
            ]
        ),
        gradients=_largest([_relative(mine, other) for mine, other in zip(ours.gradients, theirs.gradients)]),
        parameters=_relative(ours.parameters, theirs.parameters),
    )


def _relative(ours: Tensors, theirs: Tensors) -> float:
    found = []
    for name, tensor in theirs.items():
        largest = float(tensor.abs().max())
        found.append(float((ours[name] - tensor).abs().max()) / (largest or 1.0))
    return _largest(found)


def _largest(values: Sequence[float]) -> float:
    """Maximum that is NaN if any value is NaN, unlike Python's `max`."""
    return float(torch.tensor(values).max())


# Our side.


def prepare(learner: Learner) -> Any:
    """Seed the noise, and move targets away from their sources, so that networks cannot be confused."""
    owned = {p.data_ptr() for optimizer in learner.optimizers.values() for p in optimizer.parameters}
    g = torch.Generator().manual_seed(SEED)
    for tensor in learner.state_dict()["networks"].values():
        if tensor.data_ptr() not in owned:
            tensor += 0.1 * torch.randn(tensor.shape, generator=g)
    learner.seed(SEED)
    return learner


def play(learner: Learner, batches: Sequence[TransitionBatch]) -> Trace:
    """Make our updates; gradients are recovered from Adam's first moments."""
    networks = learner.state_dict()["networks"]
    names = {tensor.data_ptr(): name for name, tensor in networks.items()}
    trace = Trace()
    for batch in batches:
        before = _copy(learner.state_dict()["optimizers"])
        learner.step(batch)
        after = learner.state_dict()["optimizers"]
        gradients = {}
        for key, optimizer in learner.optimizers.items():
            if after[f"{key}.step"] == before[f"{key}.step"]:
                continue
            for i, parameter in enumerate(optimizer.parameters):
                moment, beta1 = f"{key}.exp_avg.{i}", optimizer.settings[0][0]
                gradient = (after[moment] - beta1 * before[moment]) / (1.0 - beta1)
                gradients[names[parameter.data_ptr()]] = gradient
        trace.gradients.append(gradients)
        trace.losses.append({name: float(value) for name, value in learner.terms.items()})
    trace.parameters = _copy(networks)
    return trace


def _copy(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items()}


# Their side.


class Place:
    """Location of one of our tensors in a peer: for each ensemble member, the pieces of its outputs.

    Our matrices are `[N, in, out]` and our biases `[N, 1, out]`; the peer's are `[out, in]` and `[out]`. The two
    heads of a peer's policy (mean and log std) are the pieces of one of our layers.
    """

    def __init__(self, *members: Sequence[Tensor]) -> None:
        self.members = members

    def tensors(self) -> Iterator[Tensor]:
        for pieces in self.members:
            yield from pieces

    def read(self, of: Callable[[Tensor], Tensor]) -> Tensor:
        rows = [torch.cat([of(piece) for piece in pieces]) for pieces in self.members]
        return torch.stack([row.T if row.dim() == 2 else row[None] for row in rows])

    def write(self, value: Tensor) -> None:
        for pieces, row in zip(self.members, value):
            outputs = row.T if pieces[0].dim() == 2 else row[0]
            for piece, part in zip(pieces, outputs.split([len(piece) for piece in pieces])):
                piece.data.copy_(part)


class Same(Place):
    """A tensor that a peer stores with our layout, up to axes of length one."""

    def __init__(self, tensor: Tensor, shape: tuple[int, ...] | None = None) -> None:
        super().__init__([tensor])
        self.tensor, self.shape = tensor, tensor.shape if shape is None else shape

    def read(self, of: Callable[[Tensor], Tensor]) -> Tensor:
        return of(self.tensor).reshape(self.shape)

    def write(self, value: Tensor) -> None:
        self.tensor.data.copy_(value.reshape(self.tensor.shape))


Layer = nn.Linear | tuple[nn.Linear, ...]


def linears(network: nn.Module) -> list[nn.Linear]:
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


def places(name: str, *members: Sequence[Layer]) -> dict[str, Place]:
    """The places of our `EnsembleMLP` called `name` in a peer's networks, one list of layers per member."""
    found: dict[str, Place] = {}
    for i, layers in enumerate(zip(*members, strict=True)):
        heads = [layer if isinstance(layer, tuple) else (layer,) for layer in layers]
        ours = f"{name}.head" if i + 1 == len(members[0]) else f"{name}.hidden.{i}"
        found[f"{ours}.weight"] = Place(*([head.weight for head in pieces] for pieces in heads))
        found[f"{ours}.bias"] = Place(*([head.bias for head in pieces] for pieces in heads))
    return found


class Held:
    """Delays a peer's optimiser steps and target updates until all losses of its update are computed.

    With `wait=False`, steps are taken immediately and only their gradients are recorded.
    """

    def __init__(self, *, wait: bool = True) -> None:
        self._wait = wait
        self._steps: list[tuple[Callable[[], Any], dict[Tensor, Tensor]]] = []
        self._calls: list[Callable[[], Any]] = []

    def hold(self, *optimizers: torch.optim.Optimizer, factor: float = 1.0) -> None:
        """From now on, `step` stores the current gradients, times `factor`, for `release`."""
        for optimizer in optimizers:
            optimizer.step = partial(self._keep, optimizer, optimizer.step, factor)  # type: ignore[method-assign, assignment]

    def later(self, function: Callable[..., Any]) -> Callable[..., None]:
        """Return a version of `function` whose calls are delayed until `release`."""
        return lambda *args, **kwargs: self._calls.append(partial(function, *args, **kwargs))

    def _keep(self, optimizer: torch.optim.Optimizer, step: Callable[[], Any], factor: float) -> None:
        owned = [p for group in optimizer.param_groups for p in group["params"]]
        self._steps.append((step, {p: factor * p.grad for p in owned if p.grad is not None}))
        if not self._wait:
            step()

    def release(self) -> dict[Tensor, Tensor]:
        """Execute all steps and calls in order; return the gradients that were used."""
        used: dict[Tensor, Tensor] = {}
        for step, gradients in self._steps:
            used |= gradients
            if self._wait:
                for parameter, gradient in gradients.items():
                    parameter.grad = gradient.clone()  # the next backward adds to it
                step()
        for call in self._calls:
            call()
        self._steps, self._calls = [], []
        return used


@dataclass
class Peer:
    """A peer's agent: the places of our tensors, and a function that makes one update on a batch with our noise."""

    places: dict[str, Place]
    update: Callable[[Any, Noise], Losses]
    held: Held = field(default_factory=Held)

    def take_over(self, networks: Mapping[str, Tensor]) -> None:
        """Copy our weights to the peer; every tensor must have a place."""
        if networks.keys() != self.places.keys():
            raise ValueError(f"no place for {', '.join(sorted(networks.keys() ^ self.places.keys()))}")
        for name, place in self.places.items():
            place.write(networks[name])

    def play(self, batches: Sequence[Any], noises: Sequence[Noise]) -> Trace:
        trace = Trace()
        for batch, noise in zip(batches, noises, strict=True):
            trace.losses.append(self.update(batch, noise))
            trace.gradients.append(self.gradients())
        trace.parameters = self.parameters()
        return trace

    def gradients(self) -> Tensors:
        """End the update; return the gradients of the parameters that it stepped."""
        used = self.held.release()
        stepped = {n: p for n, p in self.places.items() if all(tensor in used for tensor in p.tensors())}
        return {name: place.read(used.__getitem__) for name, place in stepped.items()}

    def parameters(self) -> Tensors:
        return {name: place.read(Tensor.detach).clone() for name, place in self.places.items()}


# Peers in other processes read and write files of named arrays.


def save_given(path: Path, networks: Mapping[str, Tensor], batches: Sequence[Any], noises: Sequence[Noise]) -> None:
    """Write the peer's inputs: `networks/NAME`, `batches/UPDATE/COLUMN`, `noise/UPDATE/NUMBER`."""
    arrays = {f"networks/{name}": tensor for name, tensor in networks.items()}
    for i, (batch, noise) in enumerate(zip(batches, noises, strict=True)):
        present = {name: column for name, column in batch._asdict().items() if column is not None}
        arrays |= {f"batches/{i}/{name}": column for name, column in present.items()}
        arrays |= {f"noise/{i}/{j}": draw for j, draw in enumerate(noise)}
    named: dict[str, Any] = {name: tensor.numpy() for name, tensor in arrays.items()}
    np.savez(path, **named)


def load_trace(path: Path) -> Trace:
    """Read the peer's results: `losses/UPDATE/NAME`, `gradients/UPDATE/NAME`, `parameters/NAME`."""
    trace = Trace([{} for _ in range(UPDATES)], [{} for _ in range(UPDATES)])
    with np.load(path) as arrays:
        for key in arrays.files:
            kind, _, rest = key.partition("/")
            if kind == "parameters":
                trace.parameters[rest] = torch.from_numpy(arrays[key])
                continue
            update, _, name = rest.partition("/")
            if kind == "losses":
                trace.losses[int(update)][name] = float(arrays[key])
            else:
                trace.gradients[int(update)][name] = torch.from_numpy(arrays[key])
    return trace


def save_trace(path: Path, trace: Trace) -> None:
    arrays: dict[str, Any] = {f"parameters/{name}": value.numpy() for name, value in trace.parameters.items()}
    for i, (losses, gradients) in enumerate(zip(trace.losses, trace.gradients, strict=True)):
        arrays |= {f"losses/{i}/{name}": value for name, value in losses.items()}
        arrays |= {f"gradients/{i}/{name}": value.numpy() for name, value in gradients.items()}
    np.savez(path, **arrays)
