"""The policy that acts: on the CPU, where one row passes faster than a GPU's kernels can be launched."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rl_training.algorithms.base import Learner
from rl_training.models.arrays import on_arrays, settled_in
from rl_training.models.policies import Policy


@dataclass(frozen=True)
class Taken:
    """A policy that is being judged: its weights `[N]`, and what `best/` would keep of the run at its tick."""

    tick: int
    weights: torch.Tensor
    networks: Mapping[str, torch.Tensor]
    records: Mapping[str, Any]


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
        self._policy = on_arrays(self._copy_in(flat))

    def _copy_in(self, flat: torch.Tensor) -> Policy:
        return settled_in(copy.deepcopy(self.learner.model.policy).to("cpu").requires_grad_(False), flat)

    def _fetch_alone(self) -> None:
        self._flat.copy_(self._weights())

    def _weights(self) -> torch.Tensor:
        return torch.cat([tensor.detach().reshape(-1) for tensor in self.tensors()])

    def taken(self) -> torch.Tensor:
        """The present weights `[N]` on the CPU, which stay as they are."""
        return self._weights().cpu()

    def holding(self, weights: torch.Tensor) -> Policy:
        """A policy with weights that were taken, which acts as `current()` did then."""
        policy = self._copy_in(weights)
        return on_arrays(policy) if self.copies else policy

    def current(self) -> Policy:
        """The policy with the model's present weights."""
        if self.copies and self._copied != self.learner.version:
            self._fetch()
            self._copied = self.learner.version
        return self._policy
