"""What a run is before it begins: the job, its settings resolved and checked; and the regime, which says what is
built, how long it trains and how. `online`, `offline` and `offline_to_online` have one each; `run` runs them all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

from rl_training.algorithms.base import Learner
from rl_training.data.datasets import TransitionDataset
from rl_training.data.sources import BatchSource
from rl_training.environments.pool import require_place
from rl_training.environments.user_environments import UserEnvironments
from rl_training.errors import ConfigError
from rl_training.experience.acting import ActingPolicy
from rl_training.experience.collector import Collector
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.loggers import require_installed
from rl_training.runs.callbacks import Callback
from rl_training.runs.changes import Changes, differences, same_environment
from rl_training.runs.clock import Clock
from rl_training.runs.init_from import starting_point
from rl_training.runs.sections import Resolved, Sections
from rl_training.runs.session import Session
from rl_training.runs.state import config_of
from rl_training.runtime.controls import ControlConfig
from rl_training.settings import Settings
from rl_training.spaces import SpaceSpec
from rl_training.updates.schedules import OptimizationConfig
from rl_training.updates.updater import Updater

Made = TypeVar("Made")


@dataclass(frozen=True)
class RunSpec:
    """One run to be made: what was asked for, checked, and where it goes on from."""

    sections: Sections
    config: TrainConfig
    resolved: Resolved
    checkpoint: Checkpoint | None = None  # the run's own, to go on from
    origin: Checkpoint | None = None  # where the networks come from: the same, or `init_from`
    dataset: TransitionDataset | None = None  # data in memory, in place of the configured ones
    given: UserEnvironments = field(default_factory=UserEnvironments)  # the caller's environments, in place of ids
    settings: Mapping[str, Any] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)  # what the runs of a population build once, by name

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """What `make` makes, the same for all runs that share: they differ in nothing it depends on."""
        if name not in self.shared:
            self.shared[name] = make()
        made: Made = self.shared[name]
        return made

    @classmethod
    def of(
        cls,
        sections: Sections,
        config: TrainConfig,
        checkpoint: Checkpoint | None,
        dataset: TransitionDataset | None,
        given: UserEnvironments | None = None,
        shared: dict[str, Any] | None = None,
    ) -> RunSpec:
        """Resolve and check the settings of a run, before anything is built or written."""
        config = config.with_seed()
        resolved = sections.resolve(config.algo_kwargs)
        if resolved[ControlConfig].early_stopping is not None and (
            (config.env_id is None and config.eval_env is None) or config.eval_episodes == 0
        ):
            raise ConfigError(
                "algo_kwargs.early_stopping needs evaluations: set env_id and an eval_episodes of at least 1",
                key="algo_kwargs.early_stopping",
            )
        require_installed(config.loggers)
        require_place(config)
        given = given or UserEnvironments()
        given.check(config, evaluated=config.eval_episodes > 0)
        settings = _settings(config, resolved)
        origin = starting_point(config, checkpoint)
        shared = {} if shared is None else shared
        return cls(sections, config, resolved, checkpoint, origin, dataset, given, settings, shared)

    def changes(self) -> Changes:
        """What a resumed run changes in the settings of its checkpoint; nothing in a new run."""
        if self.checkpoint is None:
            return Changes({})
        before = config_of(self.checkpoint)
        old = _settings(before, self.sections.resolve(before.algo_kwargs))
        return Changes(differences(old, self.settings), not same_environment(before, self.config))

    def for_actions(self, spaces: SpaceSpec, of: str) -> RunSpec:
        """This job with the learner and the settings for the actions of `spaces`, which are those of `of`."""
        sections, resolved = self.sections.resolve_for(spaces, of, self.config.algo_kwargs)
        return replace(self, sections=sections, resolved=resolved, settings=_settings(self.config, resolved))


def _settings(config: TrainConfig, resolved: Resolved) -> dict[str, Any]:
    """What a run's records keep of its settings, every default spelt out."""
    return config.to_dict() | {"algo_kwargs": resolved.to_dict()}


class Updates(NamedTuple):
    """A loop needs so many updates before it goes on."""

    updater: Updater
    number: int


class Acted(NamedTuple):
    """A loop has sent actions to its environments: others may send theirs before it waits for the answers."""


class Advanced(NamedTuple):
    """A loop has ended a step with everything that was due: others may end theirs before it begins the next."""


# What a loop waits for.
Event = Updates | Acted | Advanced


class Regime(ABC):
    """What online, offline and offline-to-online runs differ in. The constructor builds what a `RunSpec` needs."""

    name: ClassVar[str]
    sections: ClassVar[tuple[type[Settings], ...]]
    first_phase: str
    job: RunSpec  # what it was made from, with the learner that its spaces ask for
    learner: Learner
    spaces: SpaceSpec
    total_ticks: int
    total_updates: int
    collector: Collector | None = None
    dataset_record: Mapping[str, Any] | None = None
    remarks: Sequence[str] = ()  # lines for the beginning of a run

    @abstractmethod
    def __init__(self, job: RunSpec) -> None: ...

    def start(self) -> None:  # noqa: B027 - nothing to do without an environment
        """Begin a run that does not go on from a checkpoint."""

    @abstractmethod
    def ready(self) -> None:
        """Make the updaters; called after restoring, because a captured update keeps its tensors' addresses."""

    @abstractmethod
    def fit(self, session: Session) -> Iterator[Event]:
        """Train to the end of the budget, or until somebody stops the run, asking for updates under way."""

    def updater(
        self, job: RunSpec, source: BatchSource, *, together: int = 1, acting: ActingPolicy | None = None
    ) -> Updater:
        """Updates on minibatches of `source`, scheduled over the whole run; `acting` waits for so many at once."""
        optimization = job.resolved[OptimizationConfig]
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
        """Final metrics beside those of every run."""
        return {}

    def watchers(self, job: RunSpec) -> list[Callback]:
        """Callbacks of its own, called after those of the controls."""
        return []

    def close(self) -> None:  # noqa: B027 - nothing to close without an environment
        """Close the environments."""
