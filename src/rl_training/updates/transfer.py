"""One transfer of the policies of all members of a population from the GPU."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.experience.acting import ActingPolicy, WeightTransfer
from rl_training.updates.stack import Stack


def fetch_together(stack: Stack, acting: Sequence[ActingPolicy]) -> None:
    """Make `acting` (one policy per member of `stack`, or empty) share one weight transfer, if they are copies."""
    if acting and acting[0].copies:
        transfer = WeightTransfer([one.learner for one in acting], [stack.stacked(t) for t in acting[0].tensors()])
        for row, one in enumerate(acting):
            one.bind(transfer, row)
