"""`Experience`: the interface between a run and the environments that fill its replay buffer."""

from __future__ import annotations

from typing import Any, Protocol

from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.experience.acting import ActingPolicy
from rl_training.experiment.checkpointing import Checkpoint, Saved


class Experience(Protocol):
    """Environments, the policy that acts in them and the replay buffer; saves and restores its own state."""

    acting: ActingPolicy
    buffer: ReplayBuffer
    inexact_remedy: str  # what a user can do about `unreplayable`

    @property
    def width(self) -> int:
        """Environment steps per vector step."""

    @property
    def steps(self) -> int:
        """Environment steps made so far."""

    def start(self) -> None:
        """Reset every environment; called once, unless the run resumes."""

    def act(self) -> None:
        """The first half of a vector step: choose actions and send them to the environments."""

    def receive(self) -> None:
        """The second half of a vector step: store the transitions and reset environments whose episode ended."""

    def check(self) -> None:
        """Raise `DivergedError` if a stored row is not finite; called before anything is reported or saved."""

    def statistics(self) -> dict[str, float]:
        """Means over the last episodes."""

    def unreplayable(self) -> list[str]:
        """A phrase for each environment whose running episode a resumed run cannot restore."""

    def record(self) -> dict[str, Any]:
        """The checkpoint record `collector`, as plain data."""

    def save(self) -> Saved:
        """Everything that `restore` needs, including the rows of the replay buffer."""

    def restore(self, checkpoint: Checkpoint) -> list[str]:
        """Restore what `save` saved; returns a phrase for each thing that could not be restored exactly."""

    def close(self) -> None:
        """Close the environments."""
