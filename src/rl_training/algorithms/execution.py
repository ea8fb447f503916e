"""`Execution`: how an update runs (eager, compiled or captured), independent of the algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.algorithms.optim import Group, Polyak, apply_fused, apply_lists

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])
Kind = Literal["normal", "uniform"]
# Arguments of `on_losses`: the inputs, the losses by optimiser, and tau of the targets.
HandOver = Callable[[tuple[Any, ...], Mapping[str, Callable[..., Any]], Any], dict[str, Tensor]]


def draw(kind: Kind, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Standard normal numbers, or uniform numbers in [0, 1)."""
    sample = torch.randn if kind == "normal" else torch.rand
    return sample(shape, device=generator.device, generator=generator)


class DeviceRandom:
    """The methods of `np.random.Generator` that `Learner.explore` uses, on the device of a `torch.Generator`."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def standard_normal(self, size: Sequence[int], dtype: Any = None) -> Tensor:
        return draw("normal", tuple(size), self.generator)

    def random(self, size: int) -> Tensor:
        return draw("uniform", (size,), self.generator)

    def uniform(self, low: float, high: float, size: Sequence[int]) -> Tensor:
        return low + (high - low) * draw("uniform", tuple(size), self.generator)

    def integers(self, high: int, size: int) -> Tensor:
        return torch.randint(high, (size,), device=self.generator.device, generator=self.generator)


class JointRandom:
    """The same methods for several generators: each draws its share of the rows, as many as it would draw alone."""

    def __init__(self, generators: Sequence[np.random.Generator | HeldNoise]) -> None:
        self.generators = generators

    def _join(self, size: int | Sequence[int], draws: Callable[[Any, Any], Any]) -> NDArray[Any]:
        rows, *others = (size,) if isinstance(size, int) else size
        own = rows // len(self.generators), *others
        return np.concatenate([draws(generator, own) for generator in self.generators])

    def standard_normal(self, size: Sequence[int], dtype: Any = np.float64) -> NDArray[Any]:
        return self._join(size, lambda generator, own: generator.standard_normal(own, dtype))

    def random(self, size: int) -> NDArray[Any]:
        return self._join(size, lambda generator, own: generator.random(own))

    def uniform(self, low: float, high: float, size: Sequence[int]) -> NDArray[Any]:
        return self._join(size, lambda generator, own: generator.uniform(low, high, own))

    def integers(self, high: int, size: int) -> NDArray[Any]:
        return self._join(size, lambda generator, own: generator.integers(high, size=own))


class HeldNoise:
    """Normal numbers for exploration that are held for k calls, P(k) ∝ k^-2, k <= `longest` (FlashSAC).

    All environments share k. Every call draws from `random`, also one that returns the held numbers, so that the
    next numbers of `random` do not depend on k. The state is on the device of `random`, and a call neither branches
    on it nor reads it, so that a call on a CUDA device can be captured.
    """

    def __init__(self, random: np.random.Generator | DeviceRandom, longest: int, shape: Sequence[int]) -> None:
        self._random, self._on_device = random, isinstance(random, DeviceRandom)
        device = random.generator.device if isinstance(random, DeviceRandom) else None
        shares = torch.arange(1, longest + 1, dtype=torch.float64) ** -2
        self._ends = (shares.cumsum(0) / shares.sum())[:-1].to(device)  # a uniform number below the k-th gives k
        self._noise = torch.zeros(tuple(shape), device=device)
        self._left = torch.zeros((), dtype=torch.int64, device=device)  # calls for which the noise is still held

    def standard_normal(self, size: Sequence[int], dtype: Any = np.float32) -> Any:
        """The held numbers, of the shape given to the constructor; the next call changes them in place."""
        fresh = torch.as_tensor(self._random.standard_normal(size, dtype=np.float32))
        length = 1 + (self._ends <= torch.as_tensor(self._random.random(1))).sum()
        over = self._left == 0
        self._noise.copy_(torch.where(over, fresh, self._noise))
        self._left.copy_(torch.where(over, length, self._left) - 1)
        return self._noise if self._on_device else self._noise.numpy()

    def __getattr__(self, name: str) -> Any:
        """All other methods are those of `random`."""
        return getattr(self._random, name)

    def tensors(self) -> dict[str, Tensor]:
        """The state, to be saved."""
        return {"held.noise": self._noise, "held.left": self._left}

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` returned; a run that has not held noise before has none of them."""
        for name, own in self.tensors().items():
            if name in saved:
                own.copy_(saved[name])


# A source of random numbers for exploration: on the host, or on the device of the environments.
Draws = np.random.Generator | DeviceRandom | JointRandom | HeldNoise
_BY_ROWS: set[Callable[..., Any]] = set()


def by_rows(explore: Function) -> Function:
    """Declare that an `explore` stores nothing and computes row i of the actions from row i of `obs` and draws.

    One call may then serve several learners with equal settings.
    """
    _BY_ROWS.add(explore)
    return explore


def is_by_rows(explore: Callable[..., Any]) -> bool:
    """Whether this bound method was declared with `by_rows`; one that overrides it was not."""
    return getattr(explore, "__func__", None) in _BY_ROWS


@dataclass
class Execution:
    """How a learner executes its updates.

    `transform` may compile a function. `apply` steps an optimiser and updates the targets of its parameters.
    `branches` are CUDA streams for independent computations; a CUDA graph captures them as parallel branches.
    `draw` generates the random numbers. If `on_losses` is set, `minimize` passes the losses to it instead of
    stepping.
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
        """Eager execution, with the faster optimiser step for the device."""
        return cls(apply=apply_lists if device.type == "cuda" else apply_fused)

    def parallel(self, jobs: Sequence[Callable[[], Result]]) -> list[Result]:
        """Run independent functions: the first on the current stream, the others on branches."""
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
        """The transformed function, cached (bound methods compare equal, so they can be keys)."""
        if self.transform is None:
            return function
        if function not in self._transformed:
            self._transformed[function] = self.transform(function)
        return self._transformed[function]
