"""The policies of all members, copied from a GPU in one transfer."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.experience.acting import ActingPolicy, WeightTransfer
from rl_training.updates.stack import Stack


def fetch_together(stack: Stack, acting: Sequence[ActingPolicy]) -> None:
    """Let `acting`, one for each member of `stack` or none, get their weights together where they are copied."""
    if acting and acting[0].copies:
        transfer = WeightTransfer([one.learner for one in acting], [stack.stacked(t) for t in acting[0].tensors()])
        for row, one in enumerate(acting):
            one.follow(transfer, row)
