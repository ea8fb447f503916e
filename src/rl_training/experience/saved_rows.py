"""A replay buffer in a checkpoint: its rows, and the state of its generator if it has its own."""

from __future__ import annotations

from torch import Tensor

from rl_training.algorithms.base import Learner
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import Checkpoint, RowsToSave, Saved, checkpoint_errors


def saved_rows(buffer: ReplayBuffer, learner: Learner, collector: dict[str, Tensor]) -> Saved:
    """The replay buffer and the tensors of its collector, for a checkpoint."""
    random = {} if buffer.generator is learner.generator else {"host": buffer.generator.get_state()}
    return Saved(
        tensors={"collector": collector} | ({"replay_random": random} if random else {}),
        rows=RowsToSave(buffer.rows, len(buffer), buffer.added, buffer.capacity, buffer.amended),
    )


def restore_rows(buffer: ReplayBuffer, learner: Learner, checkpoint: Checkpoint) -> list[str]:
    """Restore the rows and the generator; returns a phrase if the generator could not be restored."""
    info = checkpoint.rows
    if info is None:
        raise ConfigError(
            f"{checkpoint.path} holds a policy without its replay buffer; resume the run folder instead"
        )
    checkpoint.read_rows(buffer.rows)  # in place: a second copy might not fit into memory
    buffer.load(buffer.rows[: info.filled], added=info.added)
    with checkpoint_errors(checkpoint):
        saved, own = checkpoint.tensors.get("replay_random"), buffer.generator is not learner.generator
        if saved is not None and own:
            buffer.generator.set_state(saved["host"])
        elif saved is not None or own:
            return ["the replay buffer was in another memory; its random state is not restored"]
    return []
