"""`train_iql`: IQL through the one offline loop; what it adds to the shared sections are its defaults."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.algorithms.iql import IQL
from rl_training.data.datasets import TransitionDataset
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.offline import offline_sections, run_offline
from rl_training.runtime.session import TrainResult

SECTIONS = offline_sections(IQL, learning_rate_schedule="cosine")


def train_iql(
    config: TrainConfig,
    *,
    run_suffix: str | None = None,
    checkpoint_state: Checkpoint | None = None,
    callbacks: Sequence[Callback] | None = None,
    dataset: TransitionDataset | None = None,
) -> TrainResult:
    """Train IQL as `config` says, from the start or from `checkpoint_state`."""
    return run_offline(
        SECTIONS,
        config,
        run_suffix=run_suffix,
        checkpoint_state=checkpoint_state,
        callbacks=callbacks,
        dataset=dataset,
    )
