"""The offline loop, written once, and how every trainer that learns from data gets its spaces and data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.base import Learner
from rl_training.data.datasets import TransitionDataset
from rl_training.data.loading import DatasetConfig, load_dataset
from rl_training.data.sources import BatchSource
from rl_training.errors import ConfigError, DivergedError, MemoryLimitError
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.memory import available_memory, human_bytes
from rl_training.runtime.acceleration import Updater, accelerate
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.controls import ControlConfig
from rl_training.runtime.envs import COLLECTION, EnvPool, spaces_of
from rl_training.runtime.launch import build_learner, open_session
from rl_training.runtime.resume import has_normalizer, initialise_from, starting_point
from rl_training.runtime.schedules import OptimizationConfig
from rl_training.runtime.sections import Resolved, Sections
from rl_training.runtime.session import Regime, Session, TrainResult
from rl_training.settings import PositiveInt, Settings
from rl_training.spaces import SpaceSpec

# Updates a loop makes before it looks whether a signal has arrived.
_BLOCK = 250
# Collected rows live in lists of small arrays until they are packed.
_BYTES_PER_NUMBER = 32


class BudgetConfig(Settings):
    """Bounds beside `total_timesteps`: updates, and epochs (one epoch is one pass over the data).

    RLPD: `max_updates` bounds both phases together, `max_epochs` the pretraining.
    """

    max_updates: PositiveInt | None = None
    max_epochs: PositiveInt | None = None

    def updates(self, total: int, dataset_size: int, batch_size: int) -> int:
        """The smallest of the three budgets, in updates."""
        budgets = [total]
        if self.max_updates is not None:
            budgets.append(self.max_updates)
        if self.max_epochs is not None:
            budgets.append(self.max_epochs * updates_per_epoch(dataset_size, batch_size))
        return min(budgets)


def updates_per_epoch(dataset_size: int, batch_size: int) -> int:
    """Updates in which as many rows are drawn as the data set has."""
    return max(1, -(-dataset_size // batch_size))


def offline_sections(learner: type[Learner], **defaults: Any) -> Sections:
    """The sections of an offline algorithm; `defaults` are those in which it differs from the rest."""
    return Sections(
        learner,
        {
            "learner": learner.Config,
            "network": learner.Network,
            "optimization": OptimizationConfig,
            "dataset": DatasetConfig,
            "budget": BudgetConfig,
            "controls": ControlConfig,
        },
        defaults,
    )


def _infer_env_spaces(config: TrainConfig, *, discrete: bool | None = False) -> SpaceSpec | None:
    """The environment's spaces, or None where the run has no environment and the data must tell."""
    return None if config.env_id is None else spaces_of(config, discrete=discrete)


def _build_offline_dataset(
    config: TrainConfig, section: DatasetConfig, spaces: SpaceSpec | None, given: TransitionDataset | None = None
) -> TransitionDataset:
    """The configured data set, or the one the caller has in memory, checked against the environment."""
    if given is not None:
        if spaces is not None and (difference := given.spaces.difference(spaces)):
            raise ConfigError(f"dataset: its spaces differ from {config.env_id}'s ({difference})")
        return section.transform(given)
    return load_dataset(
        section,
        spaces=spaces,
        collect=None if spaces is None else lambda size, seed: collect_random(config, spaces, size, seed),
    )


def collect_random(config: TrainConfig, spaces: SpaceSpec, size: int, seed: int) -> TransitionDataset:
    """`size` transitions of uniformly random actions, the same ones for the same seed."""
    rng = np.random.default_rng(np.random.SeedSequence((seed, 0xDA7A)))

    def act(obs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if spaces.discrete:
            return rng.integers(spaces.num_actions, size=len(obs))
        return rng.uniform(-1.0, 1.0, (len(obs), spaces.action_dim)).astype(np.float32)

    return collect_dataset(config, spaces, size, seed, act, name=f"random actions in {config.env_id}")


def collect_dataset(
    config: TrainConfig, spaces: SpaceSpec, size: int, seed: int, act: Any, *, name: str
) -> TransitionDataset:
    """`size` transitions of one environment under `act(obs [1, O]) -> internal actions`."""
    needed, free = size * _BYTES_PER_NUMBER * (2 * spaces.obs_dim + spaces.action_dim + 3), available_memory()
    if needed > free:
        raise MemoryLimitError(
            f"algo_kwargs.dataset_size {size} needs {human_bytes(needed)} and {human_bytes(free)} are available; "
            f"the largest that fits is {size * free // needed}",
            key="algo_kwargs.dataset_size",
        )
    pool = EnvPool(config.replace(num_envs=1, seed=seed), purpose=COLLECTION)
    columns: dict[str, list[Any]] = {
        key: [] for key in ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
    }
    try:
        obs = pool.reset(0)
        for _ in range(size):
            (action,) = actions = spaces.to_env(act(obs[None]))
            (transition,) = pool.step(actions)
            if not (np.isfinite(transition.reward) and np.all(np.isfinite(transition.obs))):
                raise DivergedError(
                    f"{config.env_id} returned a non-finite observation or reward (seed {pool.episodes[0].seed}, "
                    f"step {len(pool.episodes[0].actions)}) while data were collected; mend the environment",
                    first_bad="observation or reward of environment 0",
                )
            row = (obs, action, transition.reward, transition.obs, transition.terminated, transition.truncated)
            for values, value in zip(columns.values(), row):
                values.append(value)
            ended = transition.terminated or transition.truncated
            obs = pool.reset(0) if ended else transition.obs
    finally:
        pool.close()
    columns["timeouts"][-1] = not columns["terminals"][-1]
    arrays: dict[str, Any] = {key: np.asarray(values) for key, values in columns.items()}
    return TransitionDataset.from_arrays(**arrays, spaces=spaces, name=name)


def fit_offline(session: Session, updater: Updater, *, updates: int) -> None:
    """Updates on the updater's source until the learner has made `updates`, or somebody stops the run."""
    learner, clock = session.learner, session.clock
    while session.running and learner.updates < updates:
        count = min(updates - learner.updates, session.until_due(_BLOCK))
        updater.run(count)
        if clock.phase == "pretrain":
            clock.pretrain_updates = learner.updates
        else:
            clock.global_step = learner.updates
        session.tick()


@dataclass
class Prepared:
    """Data, spaces and learner of a run that learns from data."""

    dataset: TransitionDataset
    spaces: SpaceSpec
    learner: Learner
    source: BatchSource
    in_memory: bool

    def record(self) -> dict[str, Any]:
        """What run and checkpoint say of the data."""
        data = self.dataset
        return {
            "name": data.name,
            "rows": len(data),
            "fingerprint": data.fingerprint(),
            "in_memory": self.in_memory,
        }


def prepare(
    sections: Sections,
    resolved: Resolved,
    config: TrainConfig,
    dataset: TransitionDataset | None,
    *,
    checkpoint: Checkpoint | None,
    updates_per_step: int = 1,
) -> Prepared:
    """Load the data, build the learner for its spaces, and fix the observation normaliser to its moments."""
    section: DatasetConfig = resolved["dataset"]
    env_spaces = _infer_env_spaces(config)
    if checkpoint is not None:
        require_data(checkpoint.records["dataset"], dataset, checkpoint.path)
    data = _build_offline_dataset(config, section, env_spaces, dataset)
    origin = starting_point(config, checkpoint)
    learner = build_learner(
        sections,
        resolved,
        config,
        data.spaces,
        normalize_observations=section.normalize_observations or (origin is not None and has_normalizer(origin)),
        updates_per_step=updates_per_step,
    )
    if section.normalize_observations:
        mean, std = data.observation_moments()
        learner.model.normalizer.set_moments(torch.as_tensor(mean), torch.as_tensor(std))
    if origin is not None and checkpoint is None:
        initialise_from(learner, origin, data.spaces)
    source = data.source(learner.generator)
    return Prepared(data, env_spaces or data.spaces, learner, source, in_memory=dataset is not None)


def require_data(record: Mapping[str, Any], dataset: TransitionDataset | None, place: Path) -> None:
    """Refuse to go on without the arrays a run was given: no configuration can bring them back."""
    if record.get("in_memory") and dataset is None:
        raise ConfigError(f"{place} was trained on arrays in memory; resume it with resume(dataset=…)")


def run_offline(
    sections: Sections,
    config: TrainConfig,
    *,
    run_suffix: str | None = None,
    checkpoint_state: Checkpoint | None = None,
    callbacks: Sequence[Callback] | None = None,
    dataset: TransitionDataset | None = None,
) -> TrainResult:
    """Train an offline algorithm, from the start or from a checkpoint; `dataset` overrides the configured one."""
    config = config.with_seed()
    resolved = sections.resolve(config.algo_kwargs)
    optimization: OptimizationConfig = resolved["optimization"]
    parts = prepare(sections, resolved, config, dataset, checkpoint=checkpoint_state)
    learner, size = parts.learner, len(parts.dataset)
    updates = resolved["budget"].updates(config.total_timesteps, size, optimization.batch_size)
    with open_session(
        config,
        resolved,
        learner,
        parts.spaces,
        phase="offline",
        total_ticks=updates,
        run_suffix=run_suffix,
        checkpoint=checkpoint_state,
        callbacks=callbacks,
        dataset=parts.record(),
    ) as session:
        per_epoch = updates_per_epoch(size, optimization.batch_size)
        session.regime = Regime(
            extra_metrics=lambda: {"epoch": learner.updates / per_epoch, "dataset_size": float(size)}
        )
        if config.env_id is None:
            session.say("no environment (env_id: null): evaluation is skipped")
        if checkpoint_state is not None:
            session.resume_or_stop()
        accelerate(learner, config.acceleration)
        updater = Updater(
            learner,
            parts.source,
            optimization.batch_size,
            schedule=optimization,
            total_updates=updates,
        )
        session.begin()
        fit_offline(session, updater, updates=updates)
        return session.finish()
