"""The online loop, written once: one vector step, the updates it earned, whatever is due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rl_training.algorithms.base import Learner
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.transitions import RowLayout
from rl_training.errors import ConfigError, MemoryLimitError
from rl_training.experiment.checkpointing import Checkpoint, RowsToSave
from rl_training.experiment.config import TrainConfig
from rl_training.memory import available_memory, room_on_gpu
from rl_training.runtime.acceleration import Updater, accelerate
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import Collector
from rl_training.runtime.controls import ControlConfig
from rl_training.runtime.envs import EnvPool, spaces_of
from rl_training.runtime.launch import build_learner, open_session
from rl_training.runtime.resume import has_normalizer, initialise_from, starting_point, understood
from rl_training.runtime.schedules import OptimizationConfig
from rl_training.runtime.sections import Sections
from rl_training.runtime.session import Regime, Saved, Session, TrainResult
from rl_training.settings import NonNegativeInt, PositiveInt, Settings
from rl_training.spaces import SpaceSpec


class OnlineConfig(Settings):
    """The rhythm of collecting and learning, in environment steps whatever `num_envs`."""

    buffer_capacity: PositiveInt = 1_000_000
    learning_starts: NonNegativeInt = 1_000
    train_frequency: PositiveInt = 1
    gradient_updates_per_step: PositiveInt = 1

    def earned(self, step: int) -> int:
        """Updates that should have been made by `step`: so many per `train_frequency` steps after the start."""
        first = max(self.learning_starts, 1)
        if step < first:
            return 0
        return (step // self.train_frequency - (first - 1) // self.train_frequency) * self.gradient_updates_per_step


def online_sections(learner: type[Learner], **defaults: Any) -> Sections:
    """The sections of an online algorithm; `defaults` are those in which it differs from the rest."""
    return Sections(
        learner,
        {
            "learner": learner.Config,
            "network": learner.Network,
            "optimization": OptimizationConfig,
            "online": OnlineConfig,
            "controls": ControlConfig,
        },
        defaults,
    )


def fit_online(
    session: Session,
    updater: Updater,
    collector: Collector,
    online: OnlineConfig,
    *,
    max_updates: int | None = None,
) -> None:
    """Until `total_timesteps` environment steps or `max_updates` are done, or somebody stops the run."""
    total, learner = session.config.total_timesteps, session.learner
    while session.running and collector.steps < total and (max_updates is None or learner.updates < max_updates):
        earned = online.earned(collector.steps)
        collector.step()
        due = online.earned(collector.steps) - earned
        updater.run(due if max_updates is None else min(due, max_updates - learner.updates))
        session.clock.global_step = collector.steps
        session.tick()


def make_buffer(capacity: int, spaces: SpaceSpec, learner: Learner) -> ReplayBuffer:
    """A ring on the learner's device; in pinned host memory if it does not fit there; an error if nowhere."""
    layout = RowLayout.of(spaces)
    needed = capacity * layout.width * 4
    if learner.device.type == "cuda" and needed <= room_on_gpu(learner.device):
        return ReplayBuffer(capacity, layout, learner.generator)
    free = int(0.9 * available_memory())
    if needed > free:
        raise MemoryLimitError(
            f"algo_kwargs.buffer_capacity {capacity} needs {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are "
            f"available; the largest that fits is {free // (layout.width * 4)}",
            key="algo_kwargs.buffer_capacity",
        )
    if learner.device.type == "cpu":
        return ReplayBuffer(capacity, layout, learner.generator)
    host = torch.Generator("cpu")
    host.manual_seed(learner.generator.initial_seed())
    return ReplayBuffer(capacity, layout, host, pin=True)


def save_online(collector: Collector) -> Saved:
    """Replay rows and the collecting state, the running episodes included."""
    buffer = collector.buffer
    tensors, record = collector.state_dict()
    random = {} if buffer.generator is collector.learner.generator else {"host": buffer.generator.get_state()}
    return Saved(
        tensors={"collector": tensors, "replay_random": random} if random else {"collector": tensors},
        records={"collector": record},
        rows=RowsToSave(buffer.rows, len(buffer), buffer.added, buffer.capacity),
    )


def restore_online(collector: Collector, checkpoint: Checkpoint) -> list[str]:
    """The reverse of `save_online`; returns what could not be exact."""
    buffer, info = collector.buffer, checkpoint.rows
    if info is None:
        raise ConfigError(
            f"{checkpoint.path} holds a policy without its replay buffer; resume the run folder instead"
        )
    if info.capacity != buffer.capacity:
        raise ConfigError(
            f"algo_kwargs.buffer_capacity: {buffer.capacity} differs from the checkpoint's {info.capacity}",
            key="algo_kwargs.buffer_capacity",
        )
    checkpoint.read_rows(buffer.rows)  # in place: a second copy might not fit into memory
    buffer.load(buffer.rows[: info.filled], added=info.added)
    with understood(checkpoint):
        if "replay_random" in checkpoint.tensors and buffer.generator is not collector.learner.generator:
            buffer.generator.set_state(checkpoint.tensors["replay_random"]["host"])
        return collector.load_state_dict(checkpoint.tensors["collector"], checkpoint.records["collector"])


def online_regime(collector: Collector) -> Regime:
    """What an online run saves and reports beside its learner."""
    return Regime(save=lambda: save_online(collector), statistics=collector.statistics)


def run_online(
    sections: Sections,
    config: TrainConfig,
    *,
    run_suffix: str | None = None,
    checkpoint_state: Checkpoint | None = None,
    callbacks: Sequence[Callback] | None = None,
) -> TrainResult:
    """Train an online algorithm, from the start or from a checkpoint."""
    config = config.with_seed()
    resolved = sections.resolve(config.algo_kwargs)
    online: OnlineConfig = resolved["online"]
    optimization: OptimizationConfig = resolved["optimization"]
    spaces = spaces_of(config, discrete=sections.learner.discrete)
    origin = starting_point(config, checkpoint_state)
    learner = build_learner(
        sections,
        resolved,
        config,
        spaces,
        normalize_observations=origin is not None and has_normalizer(origin),
        updates_per_step=online.gradient_updates_per_step,
    )
    buffer = make_buffer(online.buffer_capacity, spaces, learner)
    if origin is not None and checkpoint_state is None:
        initialise_from(learner, origin, spaces)
    envs = EnvPool(config)
    try:
        collector = Collector(
            envs,
            spaces,
            learner,
            buffer,
            learning_starts=online.learning_starts,
            total_steps=config.total_timesteps,
        )
        with open_session(
            config,
            resolved,
            learner,
            spaces,
            phase="online",
            total_ticks=config.total_timesteps,
            run_suffix=run_suffix,
            checkpoint=checkpoint_state,
            callbacks=callbacks,
        ) as session:
            session.regime = online_regime(collector)
            if checkpoint_state is None:
                collector.start()
            else:
                session.note_inexact(restore_online(collector, checkpoint_state))
                session.resume_or_stop()
            accelerate(learner, config.acceleration)
            updater = Updater(
                learner,
                buffer,
                optimization.batch_size,
                schedule=optimization,
                total_updates=online.earned(config.total_timesteps),
            )
            session.begin()
            fit_online(session, updater, collector, online)
            return session.finish()
    finally:
        envs.close()
