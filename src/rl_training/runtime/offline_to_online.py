"""Prior data, then experience: the offline loop, then the online loop on minibatches mixed from both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_training.algorithms.base import Learner
from rl_training.data.datasets import TransitionDataset
from rl_training.data.loading import DatasetConfig
from rl_training.data.sources import MixedSource
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.acceleration import Updater, accelerate
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import Collector
from rl_training.runtime.controls import ControlConfig
from rl_training.runtime.envs import EnvPool
from rl_training.runtime.launch import open_session
from rl_training.runtime.offline import BudgetConfig, fit_offline, prepare
from rl_training.runtime.online import OnlineConfig, fit_online, make_buffer, restore_online, save_online
from rl_training.runtime.schedules import OptimizationConfig
from rl_training.runtime.sections import Sections
from rl_training.runtime.session import Regime, TrainResult
from rl_training.settings import Fraction, NonNegativeInt, Settings


class PriorDataConfig(Settings):
    """`offline_batch_ratio`: the prior data's share of each online minibatch."""

    offline_pretrain_updates: NonNegativeInt = 0
    offline_batch_ratio: Fraction = 0.5


def offline_to_online_sections(learner: type[Learner], **defaults: Any) -> Sections:
    """The sections of an algorithm that uses both data and an environment."""
    return Sections(
        learner,
        {
            "learner": learner.Config,
            "network": learner.Network,
            "optimization": OptimizationConfig,
            "dataset": DatasetConfig,
            "prior": PriorDataConfig,
            "budget": BudgetConfig,
            "online": OnlineConfig,
            "controls": ControlConfig,
        },
        defaults,
    )


def run_offline_to_online(
    sections: Sections,
    config: TrainConfig,
    *,
    run_suffix: str | None = None,
    checkpoint_state: Checkpoint | None = None,
    callbacks: Sequence[Callback] | None = None,
    dataset: TransitionDataset | None = None,
) -> TrainResult:
    """Pretrain on the prior data, then train online on mixed minibatches; from the start or a checkpoint."""
    config = config.with_seed()
    resolved = sections.resolve(config.algo_kwargs)
    if config.env_id is None:
        raise ConfigError(f"env_id: {config.algo} learns online and needs an environment; set env_id", key="env_id")
    online: OnlineConfig = resolved["online"]
    prior: PriorDataConfig = resolved["prior"]
    optimization: OptimizationConfig = resolved["optimization"]
    parts = prepare(
        sections,
        resolved,
        config,
        dataset,
        checkpoint=checkpoint_state,
        updates_per_step=online.gradient_updates_per_step,
    )
    learner = parts.learner
    buffer = make_buffer(online.buffer_capacity, parts.spaces, learner)
    if buffer.device != parts.source.device:
        raise ConfigError(
            "algo_kwargs.buffer_capacity does not fit on the GPU beside the prior data; lower it",
            key="algo_kwargs.buffer_capacity",
        )
    mixed = MixedSource(parts.source, buffer, ratio=prior.offline_batch_ratio)
    prior_rows, online_rows = mixed.split(optimization.batch_size)
    envs = EnvPool(config)
    try:
        collector = Collector(
            envs,
            parts.spaces,
            learner,
            buffer,
            learning_starts=online.learning_starts,
            total_steps=config.total_timesteps,
            reward_map=parts.dataset.reward_map,
        )
        budget: BudgetConfig = resolved["budget"]
        pretraining = budget.updates(prior.offline_pretrain_updates, len(parts.dataset), optimization.batch_size)
        total_updates = pretraining + online.earned(config.total_timesteps)
        if budget.max_updates is not None:
            total_updates = min(total_updates, budget.max_updates)
        with open_session(
            config,
            resolved,
            learner,
            parts.spaces,
            phase="pretrain" if pretraining else "online",
            total_ticks=pretraining + config.total_timesteps,
            run_suffix=run_suffix,
            checkpoint=checkpoint_state,
            callbacks=callbacks,
            dataset=parts.record(),
        ) as session:
            session.regime = Regime(
                save=lambda: save_online(collector),
                statistics=collector.statistics,
                extra_metrics=lambda: {
                    "pretrain_updates_done": float(session.clock.pretrain_updates),
                    "offline_batch_size": float(prior_rows),
                    "online_batch_size": float(online_rows),
                    "dataset_size": float(len(parts.dataset)),
                },
            )
            if checkpoint_state is None:
                collector.start()
            else:
                session.note_inexact(restore_online(collector, checkpoint_state))
                session.resume_or_stop()

            def updater(source: Any) -> Updater:
                return Updater(
                    learner,
                    source,
                    optimization.batch_size,
                    schedule=optimization,
                    total_updates=total_updates,
                )

            accelerate(learner, config.acceleration)
            session.begin()
            if session.clock.phase == "pretrain":
                fit_offline(session, updater(parts.source), updates=pretraining)
            if session.running:
                session.enter_phase("online")
                learner.rhythm_start = session.clock.pretrain_updates  # each environment step is a whole period
                fit_online(session, updater(mixed), collector, online, max_updates=budget.max_updates)
            return session.finish()
    finally:
        envs.close()
