"""`Pool`: environments that are stepped together, and the episodes that run in them.

A pool resets environments itself. Each episode has its own seed, derived from the run's seed, the environment's
index and the episode's number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.errors import LONGEST_CAUSE, DivergedError, EnvironmentFailure, RLTrainingError, cause_of, one_line
from rl_training.seeding import episode_seed

BATCH = "batch."  # prefix of arrays in a checkpoint that are the state of batched environments


class WrongAnswer(Exception):
    """An environment's answer does not match its spaces or Gymnasium's interface."""


def problem_of(error: BaseException) -> str:
    """An exception of an environment in one line; a wrong answer without the name of its class."""
    return one_line(error, LONGEST_CAUSE) if isinstance(error, WrongAnswer) else cause_of(error)


def not_finite(env: str, quantity: str, found: str = "", when: str = "") -> DivergedError:
    """The error for an environment that returned `found`, or a `quantity` that is not finite."""
    value = found or f"a non-finite {quantity}"
    return DivergedError(f"{env} returned {value}{when}; fix the environment", first_bad=f"{quantity} of {env}")


@dataclass(slots=True)
class Steps:
    """The answers of `n` environments; observations are the true successors, also at the end of an episode."""

    obs: NDArray[np.float32]  # [n, O]
    rewards: NDArray[np.float64]  # [n]
    terminated: NDArray[np.bool_]  # [n]
    truncated: NDArray[np.bool_]  # [n]
    success: NDArray[np.float64] | None = None  # [n], NaN where it is not reported; None if nowhere

    def __len__(self) -> int:
        return len(self.rewards)

    def part(self, rows: slice) -> Steps:
        """The answers of some of the environments."""
        success = None if self.success is None else self.success[rows]
        return Steps(self.obs[rows], self.rewards[rows], self.terminated[rows], self.truncated[rows], success)


@dataclass
class Episode:
    """The running episode of one environment, with its seed and actions for a replay; None: it has no replay."""

    number: int
    seed: int
    actions: list[NDArray[Any]] | None
    total: float = 0.0
    steps: int = 0


class Pool(ABC):
    """`width` environments stepped together. Arguments named `indices` are ascending."""

    def __init__(self, seed: int, purpose: int, width: int) -> None:
        self.seed, self.purpose, self.width = seed, purpose, width
        self.numbers = np.full(width, -1)
        self.seeds = np.zeros(width, dtype=np.int64)
        self.totals = np.zeros(width)  # rewards of the running episodes
        self.lengths = np.zeros(width, dtype=np.int64)
        self._actions: list[list[NDArray[Any]] | None] = [None] * width  # of the running episodes, if stored
        self._before = self.totals.copy(), self.lengths.copy()  # before the last `send`

    @property
    def episodes(self) -> list[Episode]:
        """The running episodes."""
        totals, steps = self.totals.tolist(), self.lengths.tolist()
        return list(map(Episode, self.numbers.tolist(), self.seeds.tolist(), self._actions, totals, steps))

    def reset(self, index: int, place: tuple[int, int] | None = None) -> NDArray[np.float32]:
        """Reset environment `index` to its next episode, or to the fixed episode `place=(column, number)`."""
        return self.reset_all([index], None if place is None else [place])[0]

    @abstractmethod
    def reset_all(
        self, indices: Sequence[int], places: Sequence[tuple[int, int]] | None = None
    ) -> NDArray[np.float32]:
        """`reset` each of `indices`; returns their observations `[n, O]`."""

    def _begin(self, index: int, place: tuple[int, int] | None) -> int:
        """Count a new episode of environment `index`; returns its seed."""
        column, number = place or (index, int(self.numbers[index]) + 1)
        seed = episode_seed(self.seed, self.purpose, column, number)
        self._continue(index, Episode(number, seed, []))
        return seed

    def _continue(self, index: int, episode: Episode) -> None:
        self.numbers[index], self.seeds[index] = episode.number, episode.seed
        self.totals[index], self.lengths[index] = episode.total, episode.steps

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

    def record(self) -> list[dict[str, Any]]:
        """The running episodes as plain data; with `replayable: False` if their actions are not stored."""
        return [
            {"number": e.number, "seed": e.seed, "total": e.total, "steps": e.steps}
            | ({"replayable": False} if e.actions is None else {})
            for e in self.episodes
        ]

    @abstractmethod
    def save(self) -> dict[str, NDArray[Any]]:
        """Arrays from which a resumed run continues the running episodes."""

    def load(self, episodes: Sequence[Episode], saved: Mapping[str, NDArray[Any]]) -> bool:
        """Continue `episodes` from what a batched pool saved; False if that is impossible and all must be reset."""
        for index, episode in enumerate(episodes):
            self._continue(index, episode)
        return False

    def unreplayable(self) -> list[str]:
        """A phrase for each environment whose running episode a resumed run cannot continue."""
        return []

    @abstractmethod
    def close(self) -> None: ...

    def blame(self, index: int) -> Blame:
        """A context that converts exceptions of environment `index` to an `EnvironmentFailure`."""
        return Blame(lambda: f"environment {index} failed (seed {self.seeds[index]}, step {self.lengths[index]})")


class Blame:
    """Convert exceptions of an environment, including `sys.exit`, to an `EnvironmentFailure`."""

    def __init__(self, place: Callable[[], str]) -> None:
        """`place`: returns the beginning of the message."""
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception | SystemExit) and not isinstance(error, RLTrainingError):
            raise EnvironmentFailure(f"{self._place()}: {problem_of(error)}") from error
