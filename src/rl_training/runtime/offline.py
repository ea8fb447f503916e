"""Offline training: the loop `fit_offline`, the regime `Offline`, and the data set of every run that uses one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import LearnerConfig
from rl_training.data.datasets import TransitionDataset
from rl_training.data.episodes import hold_out
from rl_training.data.extra_columns import Column
from rl_training.data.loading import DatasetConfig, load_dataset
from rl_training.data.n_step import NStepConfig
from rl_training.data.placement import MemoryBudget
from rl_training.environments.making import spaces_of
from rl_training.environments.user_environments import UserEnvironments
from rl_training.errors import ConfigError
from rl_training.experience.collecting import collect_random
from rl_training.experiment.config import TrainConfig
from rl_training.runs.building import build_learner, choose_device
from rl_training.runs.callbacks import Callback
from rl_training.runs.clock import Clock
from rl_training.runs.controls import ControlConfig
from rl_training.runs.init_from import initialise_from
from rl_training.runs.regime import Advanced, Event, Regime, Updates
from rl_training.runs.session import Session
from rl_training.runs.spec import RunSpec
from rl_training.runs.state import clips_observations, has_normalizer
from rl_training.runtime.cloning import CloningCallback, largest_return
from rl_training.runtime.validation import Validation, ValidationCallback, ValidationConfig
from rl_training.settings import PositiveInt, Settings
from rl_training.spaces import SpaceSpec
from rl_training.updates.schedules import OptimizationConfig
from rl_training.updates.updater import Updater

# Signals are checked after every multiple of this number of updates; an update takes up to a second on a CPU.
_BLOCK, _BLOCK_ON_CPU = 250, 10


class BudgetConfig(Settings):
    """Bounds in addition to `total_timesteps`: updates, and epochs (one epoch is one pass over the data).

    Offline-to-online, `max_updates` bounds both phases together, `max_epochs` the pretraining.
    """

    max_updates: PositiveInt | None = None
    """bound on updates, in addition to `total_timesteps`"""
    max_epochs: PositiveInt | None = None
    """bound on passes over the data"""

    def updates(self, total: int, dataset_size: int, batch_size: int) -> int:
        """The smallest of the three budgets, in updates."""
        budgets = [total]
        if self.max_updates is not None:
            budgets.append(self.max_updates)
        if self.max_epochs is not None:
            budgets.append(self.max_epochs * updates_per_epoch(dataset_size, batch_size))
        return min(budgets)


def updates_per_epoch(dataset_size: int, batch_size: int) -> int:
    """Number of updates that draw as many rows as the data set contains."""
    return max(1, -(-dataset_size // batch_size))


def _infer_env_spaces(
    config: TrainConfig, *, discrete: bool | None = False, given: UserEnvironments | None = None
) -> SpaceSpec | None:
    """The spaces of the environment, or None if the run has none and the data define them."""
    return None if config.env_id is None else spaces_of(config, discrete=discrete, given=given)


def _build_offline_dataset(
    config: TrainConfig,
    section: DatasetConfig,
    spaces: SpaceSpec | None,
    given: TransitionDataset | None = None,
    envs: UserEnvironments | None = None,
    *,
    extras: tuple[Column, ...] = (),
    budgets: MemoryBudget | None = None,
) -> TransitionDataset:
    """The configured data set, or `given`, checked against the spaces of the environment."""
    if given is not None:
        env = config.env_id
        if spaces is not None and (difference := given.spaces.difference(spaces, "the data have", f"{env} has")):
            raise ConfigError(f"dataset: its spaces differ from {env}'s ({difference})")
        some = replace(given, rows=given.rows[:1], episode_ends=given.episode_ends[:0], action_probs=None)
        section.with_bounds(some.columns())  # raises if they contradict those of the data
        return section.transform(given.as_raw()).with_extras(extras)
    return load_dataset(
        section,
        spaces=spaces,
        collect=None if spaces is None else lambda size, seed: collect_random(config, spaces, size, seed, envs),
        extras=extras,
        budgets=budgets,
    )


def fit_offline(session: Session, updater: Updater, *, updates: int) -> Iterator[Event]:
    """Train until the learner has made `updates` updates or the session stops."""
    learner, clock = session.learner, session.clock
    block = _BLOCK_ON_CPU if learner.device.type == "cpu" else _BLOCK
    while session.running and learner.updates < updates:
        count = min(updates - learner.updates, session.until_due(block - learner.updates % block))
        yield Updates(updater, count)
        if clock.phase == "pretrain":
            clock.pretrain_updates = learner.updates
        else:
            clock.global_step = learner.updates
        session.advance()
        yield Advanced()


def _place_rows(data: TransitionDataset, budgets: MemoryBudget) -> Tensor:
    """The rows on the device if they fit there, else in host memory or a file."""
    return data.rows_on(budgets.device, budgets.on_device() if budgets.device.type == "cuda" else None)


def _extra_columns(spec: RunSpec) -> tuple[Column, ...]:
    """The extra columns of the learner, for its settings."""
    return tuple(column.bind(spec.resolved[LearnerConfig]) for column in spec.sections.learner.extras)


def _load(spec: RunSpec, env_spaces: SpaceSpec | None, budgets: MemoryBudget) -> TransitionDataset:
    """The data set of a run with the extra columns and the n-step returns of its learner.

    If discrete actions have another learner, the columns are added after loading, when the actions are known.
    """
    section, extras = spec.resolved[DatasetConfig], () if spec.sections.discrete else _extra_columns(spec)
    data = _build_offline_dataset(
        spec.config, section, env_spaces, spec.dataset, spec.given, extras=extras, budgets=budgets
    )
    spec = spec.for_actions(data.spaces, data.name)
    data = data.with_extras(_extra_columns(spec))
    ours = spec.dataset is None and data.rows.flags.writeable
    return data.with_n_step(spec.n_step, spec.resolved[LearnerConfig].gamma, in_place=ours)


class DataRegime(Regime):
    """A regime with a data set, by whose moments observations are normalised, if at all."""

    dataset: TransitionDataset
    dataset_record: Mapping[str, Any]
    held_out: TransitionDataset | None = None

    def __init__(self, spec: RunSpec, *, updates_per_step: int = 1, validation_fraction: float = 0.0) -> None:
        section = spec.resolved[DatasetConfig]
        env_spaces = _infer_env_spaces(spec.config, discrete=spec.sections.takes_discrete, given=spec.given)
        config = spec.config
        spare = Path(config.output_dir) / ".rows"  # for packed files that cannot be stored next to the data
        budgets = MemoryBudget(choose_device(config.device), config.device_memory, config.host_memory, spare)
        data = spec.once("data", lambda: _load(spec, env_spaces, budgets))
        self.spec = spec = spec.for_actions(data.spaces, data.name)
        if validation_fraction:
            data, self.held_out = spec.once("split", lambda: hold_out(data, validation_fraction))
        self.dataset = data
        self.spaces = env_spaces or data.spaces
        self.learner = build_learner(
            spec.sections,
            spec.resolved,
            spec.config,
            data.spaces,
            normalize_observations=section.normalize_observations or has_normalizer(spec.origin),
            clip_observations=clips_observations(spec.origin),
            updates_per_step=updates_per_step,
        )
        if section.normalize_observations:
            mean, std = spec.once("moments", data.observation_moments)
            self.learner.model.normalizer.set_moments(torch.as_tensor(mean), torch.as_tensor(std))
        if spec.origin is not None and spec.checkpoint is None:
            settings = spec.resolved.to_dict()
            self.spec = spec.with_algo_kwargs(initialise_from(self.learner, spec.origin, data.spaces, settings))
        rows = spec.once("rows", lambda: _place_rows(data, budgets))
        self.source = data.source(self.learner.generator, rows)
        self.remarks = (*(f"note: {text}" for text in data.notes), *budgets.remarks(data.rows, rows))
        self.budgets = budgets.after(rows)
        self.dataset_record = _dataset_record(spec, data)


def _dataset_record(spec: RunSpec, data: TransitionDataset) -> dict[str, Any]:
    """The description of the data in run.json and checkpoints."""
    raw, folder = data.raw, spec.resolved[DatasetConfig].folder()
    return {
        "name": data.name,
        "rows": len(data),
        "fingerprint": spec.once("fingerprint", data.fingerprint),
        "in_memory": spec.dataset is not None,
        "reward_map": list(data.reward_map),
        **({} if raw is None else {"raw_rows": raw.rows, "raw_fingerprint": raw.fingerprint}),
        **({} if folder is None else {"folder": str(folder)}),
    }


class Offline(DataRegime):
    """Train on a fixed data set; an environment, if there is one, is only used for evaluation."""

    name = "offline"
    sections = (OptimizationConfig, DatasetConfig, NStepConfig, ValidationConfig, BudgetConfig, ControlConfig)
    first_phase = "offline"
    validation: Validation | None = None  # if episodes are held out

    def __init__(self, spec: RunSpec) -> None:
        fraction = spec.resolved[ValidationConfig].validation_fraction
        _require_whole_episodes(spec, fraction)
        super().__init__(spec, validation_fraction=fraction)
        spec = self.spec
        self.size, self.batch_size = len(self.dataset), spec.resolved[OptimizationConfig].batch_size
        budget = spec.resolved[BudgetConfig]
        self.total_ticks = self.total_updates = budget.updates(
            spec.config.total_timesteps, self.size, self.batch_size
        )
        if (held_out := self.held_out) is not None:
            rows = spec.once("held-out rows", lambda: _place_rows(held_out, self.budgets))
            self.validation = Validation(held_out, rows, self.learner)

    def make_updaters(self) -> None:
        self.own_updater = self.updater(self.source)

    def fit(self, session: Session) -> Iterator[Event]:
        return fit_offline(session, self.own_updater, updates=self.total_updates)

    def callbacks(self) -> list[Callback]:
        """The validation, and the check of cloning weights.

        The check needs a learner that has such weights, and data with returns-to-go of single steps.
        """
        found: list[Callback] = []
        interval = self.spec.resolved[ControlConfig].eval_interval
        if self.validation is not None and interval is not None:
            found.append(ValidationCallback(self.validation, interval))
        data, gamma, divisor = self.dataset, self.learner.config.gamma, self.learner.advantage_divisor
        if divisor is not None and gamma != 1 and data.n_step == 1 and len(data.episode_ends):
            largest = self.spec.once(f"largest return {gamma}", lambda: largest_return(data, gamma))
            found.append(CloningCallback(largest, divisor, self.spec.config.log_interval))
        return found

    def extra_metrics(self, clock: Clock) -> dict[str, float]:
        epoch = self.learner.updates / updates_per_epoch(self.size, self.batch_size)
        held_out = {} if self.validation is None else self.validation.measure(self.learner)
        return {"epoch": epoch, "dataset_size": float(self.size), **held_out}


def _require_whole_episodes(spec: RunSpec, fraction: float) -> None:
    """Raise if a share of the best episodes would be held out: OPE on the file holds out other episodes."""
    if fraction and spec.resolved[DatasetConfig].top_fraction < 1:
        raise ConfigError(
            "algo_kwargs.validation_fraction cannot be combined with top_fraction: the held-out episodes would be "
            "a share of the best ones; leave one out",
            key="algo_kwargs.validation_fraction",
        )
