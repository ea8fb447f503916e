"""`Regime`, the base class of online, offline and offline-to-online training, and the events that `fit` yields.

A regime builds the spaces, data, learner and environments of a `RunSpec`. Its generator `fit` yields an event when
it needs actions or updates, or has ended a step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from rl_training.algorithms.base import Learner
from rl_training.data.datasets import TransitionDataset
from rl_training.data.sources import BatchSource
from rl_training.experience.acting import ActingPolicy
from rl_training.experience.base import Experience
from rl_training.runs.callbacks import Callback
from rl_training.runs.clock import Clock
from rl_training.runs.session import Session
from rl_training.runs.spec import RunSpec
from rl_training.settings import Settings
from rl_training.spaces import SpaceSpec
from rl_training.updates.schedules import OptimizationConfig
from rl_training.updates.updater import Updater


class Updates(NamedTuple):
    """The run needs `number` updates before it continues."""

    updater: Updater
    number: int


class Act(NamedTuple):
    """The run needs `experience.act()` before it continues; others may act before it waits for the answers."""

    experience: Experience


class Advanced(NamedTuple):
    """The run has ended a step; others may end theirs before it begins the next."""


Event = Updates | Act | Advanced


class Regime(ABC):
    """How a run is built and trained. The constructor builds spaces, data, learner and environments."""

    name: ClassVar[str]
    sections: ClassVar[tuple[type[Settings], ...]]
    defaults: ClassVar[Mapping[str, Any]] = {}  # override those of the algorithm
    continuous_only: ClassVar[bool] = False  # whether an algorithm for both kinds of actions supports one of them
    first_phase: str
    spec: RunSpec  # with the learner and settings for the actions of `spaces`
    learner: Learner
    spaces: SpaceSpec
    total_ticks: int
    total_updates: int
    max_updates: int | None = None  # bound that ends the run before its last tick
    pretraining: int = 0  # updates before the first environment step
    first_update: int = 0  # the environment step before which no update is made
    experience: Experience | None = None
    dataset: TransitionDataset | None = None  # as the learner sees it
    dataset_record: Mapping[str, Any] | None = None
    remarks: Sequence[str] = ()  # lines that are printed when the run starts

    @abstractmethod
    def __init__(self, spec: RunSpec) -> None: ...

    @classmethod
    def key(cls) -> str:
        """The value of the setting `regime`."""
        return cls.name.replace("-", "_")

    @abstractmethod
    def make_updaters(self) -> None:
        """Create the updaters. Called after restoring, because a captured update stores addresses of tensors."""

    @abstractmethod
    def fit(self, session: Session) -> Iterator[Event]:
        """Train until the budget is used up or the session stops; yields when it needs updates."""

    def updater(self, source: BatchSource, *, together: int = 1, acting: ActingPolicy | None = None) -> Updater:
        """An updater on minibatches of `source`; its schedules span the whole run.

        `together`: usual number of updates per call; `acting` needs the weights after each call.
        """
        optimization = self.spec.resolved[OptimizationConfig]
        return Updater(
            self.learner,
            source,
            optimization.batch_size,
            schedule=optimization,
            total_updates=self.total_updates,
            together=together,
            acting=acting,
        )

    def extra_metrics(self, clock: Clock) -> dict[str, float]:
        """Final metrics in addition to those of every run."""
        return {}

    def callbacks(self) -> list[Callback]:
        """Callbacks of the regime, called after those of the controls."""
        return []

    def close(self) -> None:
        """Close the environments."""
        if self.experience is not None:
            self.experience.close()
