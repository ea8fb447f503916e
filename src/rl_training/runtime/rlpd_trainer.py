"""`train_rlpd`: RLPD through the two loops; what it adds to the shared sections are its defaults."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.algorithms.rlpd import RLPD
from rl_training.data.datasets import TransitionDataset
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.offline_to_online import offline_to_online_sections, run_offline_to_online
from rl_training.runtime.session import TrainResult

SECTIONS = offline_to_online_sections(RLPD, learning_starts=5_000)


def train_rlpd(
    config: TrainConfig,
    *,
    run_suffix: str | None = None,
    checkpoint_state: Checkpoint | None = None,
    callbacks: Sequence[Callback] | None = None,
    dataset: TransitionDataset | None = None,
) -> TrainResult:
    """Train RLPD as `config` says, from the start or from `checkpoint_state`."""
    return run_offline_to_online(
        SECTIONS,
        config,
        run_suffix=run_suffix,
        checkpoint_state=checkpoint_state,
        callbacks=callbacks,
        dataset=dataset,
    )
