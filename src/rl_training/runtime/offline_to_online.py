"""Offline-to-online training: the offline loop on prior data, then the online loop on mixed minibatches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import PlainValidator

from rl_training.data.loading import DatasetConfig
from rl_training.data.n_step import NStepConfig
from rl_training.data.sources import MixedSource
from rl_training.errors import ConfigError
from rl_training.experience.base import Experience
from rl_training.experiment.checkpointing import checkpoint_errors
from rl_training.runs.changes import Changes, differences
from rl_training.runs.clock import Clock
from rl_training.runs.controls import ControlConfig
from rl_training.runs.init_from import continue_offline_run
from rl_training.runs.regime import Event
from rl_training.runs.session import Session
from rl_training.runs.spec import RunSpec
from rl_training.runs.state import changed_data, clock_of, config_of
from rl_training.runtime.offline import BudgetConfig, DataRegime, fit_offline
from rl_training.runtime.online import (
    OnlineConfig,
    fit_online,
    make_buffer,
    make_collector,
    planned_updates,
    require_updates,
    warn_about_actor,
)
from rl_training.settings import NonNegativeInt, Settings
from rl_training.updates.schedules import OptimizationConfig

PROPORTIONAL = "proportional"


def _share(value: Any) -> float | str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value == PROPORTIONAL or (is_number and 0 <= value <= 1):
        return PROPORTIONAL if value == PROPORTIONAL else float(value)
    raise ValueError(f"must be a number from 0 to 1 or {PROPORTIONAL!r}, got {value!r}")


Share = Annotated[float | str, PlainValidator(_share)]


class PriorDataConfig(Settings):
    """How the prior data are used."""

    offline_pretrain_updates: NonNegativeInt = 0
    """updates on the prior data before the first environment step; those of an offline run of the same algorithm in
    `init_from` count"""
    offline_batch_ratio: Share = 0.5
    """share of prior data in each online batch, `round(ratio · batch_size)` rows; `proportional`: batches are drawn
    uniformly from prior data and new experience together"""
    online_warmup_steps: NonNegativeInt | None = None
    """environment steps with the pretrained policy before the first online update; replaces `learning_starts` and
    `random_steps`; null: those apply"""

    def online(self, given: OnlineConfig) -> OnlineConfig:
        """`given` with these steps without updates and random actions."""
        if self.online_warmup_steps is None:
            return given
        return given.model_copy(update={"learning_starts": self.online_warmup_steps, "random_steps": 0})


class OfflineToOnline(DataRegime):
    """Pretrain on the prior data, then train online on mixed minibatches."""

    name = "offline-to-online"
    sections = (
        OptimizationConfig,
        DatasetConfig,
        NStepConfig,
        PriorDataConfig,
        BudgetConfig,
        OnlineConfig,
        ControlConfig,
    )
    experience: Experience
    evaluates_first = False  # whether the policy is evaluated between the phases

    def __init__(self, spec: RunSpec) -> None:
        if spec.config.env_id is None:
            raise ConfigError.of("env_id", f"{spec.config.algo} learns online and needs an environment; set env_id")
        prior = spec.resolved[PriorDataConfig]
        self.online = prior.online(spec.resolved[OnlineConfig])
        batch_size, budget = spec.resolved[OptimizationConfig].batch_size, spec.resolved[BudgetConfig]
        self.max_updates = budget.max_updates
        super().__init__(spec, updates_per_step=self.online.gradient_updates_per_step)
        spec = self.spec
        self._require_same_rewards()
        buffer = make_buffer(self.online.buffer_capacity, self.spaces, self.learner, spec)
        if buffer.device.type != self.learner.device.type:
            raise ConfigError(
                "algo_kwargs.buffer_capacity does not fit on the GPU together with the prior data; lower it",
                key="algo_kwargs.buffer_capacity",
            )
        ratio = prior.offline_batch_ratio
        self.mixed = MixedSource(self.source, buffer, ratio=None if isinstance(ratio, str) else ratio)
        self.mixed.expected(batch_size)
        wanted = budget.updates(prior.offline_pretrain_updates, len(self.dataset), batch_size)
        self.pretraining = self._updates_on_data(wanted)
        self._require_budget()
        starts = "learning_starts" if prior.online_warmup_steps is None else "online_warmup_steps"
        first = self.online.remarks(spec, self.learner, self.pretraining, starts)
        self.remarks = *self.remarks, *self._beginning(), *first
        self.first_phase = "pretrain" if self.pretraining else "online"
        self.first_update = self.online.first_steps
        self.total_ticks = self.pretraining + spec.config.total_timesteps
        self.total_updates = planned_updates(spec, self.online, self.pretraining)
        require_updates(spec, self.online, self.total_updates)
        if self.max_updates is not None:
            self.total_updates = min(self.total_updates, self.max_updates)
        warn_about_actor(spec, self.learner, self.total_updates)
        self.experience = make_collector(
            spec, self.online, self.spaces, self.learner, buffer, reward_map=self.dataset.reward_map
        )

    def _require_same_rewards(self) -> None:
        """Raise if a resumed run would scale new rewards otherwise than those in its replay buffer."""
        checkpoint = self.spec.checkpoint
        if checkpoint is None or checkpoint.rows is None or checkpoint.rows.filled == 0:
            return
        # Earlier versions did not record it.
        before, now = checkpoint.records["dataset"].get("reward_map"), self.dataset_record["reward_map"]
        if before is not None and not np.allclose(before, now, rtol=1e-6, atol=0):
            raise ConfigError(
                f"dataset: rewards would have scale {now[0]:g} and shift {now[1]:g} with these data, but those in "
                f"the replay buffer of this run have {before[0]:g} and {before[1]:g}; start a new run, with "
                "init_from for the networks"
            )

    def _updates_on_data(self, wanted: int) -> int:
        """`wanted`, or the updates on the prior data so far if they are more, or if the run is online already."""
        spec = self.spec
        if spec.checkpoint is not None:
            with checkpoint_errors(spec.checkpoint):
                clock = clock_of(spec.checkpoint.records["trainer"])
            return clock.pretrain_updates if clock.phase == "online" else max(wanted, clock.pretrain_updates)
        if spec.origin is not None:
            self.spec = spec.with_algo_kwargs(continue_offline_run(self.learner, spec.origin, spec.config))
        return max(wanted, self.learner.updates)

    def _require_budget(self) -> None:
        """Raise if the updates of the run of `init_from` use up `max_updates`."""
        most, done, origin = self.max_updates, self.learner.updates, self.spec.origin
        if origin is not None and most is not None and most <= done:
            raise ConfigError.of(
                "algo_kwargs.max_updates",
                f"{most:,} includes the {done:,} updates of {origin.path}, so none are left; raise it",
            )

    def _beginning(self) -> list[str]:
        """Lines about the policy with which a new run of an offline algorithm starts, and about its data."""
        origin = self.spec.origin
        if origin is None:
            untrained = self.evaluates_first and self.pretraining == 0
            return ["the first policy is untrained; set offline_pretrain_updates or init_from"] if untrained else []
        if not (done := self.learner.updates):
            return []
        before, now = origin.records["dataset"], self.dataset_record
        lines = [f"continues {origin.path} after {done:,} updates"]
        if changed_data(before, now):
            settings = _data_settings(config_of(origin).to_dict()), _data_settings(self.spec.settings)
            changed = Changes(differences(*settings))
            rows = f"{before['rows']:,} rows of {before['name']} -> {now['rows']:,} rows of {now['name']}"
            lines.append(f"its data differ from those of that run: {str(changed) or rows}")
        if held_out := config_of(origin).algo_kwargs.get("validation_fraction"):
            lines.append(f"the episodes that validation_fraction {held_out:g} held out there are data here")
        return lines

    def make_updaters(self) -> None:
        self.prior_updates = self.updater(self.source)
        together = self.online.together(self.spec.config.num_envs)
        self.mixed_updates = self.updater(self.mixed, together=together, acting=self.experience.acting)

    def fit(self, session: Session) -> Iterator[Event]:
        if session.clock.ticks == 0 and self.learner.summary:
            session.say(self.learner.summary)
        if session.clock.phase == "pretrain":
            with session.doing("pretraining"):
                yield from fit_offline(session, self.prior_updates, updates=self.pretraining)
        if session.running:
            session.enter_phase("online", evaluates=self.evaluates_first)
            self.learner.period_offset = session.clock.pretrain_updates  # each environment step starts a new period
            most = self.max_updates
            yield from fit_online(session, self.mixed_updates, self.experience, self.online, max_updates=most)

    def extra_metrics(self, clock: Clock) -> dict[str, float]:
        prior_rows, online_rows = self.mixed.expected(self.spec.resolved[OptimizationConfig].batch_size)
        return {
            "pretrain_updates_done": float(clock.pretrain_updates),
            "offline_batch_size": float(prior_rows),
            "online_batch_size": float(online_rows),
            "dataset_size": float(len(self.dataset)),
        }


def _data_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings of a run that determine its data."""
    kwargs = settings["algo_kwargs"]
    names = [name for name in DatasetConfig.model_fields if name in kwargs]
    collected = any(one.get("dataset_kind") == "random" for one in (kwargs, *kwargs.get("datasets", ())))
    return {name: kwargs[name] for name in names} | ({"env_id": settings["env_id"]} if collected else {})


class FineTuning(OfflineToOnline):
    """Offline-to-online training of an offline algorithm; its policy acts from the first step."""

    defaults: ClassVar[Mapping[str, Any]] = {"random_steps": 0, "learning_rate_schedule": "constant"}
    continuous_only = True
    evaluates_first = True
