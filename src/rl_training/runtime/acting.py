"""The policy that acts: on the CPU, where one row passes faster than a GPU's kernels can be launched."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch

from rl_training.algorithms.base import Learner
from rl_training.models.arrays import on_arrays
from rl_training.models.policies import Policy


class ActingPolicy:
    """A CPU policy that follows a learner. On a CPU it shares the model's tensors; from a GPU it is copied.

    The learner's `version` tells whether the copy is old; `current()` then waits once for the new weights, so
    nobody acts on old ones.
    """

    def __init__(self, learner: Learner, *, copies: bool | None = None) -> None:
        """`copies` None: where the learner is on a GPU."""
        self.learner = learner
        self._copied: int | None = None
        self._policy: Policy = learner.model.policy
        on_gpu = learner.device.type == "cuda"
        self.copies = on_gpu if copies is None else copies
        if self.copies:
            self.keep_in(torch.empty(sum(t.numel() for t in self.tensors()), pin_memory=on_gpu), None)

    def tensors(self) -> list[torch.Tensor]:
        """What is copied, in the order in which it lies in the copy."""
        source = self.learner.model.policy
        return [*source.parameters(), *source.buffers()]

    def keep_in(self, flat: torch.Tensor, fetch: Callable[[], None] | None) -> None:
        """Let the copy lie in `flat`, where `fetch` brings it: a population's for all members at once."""
        self._flat, self._fetch, self._copied = flat, fetch or self._fetch_alone, None
        policy = copy.deepcopy(self.learner.model.policy).to("cpu").requires_grad_(False)
        offset = 0
        for tensor in (*policy.parameters(), *policy.buffers()):
            tensor.data = flat[offset : offset + tensor.numel()].view(tensor.shape)
            offset += tensor.numel()
        self._policy = on_arrays(policy)

    def _fetch_alone(self) -> None:
        self._flat.copy_(torch.cat([tensor.detach().reshape(-1) for tensor in self.tensors()]))

    def current(self) -> Policy:
        """The policy with the model's present weights."""
        if self.copies and self._copied != self.learner.version:
            self._fetch()
            self._copied = self.learner.version
        return self._policy
