"""Two implementations of one update in lockstep and in float64.

The same weights, batches and noise go in; losses and gradients of every update and the parameters after the last
come out. Every tensor is named and laid out as in `state_dict()["networks"]` of our learner; a `Place` says where a
peer keeps it. A peer that steps one optimiser before it forms the next loss is brought to our order of an update by
`Held`: all losses from the parameters before the update, then the steps, then the targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Learner
from rl_training.data.transitions import TransitionBatch

UPDATES, BATCH, OBS, ACTIONS, CHOICES = 20, 16, 3, 2, 4
SEED = 21
# Our optimisers keep their rate in float32, where this one is exact.
LEARNING_RATE = 2.0**-10
_BETA1 = 0.9

Tensors = dict[str, Tensor]
Losses = dict[str, float]


@contextmanager
def float64() -> Iterator[None]:
    """New tensors are float64: a different order of the same sums is not mistaken for a different formula."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def random_batches(*, discrete: bool = False) -> list[TransitionBatch]:
    """One batch per update, of transitions without meaning; about a third of them end."""
    g = torch.Generator().manual_seed(SEED)
    return [
        TransitionBatch(
            obs=torch.randn(BATCH, OBS, generator=g),
            actions=torch.randint(CHOICES, (BATCH,), generator=g)
            if discrete
            else 2.0 * torch.rand(BATCH, ACTIONS, generator=g) - 1.0,
            rewards=torch.randn(BATCH, generator=g),
            next_obs=torch.randn(BATCH, OBS, generator=g),
            dones=(torch.rand(BATCH, generator=g) < 0.3).to(torch.get_default_dtype()),
        )
        for _ in range(UPDATES)
    ]


@dataclass
class Trace:
    """What one implementation did; an update that does not step a parameter has no gradient for it."""

    losses: list[Losses] = field(default_factory=list)
    gradients: list[Tensors] = field(default_factory=list)
    parameters: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Distance:
    """Largest relative differences: of a loss, and of an entry to the largest entry of its tensor."""

    losses: float
    gradients: float
    parameters: float

    @property
    def largest(self) -> float:
        return max(self.losses, self.gradients, self.parameters)


def distance(ours: Trace, theirs: Trace) -> Distance:
    """Over all updates; ours may report more losses than theirs, but must step the same parameters."""
    for mine, other in zip([*ours.gradients, ours.parameters], [*theirs.gradients, theirs.parameters]):
        if mine.keys() != other.keys():
            raise ValueError(f"only one of the two has {', '.join(sorted(mine.keys() ^ other.keys()))}")
    return Distance(
        losses=max(
            abs(mine[name] - value) / abs(value)
            for mine, other in zip(ours.losses, theirs.losses)
            for name, value in other.items()
        ),
        gradients=max(_relative(mine, other) for mine, other in zip(ours.gradients, theirs.gradients)),
        parameters=_relative(ours.parameters, theirs.parameters),
    )


def _relative(ours: Tensors, theirs: Tensors) -> float:
    found = [0.0]
    for name, tensor in theirs.items():
        largest = float(tensor.abs().max())
        difference = float((ours[name] - tensor).abs().max())
        found.append(difference / largest if largest > 0 else difference)
    return max(found)


# Our side.


def prepare(learner: Learner) -> Any:
    """Seeded noise, and targets away from what they follow, so that no two networks can be taken for each other."""
    owned = {p.data_ptr() for optimizer in learner.optimizers.values() for p in optimizer.parameters}
    g = torch.Generator().manual_seed(SEED)
    for tensor in learner.state_dict()["networks"].values():
        if tensor.data_ptr() not in owned:
            tensor += 0.1 * torch.randn(tensor.shape, generator=g)
    learner.seed(SEED)
    return learner


def play(learner: Learner, batches: Sequence[TransitionBatch]) -> Trace:
    """Our updates; the gradients are read out of Adam's first moments."""
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
                moment = f"{key}.exp_avg.{i}"
                gradient = (after[moment] - _BETA1 * before[moment]) / (1.0 - _BETA1)
                gradients[names[parameter.data_ptr()]] = gradient
        trace.gradients.append(gradients)
        trace.losses.append({name: float(value) for name, value in learner.terms.items()})
    trace.parameters = _copy(networks)
    return trace


def _copy(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items()}


# Their side.


class Place:
    """Where a peer keeps one tensor of ours: for each member of the ensemble, the pieces of its outputs.

    Our matrices are `[N, in, out]` and our biases `[N, 1, out]`, theirs `[out, in]` and `[out]`; the two heads of a
    policy of theirs (mean and log std) are the pieces of one of ours.
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
    """A tensor that a peer keeps as we do, but for axes of length one."""

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
    """A peer's optimiser steps and target updates, kept back until its update has formed every loss."""

    def __init__(self) -> None:
        self._steps: list[tuple[Callable[[], Any], dict[Tensor, Tensor]]] = []
        self._calls: list[Callable[[], Any]] = []

    def hold(self, *optimizers: torch.optim.Optimizer, factor: float = 1.0) -> None:
        """From now on `step` keeps the gradients of the moment, times `factor`, for `release`."""
        for optimizer in optimizers:
            optimizer.step = partial(self._keep, optimizer, optimizer.step, factor)  # type: ignore[method-assign]

    def later(self, function: Callable[..., Any]) -> Callable[..., None]:
        """`function`, whose calls wait for `release`."""
        return lambda *args, **kwargs: self._calls.append(partial(function, *args, **kwargs))

    def _keep(self, optimizer: torch.optim.Optimizer, step: Callable[[], Any], factor: float) -> None:
        owned = [p for group in optimizer.param_groups for p in group["params"]]
        self._steps.append((step, {p: factor * p.grad for p in owned if p.grad is not None}))

    def release(self) -> dict[Tensor, Tensor]:
        """Take every step and make every call, in their order; the gradients that were used."""
        used: dict[Tensor, Tensor] = {}
        for step, gradients in self._steps:
            for parameter, gradient in gradients.items():
                parameter.grad = gradient
            step()
            used |= gradients
        for call in self._calls:
            call()
        self._steps, self._calls = [], []
        return used


@dataclass
class Peer:
    """A peer's agent: where it keeps our tensors, and one update of it on a batch with our noise."""

    places: dict[str, Place]
    update: Callable[[TransitionBatch, torch.Generator], Losses]
    held: Held = field(default_factory=Held)

    def take_over(self, learner: Learner) -> None:
        """Give it our weights; nothing may be left without a place."""
        networks = learner.state_dict()["networks"]
        if networks.keys() != self.places.keys():
            raise ValueError(f"no place for {', '.join(sorted(networks.keys() ^ self.places.keys()))}")
        for name, place in self.places.items():
            place.write(networks[name])

    def play(self, batches: Sequence[TransitionBatch]) -> Trace:
        """Its updates; the generator it is given draws what our learner's draws."""
        g = torch.Generator().manual_seed(SEED)
        trace = Trace()
        for batch in batches:
            trace.losses.append(self.update(batch, g))
            used = self.held.release()
            trace.gradients.append(
                {
                    name: place.read(used.__getitem__)
                    for name, place in self.places.items()
                    if all(tensor in used for tensor in place.tensors())
                }
            )
        trace.parameters = {name: place.read(Tensor.detach) for name, place in self.places.items()}
        return trace
