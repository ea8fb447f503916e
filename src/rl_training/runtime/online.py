"""Online training: the loop `fit_online` and the regime `Online`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Annotated, Any

import torch
from pydantic import PlainValidator

from rl_training.algorithms.base import Learner
from rl_training.data.n_step import NStepConfig, NStepReturns
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.transitions import RowLayout
from rl_training.environments.making import spaces_of
from rl_training.environments.pool import make_pool
from rl_training.environments.user_environments import require_tensor_settings, tensor_maker
from rl_training.errors import ConfigError, MemoryLimitError
from rl_training.experience.base import Experience
from rl_training.experience.collector import MANY, Collector
from rl_training.experience.moments import ObservationConfig, RunningMoments, RunningReturns
from rl_training.experience.tensor_collector import TensorCollector
from rl_training.experiment.checkpointing import checkpoint_errors
from rl_training.experiment.config import TrainConfig
from rl_training.memory import available_memory, room_on_gpu
from rl_training.runs.building import build_learner, require_room_for_environments
from rl_training.runs.controls import ControlConfig
from rl_training.runs.init_from import initialise_from
from rl_training.runs.regime import Act, Advanced, Event, Regime, Updates
from rl_training.runs.session import Session
from rl_training.runs.spec import RunSpec
from rl_training.runs.state import clips_observations, clock_of, config_of, has_normalizer, moments_of
from rl_training.settings import NonNegativeInt, OnlyWith, PositiveInt, Settings
from rl_training.spaces import SpaceSpec
from rl_training.updates.schedules import OptimizationConfig
from rl_training.updates.updater import Updater

_log = logging.getLogger(__name__)


def _steps_or_auto(value: Any) -> int | str:
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if value == "auto" or (type(number) is int and number >= 0):
        return number
    raise ValueError(f"must be a whole number >= 0 or 'auto', got {value!r}")


class OnlineConfig(Settings):
    """When to collect and when to update, in environment steps, independent of `num_envs`."""

    buffer_capacity: PositiveInt = 1_000_000
    """maximum number of transitions in the replay buffer"""
    learning_starts: Annotated[int | str, PlainValidator(_steps_or_auto)] = "auto"
    """environment steps before the first update; `auto`: a tenth of `total_timesteps`, at most 1,000 (SAC, CrossQ:
    5,000; FlashSAC: 10,000); the number is recorded when a run starts"""
    random_steps: NonNegativeInt | None = None
    """environment steps with random actions; null: `learning_starts`, or 0 if `init_from` provides a policy"""
    random_block_steps: Annotated[NonNegativeInt, OnlyWith("actor_starts"), OnlyWith("init_from", ...)] = 50
    """until the actor starts (`actor_starts`), each environment alternates blocks of this length with random
    actions and with the policy; 0: the policy alone"""
    train_frequency: PositiveInt = 1
    """environment steps between rounds of updates"""
    gradient_updates_per_step: PositiveInt = 1
    """updates per round"""
    overlap: bool = False
    """compute the updates of a step while the environments execute it; minibatches then contain rows up to the
    previous step"""

    @property
    def first_steps(self) -> int:
        """`learning_starts` as a number; `RunSpec.of` has replaced `auto`."""
        return int(self.learning_starts)

    def earned(self, step: int) -> int:
        """Number of updates due by `step`; none before `learning_starts`."""
        first = max(self.first_steps, 1)
        if step < first:
            return 0
        return (step // self.train_frequency - (first - 1) // self.train_frequency) * self.gradient_updates_per_step

    def together(self, num_envs: int) -> int:
        """Usual number of updates per step of `num_envs` environments."""
        return max(1, num_envs // self.train_frequency) * self.gradient_updates_per_step

    def acts_randomly_until(self, config: TrainConfig) -> int:
        """Number of steps with random actions."""
        if self.random_steps is not None:
            return self.random_steps
        return self.first_steps if config.init_from is None else 0

    def remarks(
        self, spec: RunSpec, learner: Learner, before: int = 0, starts: str = "learning_starts"
    ) -> tuple[str, ...]:
        """Lines about the first steps, without updates or with random actions, and about too many reports.

        `before`: number of updates before the first step. `starts`: the setting that `learning_starts` is from.
        """
        done = 1 if spec.checkpoint is None else max(1, spec.checkpoint.step - before)
        random_until = self.acts_randomly_until(spec.config)
        spans = [("no updates", self.first_steps, starts), ("random actions", random_until, "random_steps")]
        if random_until == self.first_steps:
            spans = [("random actions and no updates", random_until, starts)]
        parts = [f"{what} in the first {steps:,} steps ({name})" for what, steps, name in spans if steps > done]
        lines = [", ".join(parts)] if parts else []
        if learner.actor_starts and spec.checkpoint is None:
            lines.append(f"the policy does not change in the first {learner.actor_starts:,} updates (actor_starts)")
            if block := self.random_block_steps:
                text = f"{block:,} steps with random actions and {block:,} with the policy"
                lines.append(f"until then {text} alternate (random_block_steps)")
        if short := _short_intervals(spec.config):
            lines.append(
                f"{' and '.join(short)}: short for num_envs {spec.config.num_envs:,}, because intervals count the "
                "steps of all environments; longer is faster"
            )
        return tuple(lines)


def _short_intervals(config: TrainConfig) -> list[str]:
    """Intervals that pass in less than one step of many environments, or a hundred for checkpoints."""
    least = {"log_interval": config.num_envs, "checkpoint_interval": 100 * config.num_envs}
    values = {name: getattr(config, name) for name in least}
    return [f"{name} {values[name]:,}" for name in least if values[name] < least[name] and config.num_envs >= MANY]


def planned_updates(spec: RunSpec, online: OnlineConfig, pretraining: int = 0) -> int:
    """Updates of the whole run. If it is resumed, settings may have changed: those made count as they are."""
    total = online.earned(spec.config.total_timesteps)
    if spec.checkpoint is None:
        return pretraining + total
    with checkpoint_errors(spec.checkpoint):
        trainer = spec.checkpoint.records["trainer"]
        clock, made = clock_of(trainer), int(trainer["counters"]["updates"])
    if clock.phase != "online":
        return pretraining + total
    return made + max(0, total - online.earned(clock.global_step))


def require_updates(spec: RunSpec, online: OnlineConfig, updates: int) -> None:
    """Raise if a new run would end before its first update."""
    if updates == 0 and spec.checkpoint is None:
        total = spec.config.total_timesteps
        rare = online.train_frequency > 1
        every = f", and come every {online.train_frequency:,} steps" if rare else ""
        raise ConfigError.of(
            "total_timesteps",
            f"{total:,} steps end before the first update: updates begin after learning_starts, "
            f"{online.first_steps:,} steps{every}; raise total_timesteps or lower learning_starts"
            f"{' or train_frequency' if rare else ''}",
        )


def warn_about_actor(spec: RunSpec, learner: Learner, updates: int) -> None:
    """Warn if a new run ends before `actor_starts`; the members of a population share one warning."""
    if spec.checkpoint is None and 0 < updates <= learner.actor_starts:
        counts = updates, learner.actor_starts
        message = "this run ends before the policy changes: %d updates, actor_starts %d"
        spec.once("actor_starts", lambda: _log.warning(message, *counts))


def fit_online(
    session: Session,
    updater: Updater,
    collector: Experience,
    online: OnlineConfig,
    *,
    max_updates: int | None = None,
) -> Iterator[Event]:
    """Train until `total_timesteps` environment steps or `max_updates` updates are done or the session stops."""
    total, learner = session.config.total_timesteps, session.learner
    act, advanced, earned = Act(collector), Advanced(), online.earned(collector.steps)
    while session.running and collector.steps < total and (max_updates is None or learner.updates < max_updates):
        before, earned = earned, online.earned(collector.steps + collector.width)
        due = earned - before
        updates = Updates(updater, due if max_updates is None else min(due, max_updates - learner.updates))
        beside = online.overlap and len(collector.buffer) > 0
        yield act
        if beside:
            yield updates
        collector.receive()
        if not beside:
            yield updates
        collector.acting.send_ahead()
        session.clock.global_step = collector.steps
        session.advance()
        yield advanced


def make_buffer(capacity: int, spaces: SpaceSpec, learner: Learner, spec: RunSpec) -> ReplayBuffer:
    """A replay buffer on the learner's device, or in pinned host memory; raises if it does not fit in either."""
    if lacking := [column for column in learner.extras if column.replayed is None]:
        raise ConfigError.of(
            "algo",
            f"{learner.name} needs the column {lacking[0].name!r}, which replay buffers do not have; "
            "train it offline",
        )
    layout = RowLayout.of(spaces, tuple(column.bind(learner.config) for column in learner.extras))
    needed, n_step = capacity * layout.width * 4, spec.n_step

    def make(generator: torch.Generator, **options: Any) -> ReplayBuffer:
        returns, place = None, (spec.config.num_envs, generator.device)
        if n_step > 1 or layout.extras:
            returns = NStepReturns(n_step, learner.config.gamma, *place, replayed=True)
        return ReplayBuffer(capacity, layout, generator, n_step=returns, **options)

    if learner.device.type == "cuda" and needed <= room_on_gpu(learner.device):
        together = spec.config.num_envs if tensor_maker(spec.config, spec.given) is None else 0
        return make(learner.generator, together=together)
    free = int(0.9 * available_memory())
    if needed > free:
        raise MemoryLimitError(
            f"algo_kwargs.buffer_capacity {capacity} needs {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are "
            f"available; the largest that fits is {free // (layout.width * 4)}",
            key="algo_kwargs.buffer_capacity",
        )
    if learner.device.type == "cpu":
        return make(learner.generator)
    host = torch.Generator("cpu")
    host.manual_seed(learner.generator.initial_seed())
    return make(host, pin=True)


def make_collector(
    spec: RunSpec, online: OnlineConfig, spaces: SpaceSpec, learner: Learner, buffer: ReplayBuffer, **options: Any
) -> Experience:
    """A collector that steps the configured environments and writes to `buffer`; `options`: of `Experience`."""
    config, maker = spec.config, tensor_maker(spec.config, spec.given)
    if maker is None:
        require_room_for_environments(config)
    if buffer.capacity < config.num_envs:
        raise ConfigError(
            f"algo_kwargs.buffer_capacity {buffer.capacity} is less than one step of num_envs {config.num_envs}",
            key="algo_kwargs.buffer_capacity",
        )
    options |= {
        "random_steps": online.acts_randomly_until(config),
        "random_block_steps": online.random_block_steps,
        "total_steps": config.total_timesteps,
    }
    if maker is not None:
        if late := [column for column in learner.extras if column.at_end is not None]:
            raise ConfigError.of(
                "algo",
                f"{learner.name} needs the column {late[0].name!r}, which tensor environments do not have; "
                "use other environments",
            )
        require_tensor_settings(config, maker)
        env = maker(config.num_envs, learner.device, config.env_kwargs)
        return TensorCollector(env, spaces, learner, buffer, seed=config.seed or 0, close=maker.close, **options)
    return Collector(make_pool(config, given=spec.given), spaces, learner, buffer, **options)


def running_moments(spec: RunSpec, spaces: SpaceSpec, device: torch.device) -> RunningMoments | None:
    """The running statistics of observations; None if they are not normalised, or by fixed moments."""
    if not spec.resolved[ObservationConfig].normalize_observations:
        return None
    moments = RunningMoments(spaces.obs_dim, None if tensor_maker(spec.config, spec.given) is None else device)
    if spec.origin is None:
        return moments
    with checkpoint_errors(spec.origin):
        found = moments_of(spec.origin)
        if found is not None and spec.checkpoint is None:
            moments.load(found)
    if found is None and spec.checkpoint is None:
        _log.warning("init_from: %s normalises by the moments of its data; they stay fixed", spec.origin.path)
    return None if found is None else moments


def running_returns(spec: RunSpec, learner: Learner) -> RunningReturns | None:
    """The running statistics of the return, if rewards are scaled; `learner` then scales those of minibatches."""
    if not spec.resolved[ObservationConfig].normalize_rewards:
        return None
    learner.scale_rewards()
    device = None if tensor_maker(spec.config, spec.given) is None else learner.device
    returns, origin = RunningReturns(spec.config.num_envs, learner.config.gamma, device), spec.origin
    if origin is None or spec.checkpoint is not None or not config_of(origin).algo_kwargs.get("normalize_rewards"):
        return returns
    with checkpoint_errors(origin):
        if "scaling.count" in (saved := origin.tensors.get("collector", {})):
            returns.load_statistics(saved)
        else:
            _log.warning("init_from: %s has no statistics of returns; rewards are scaled anew", origin.path)
    return returns


def learns_without_data(algo: str, plugin: str | None) -> ConfigError:
    """The error for data that are passed to an online algorithm; `plugin`: its `module:Class`, if it has one."""
    remedy = "use rlpd to mix in data" if plugin is None else 'for data, register the class with regime="offline"'
    return ConfigError(f"dataset: {algo} learns from an environment alone; {remedy}")


class Online(Regime):
    """Train on a replay buffer that is filled with experience from an environment."""

    name = "online"
    sections = (OptimizationConfig, ObservationConfig, OnlineConfig, NStepConfig, ControlConfig)
    first_phase = "online"
    experience: Experience

    def __init__(self, spec: RunSpec) -> None:
        if spec.dataset is not None:
            raise learns_without_data(spec.config.algo, spec.config.plugin)
        self.spaces = spaces_of(spec.config, discrete=spec.sections.takes_discrete, given=spec.given)
        self.spec = spec = spec.for_actions(self.spaces, str(spec.config.env_id))
        self.online = spec.resolved[OnlineConfig]
        self.total_ticks, self.first_update = spec.config.total_timesteps, self.online.first_steps
        self.total_updates = planned_updates(spec, self.online)
        require_updates(spec, self.online, self.total_updates)
        normalize, origin = spec.resolved[ObservationConfig].normalize_observations, spec.origin
        self.learner = build_learner(
            spec.sections,
            spec.resolved,
            spec.config,
            self.spaces,
            normalize_observations=normalize or has_normalizer(origin),
            clip_observations=normalize if origin is None else clips_observations(origin),
            updates_per_step=self.online.gradient_updates_per_step,
        )
        buffer = make_buffer(self.online.buffer_capacity, self.spaces, self.learner, spec)
        if origin is not None and spec.checkpoint is None:
            settings = spec.resolved.to_dict()
            follows = initialise_from(self.learner, origin, self.spaces, settings)
            self.spec = spec = spec.with_algo_kwargs(follows)
        self.remarks = self.online.remarks(spec, self.learner)
        warn_about_actor(spec, self.learner, self.total_updates)
        moments = running_moments(spec, self.spaces, self.learner.device)
        scaling = running_returns(spec, self.learner)
        self.experience = make_collector(
            spec, self.online, self.spaces, self.learner, buffer, moments=moments, scaling=scaling
        )

    def make_updaters(self) -> None:
        together = self.online.together(self.spec.config.num_envs)
        self.own_updater = self.updater(self.experience.buffer, together=together, acting=self.experience.acting)

    def fit(self, session: Session) -> Iterator[Event]:
        return fit_online(session, self.own_updater, self.experience, self.online)
