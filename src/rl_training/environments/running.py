"""`Pool`: environments that are stepped together, and the episodes that run in them.

A pool resets environments itself. Each episode has its own seed, derived from the run's seed, the environment's
index and the episode's number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl_training.errors import LONGEST_CAUSE, EnvironmentFailure, RLTrainingError, cause_of, one_line
from rl_training.seeding import episode_seed

if TYPE_CHECKING:
    from rl_training.environments.pool import Episode


class WrongAnswer(Exception):
    """An environment's answer does not match its spaces or Gymnasium's interface."""


@dataclass(slots=True)
class Steps:
    """The answers of `n` environments; observations are the true successors, also at the end of an episode."""

    obs: NDArray[np.float32]  # [n, O]
    rewards: NDArray[np.float64]  # [n]
    terminated: NDArray[np.bool_]  # [n]
    truncated: NDArray[np.bool_]  # [n]

    def __len__(self) -> int:
        return len(self.rewards)


class Pool(ABC):
    """`width` environments stepped together. Arguments named `indices` are ascending."""

    def __init__(self, seed: int, purpose: int, width: int) -> None:
        self.seed, self.purpose, self.width = seed, purpose, width
        self.numbers = np.full(width, -1)
        self.seeds = np.zeros(width, dtype=np.int64)
        self.totals = np.zeros(width)  # rewards of the running episodes
        self.lengths = np.zeros(width, dtype=np.int64)
        self._before = self.totals.copy(), self.lengths.copy()  # before the last `send`

    def reset(self, index: int, place: tuple[int, int] | None = None) -> NDArray[np.float32]:
        """Reset environment `index` to its next episode, or to the fixed episode `place=(column, number)`."""
        obs: NDArray[np.float32] = self.reset_all([index], None if place is None else [place])[0]
        return obs

    @abstractmethod
    def reset_all(
        self, indices: Sequence[int], places: Sequence[tuple[int, int]] | None = None
    ) -> NDArray[np.float32]:
        """`reset` each of `indices`; returns their observations `[n, O]`."""

    def _begin(self, index: int, place: tuple[int, int] | None) -> int:
        """Count a new episode of environment `index`; returns its seed."""
        column, number = place or (index, int(self.numbers[index]) + 1)
        seed = episode_seed(self.seed, self.purpose, column, number)
        self._continue(index, number, seed)
        return seed

    def _continue(self, index: int, number: int, seed: int, total: float = 0.0, steps: int = 0) -> None:
        self.numbers[index], self.seeds[index] = number, seed
        self.totals[index], self.lengths[index] = total, steps

    def step(self, actions: NDArray[Any], indices: Sequence[int] | None = None) -> Steps:
        """Step all environments, or those in `indices`; `actions` has one row for each, in the environment's units.

        Environments in other processes run in parallel.
        """
        self.send(actions, indices)
        return self.receive(indices)

    def send(self, actions: NDArray[Any], indices: Sequence[int] | None = None) -> None:
        """The first half of a step: send the actions."""
        self._before = self.totals.copy(), self.lengths.copy()
        if indices is None:
            self.lengths += 1
        else:
            self.lengths[indices] += 1
        self._send(actions, range(self.width) if indices is None else indices)

    def receive(self, indices: Sequence[int] | None = None) -> Steps:
        """The second half: receive the answers."""
        steps = self._receive(range(self.width) if indices is None else indices)
        if indices is None:
            self.totals += steps.rewards
        else:
            self.totals[indices] += steps.rewards
        return steps

    @abstractmethod
    def _send(self, actions: NDArray[Any], indices: Sequence[int]) -> None: ...

    @abstractmethod
    def _receive(self, indices: Sequence[int]) -> Steps: ...

    def forget_step(self) -> None:
        """Remove a failed step from the running episodes."""
        self.totals[:], self.lengths[:] = self._before

    @abstractmethod
    def replay(self, index: int, episode: Episode) -> NDArray[np.float32] | None:
        """Replay `episode` in environment `index` and return its last observation.

        Returns None, with no effect on the environment, if the actions are not stored; it must then be reset.
        """

    @abstractmethod
    def close(self) -> None: ...

    def blame(self, index: int) -> _Blame:
        """A context that converts exceptions of environment `index` to an `EnvironmentFailure`."""
        return _Blame(self, index)


class _Blame:
    """Convert exceptions of an environment, including `sys.exit`, to an `EnvironmentFailure` with its index."""

    def __init__(self, pool: Pool, index: int) -> None:
        self.pool, self.index = pool, index

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception | SystemExit) and not isinstance(error, RLTrainingError):
            cause = one_line(error, LONGEST_CAUSE) if isinstance(error, WrongAnswer) else cause_of(error)
            index, seed, step = self.index, self.pool.seeds[self.index], self.pool.lengths[self.index]
            raise EnvironmentFailure(f"environment {index} failed (seed {seed}, step {step}): {cause}") from error
