"""The policy that acts: on the CPU, where one row passes faster than a GPU's kernels can be launched."""

from __future__ import annotations

import copy

import torch

from rl_training.algorithms.base import Learner
from rl_training.models.policies import Policy


class ActingPolicy:
    """A CPU policy that follows a learner. On a CPU it shares the model's tensors; from a GPU it is copied.

    The learner's `version` tells whether the copy is old; `current()` then waits once for the new weights, so
    nobody acts on old ones.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._copied: int | None = None
        self._source: Policy = learner.model.policy
        self._flat: torch.Tensor | None = None
        if learner.device.type == "cpu":
            self._policy: Policy = self._source
            return
        tensors = self._tensors()
        self._flat = torch.empty(sum(t.numel() for t in tensors), pin_memory=True)
        self._policy = copy.deepcopy(self._source).to("cpu").requires_grad_(False)
        offset = 0
        for tensor in [*self._policy.parameters(), *self._policy.buffers()]:
            tensor.data = self._flat[offset : offset + tensor.numel()].view(tensor.shape)
            offset += tensor.numel()

    def _tensors(self) -> list[torch.Tensor]:
        return [*self._source.parameters(), *self._source.buffers()]

    def current(self) -> Policy:
        """The policy with the model's present weights."""
        if self._flat is not None and self._copied != self._learner.version:
            flat = torch.cat([t.detach().reshape(-1) for t in self._tensors()])
            self._flat.copy_(flat)
            self._copied = self._learner.version
        return self._policy
