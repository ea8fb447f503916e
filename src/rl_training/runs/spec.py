"""`RunSpec`: one run to train, with settings that are validated before anything is built or written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from rl_training.algorithms.base import Learner
from rl_training.data.datasets import TransitionDataset
from rl_training.environments.pool import require_place
from rl_training.environments.user_environments import UserEnvironments
from rl_training.errors import ConfigError
from rl_training.experiment import files
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.loggers import Logger, require_installed
from rl_training.runs.callbacks import Callback
from rl_training.runs.changes import Changes, differences, same_environment
from rl_training.runs.controls import ControlConfig
from rl_training.runs.init_from import starting_point
from rl_training.runs.sections import Resolved, Sections
from rl_training.runs.state import config_of
from rl_training.spaces import SpaceSpec
from rl_training.updates.schedules import OptimizationConfig

if TYPE_CHECKING:
    from rl_training.runs.regime import Regime

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class RunOptions:
    """How and where a run starts; its settings and results do not depend on it."""

    quiet: bool = False  # no progress on the console; warnings still show
    text: str | None = None  # the source of the configuration, stored as config.yaml
    home: Path | None = None  # the folder in which a run without checkpoints starts again
    loggers: tuple[Logger, ...] = ()  # in addition to those of the configuration
    folder: Path | None = None  # the folder to create for a new run; None: a timestamped one in output_dir
    suffix: str | None = None  # appended to the name of that folder
    fence: files.Fence = files.unfenced  # called before each write if another process may take over the run
    rewinds: bool = False  # resume in place from a checkpoint that is not the newest, and delete newer ones


@dataclass(frozen=True)
class RunSpec:
    """One run to train, from the start or from `checkpoint`."""

    regime: type[Regime]
    sections: Sections
    config: TrainConfig
    resolved: Resolved
    settings: Mapping[str, Any]  # the configuration with every default filled in, as checkpoints store it
    checkpoint: Checkpoint | None = None  # the run's own, to resume from
    origin: Checkpoint | None = None  # where the networks come from: `checkpoint`, or `init_from`
    dataset: TransitionDataset | None = None  # data in memory that replaces the configured data
    given: UserEnvironments = field(default_factory=UserEnvironments)  # environments without an id
    callbacks: tuple[Callback, ...] = ()
    options: RunOptions = field(default_factory=RunOptions)
    opened: Callable[[Path], object] | None = None  # called with the run's folder
    shared: dict[str, Any] = field(default_factory=dict)  # objects that all members of a population share, by name

    @classmethod
    def of(
        cls,
        regime: type[Regime],
        sections: Sections,
        config: TrainConfig,
        *,
        checkpoint: Checkpoint | None = None,
        given: UserEnvironments | None = None,
        callbacks: Sequence[Callback] | None = None,
        **others: Any,
    ) -> Self:
        """Validate the settings of a run; `others` are further fields of this class."""
        config = _with_learning_starts(config.with_seed(), sections)
        resolved = sections.resolve(config.algo_kwargs)
        if resolved[ControlConfig].early_stopping is not None and (
            (config.env_id is None and config.eval_env is None) or config.eval_episodes == 0
        ):
            raise ConfigError(
                "algo_kwargs.early_stopping needs evaluations: set env_id and an eval_episodes of at least 1",
                key="algo_kwargs.early_stopping",
            )
        _require_batch(sections.learner, resolved[OptimizationConfig].batch_size)
        require_installed(config.loggers, allow_import=config.allow_import)
        for part in resolved.parts:
            part.import_own(config.allow_import)
        require_place(config)
        given = given or UserEnvironments()
        given.check(config, evaluated=config.eval_episodes > 0)
        spec = cls(
            regime,
            sections,
            config,
            resolved,
            _settings(config, resolved),
            checkpoint,
            starting_point(config, checkpoint),
            given=given,
            callbacks=tuple(callbacks or ()),
            **others,
        )
        if checkpoint is None:
            spec.once("unused", spec._warn_of_unused)
        return spec

    def _warn_of_unused(self) -> None:
        """Warn of settings that differ from their default but have no effect with the others."""
        if self.regime.name == "offline" and self.config.num_envs > 1:
            _log.warning("num_envs: %d has no effect; an offline run makes no steps", self.config.num_envs)
        parts, learner = self.resolved.parts, self.sections.learner
        values = {name: value for part in parts for name, value in part}
        values["eval_episodes"] = self.config.eval_episodes
        if values.get("actor_starts", 0) is None:
            values["init_from"] = self.config.init_from  # may set it
        for part in parts:
            for name, value, needs in part.unused(values, self.sections.defaults, learner.ignored):
                reason = f"; it needs {needs}" if needs else f" on {learner.name}"
                _log.warning("algo_kwargs.%s: %s has no effect%s", name, value, reason)

    def once(self, name: str, build: Callable[[], T]) -> T:
        """The result of `build`, cached under `name` and shared by all members of a population."""
        if name not in self.shared:
            self.shared[name] = build()
        return self.shared[name]

    @property
    def n_step(self) -> int:
        """`n_step`; 1 for an algorithm without this setting."""
        return int(self.resolved.to_dict().get("n_step", 1))

    def changes(self) -> Changes:
        """The settings that differ from those of the checkpoint; empty for a new run."""
        if self.checkpoint is None:
            return Changes({})
        before = config_of(self.checkpoint)
        old = _settings(before, self.sections.resolve(before.algo_kwargs))
        return Changes(differences(old, self.settings), not same_environment(before, self.config))

    def for_actions(self, spaces: SpaceSpec, of: str) -> Self:
        """This run with the learner and settings for the actions of `spaces`; `of` names the spaces in an error."""
        sections, resolved = self.sections.resolve_for(spaces, of, self.config.algo_kwargs)
        return replace(self, sections=sections, resolved=resolved, settings=_settings(self.config, resolved))

    def with_algo_kwargs(self, values: Mapping[str, Any]) -> Self:
        """This run with `values`, which are decided when it starts, in its settings and checkpoints."""
        config = self.config.replace(algo_kwargs={**self.config.algo_kwargs, **values})
        resolved = self.sections.resolve(config.algo_kwargs)
        return replace(self, config=config, resolved=resolved, settings=_settings(config, resolved))


def _with_learning_starts(config: TrainConfig, sections: Sections) -> TrainConfig:
    """`config` with `learning_starts: auto` replaced by a number, which a resumed run keeps."""
    if sections.resolve(config.algo_kwargs).to_dict().get("learning_starts") != "auto":
        return config
    steps = min(config.total_timesteps // 10, sections.learner.most_first_steps)
    return config.replace(algo_kwargs={**config.algo_kwargs, "learning_starts": steps})


def _settings(config: TrainConfig, resolved: Resolved) -> dict[str, Any]:
    """The settings as run folders and checkpoints store them, with every default filled in."""
    return config.to_dict() | {"algo_kwargs": resolved.to_dict()}


def _require_batch(learner: type[Learner], size: int) -> None:
    """Raise if a minibatch has too few rows for networks that normalise by batches."""
    if size < learner.least_batch:
        raise ConfigError(
            f"algo_kwargs.batch_size must be >= {learner.least_batch} for {learner.name}, got {size}",
            key="algo_kwargs.batch_size",
        )
