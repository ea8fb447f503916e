"""Offline-to-online training: the offline loop on prior data, then the online loop on mixed minibatches."""

from __future__ import annotations

from collections.abc import Iterator

from rl_training.data.loading import DatasetConfig
from rl_training.data.n_step import NStepConfig
from rl_training.data.sources import MixedSource
from rl_training.errors import ConfigError
from rl_training.experience.protocol import Experience
from rl_training.runs.clock import Clock
from rl_training.runs.controls import ControlConfig
from rl_training.runs.regime import Event, Regime
from rl_training.runs.session import Session
from rl_training.runs.spec import RunSpec
from rl_training.runtime.offline import BudgetConfig, OfflineSetup, fit_offline
from rl_training.runtime.online import OnlineConfig, fit_online, make_buffer, make_collector, require_updates
from rl_training.settings import Fraction, NonNegativeInt, Settings
from rl_training.updates.schedules import OptimizationConfig


class PriorDataConfig(Settings):
    """How the prior data are used."""

    offline_pretrain_updates: NonNegativeInt = 0
    """updates on the prior data before the first environment step"""
    offline_batch_ratio: Fraction = 0.5
    """share of prior data in each online batch, `round(ratio · batch_size)` rows"""


class OfflineToOnline(Regime):
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

    def __init__(self, spec: RunSpec) -> None:
        if spec.config.env_id is None:
            raise ConfigError(
                f"env_id: {spec.config.algo} learns online and needs an environment; set env_id", key="env_id"
            )
        self.online, prior = spec.resolved[OnlineConfig], spec.resolved[PriorDataConfig]
        batch_size, self.budget = spec.resolved[OptimizationConfig].batch_size, spec.resolved[BudgetConfig]
        self.setup = OfflineSetup(spec, updates_per_step=self.online.gradient_updates_per_step)
        self.spec = spec = self.setup.spec
        self.learner, self.spaces = self.setup.learner, self.setup.spaces
        self.dataset_record = self.setup.dataset_record()
        buffer = make_buffer(self.online.buffer_capacity, self.spaces, self.learner, spec)
        if buffer.device.type != self.learner.device.type:
            raise ConfigError(
                "algo_kwargs.buffer_capacity does not fit on the GPU together with the prior data; lower it",
                key="algo_kwargs.buffer_capacity",
            )
        self.mixed = MixedSource(self.setup.source, buffer, ratio=prior.offline_batch_ratio)
        self.split = self.mixed.split(batch_size)
        size = len(self.setup.dataset)
        self.pretraining = self.budget.updates(prior.offline_pretrain_updates, size, batch_size)
        self.remarks = *self.setup.remarks, *self.online.remarks(spec, self.learner, self.pretraining)
        self.first_phase = "pretrain" if self.pretraining else "online"
        self.total_ticks = self.pretraining + spec.config.total_timesteps
        self.total_updates = self.pretraining + self.online.earned(spec.config.total_timesteps)
        require_updates(spec, self.total_updates)
        if self.budget.max_updates is not None:
            self.total_updates = min(self.total_updates, self.budget.max_updates)
        self.experience = make_collector(
            spec, self.spaces, self.learner, buffer, reward_map=self.setup.dataset.reward_map
        )

    def make_updaters(self) -> None:
        self.prior_updates = self.updater(self.setup.source)
        together = self.online.together(self.spec.config.num_envs)
        self.mixed_updates = self.updater(self.mixed, together=together, acting=self.experience.acting)

    def fit(self, session: Session) -> Iterator[Event]:
        if session.clock.ticks == 0 and self.learner.summary:
            session.say(self.learner.summary)
        if session.clock.phase == "pretrain":
            with session.doing("pretraining", "updates"):
                yield from fit_offline(session, self.prior_updates, updates=self.pretraining)
        if session.running:
            session.enter_phase("online")
            self.learner.period_offset = session.clock.pretrain_updates  # each environment step starts a new period
            most = self.budget.max_updates
            yield from fit_online(session, self.mixed_updates, self.experience, self.online, max_updates=most)

    def extra_metrics(self, clock: Clock) -> dict[str, float]:
        prior_rows, online_rows = self.split
        return {
            "pretrain_updates_done": float(clock.pretrain_updates),
            "offline_batch_size": float(prior_rows),
            "online_batch_size": float(online_rows),
            "dataset_size": float(len(self.setup.dataset)),
        }
