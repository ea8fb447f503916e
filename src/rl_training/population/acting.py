"""The policies of all members, copied from a GPU in one transfer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rl_training.population.stack import Stack
from rl_training.runtime.acting import ActingPolicy


class _Courier:
    """Brings the weights that act, `[S, N]`, when those of any member have changed since."""

    def __init__(self, stack: Stack, acting: Sequence[ActingPolicy]) -> None:
        self._learners = [one.learner for one in acting]
        self._tensors = [stack.stacked(tensor).view(len(acting), -1) for tensor in acting[0].tensors()]
        self._flat = torch.empty(
            (len(acting), sum(tensor.shape[1] for tensor in self._tensors)), pin_memory=stack.device.type == "cuda"
        )
        self._versions: list[int] = []
        for one, flat in zip(acting, self._flat):
            one.keep_in(flat, self.fetch)

    def fetch(self) -> None:
        versions = [learner.version for learner in self._learners]
        if versions != self._versions:
            self._flat.copy_(torch.cat(self._tensors, dim=1))
            self._versions = versions


def fetch_together(stack: Stack, acting: Sequence[ActingPolicy]) -> None:
    """Let `acting`, one for each member of `stack` or none, get their weights together where they are copied."""
    if acting and acting[0].copies:
        _Courier(stack, acting)
