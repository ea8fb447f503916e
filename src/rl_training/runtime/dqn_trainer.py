"""`train_dqn`: DQN through the one online loop; what it adds to the shared sections are its defaults."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.algorithms.dqn import DQN
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.online import online_sections, run_online
from rl_training.runtime.session import TrainResult

SECTIONS = online_sections(DQN, learning_starts=1_000, train_frequency=4, batch_size=64)


def train_dqn(
    config: TrainConfig,
    *,
    run_suffix: str | None = None,
    checkpoint_state: Checkpoint | None = None,
    callbacks: Sequence[Callback] | None = None,
) -> TrainResult:
    """Train DQN as `config` says, from the start or from `checkpoint_state`."""
    return run_online(
        SECTIONS,
        config,
        run_suffix=run_suffix,
        checkpoint_state=checkpoint_state,
        callbacks=callbacks,
    )
