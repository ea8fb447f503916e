"""The policy that acts: on the CPU, where one row passes faster than a GPU's kernels can be launched.

Its weights come in one transfer, which is under way as soon as somebody knows that they have changed for good.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from rl_training.algorithms.base import Learner
from rl_training.models.arrays import bind_parameters, on_arrays
from rl_training.models.policies import Policy


class WeightTransfer:
    """Brings the weights of some learners' policies into `flat`, `[S, N]` on the CPU, when one has changed."""

    def __init__(self, learners: Sequence[Learner], tensors: Sequence[Tensor]) -> None:
        """`tensors`: each holds a part of all S policies."""
        self._learners, self._tensors = learners, tensors
        on_gpu, members = learners[0].device.type == "cuda", len(learners)
        self.flat = torch.empty((members, sum(t.numel() for t in tensors) // members), pin_memory=on_gpu)
        self._arrival = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        self._versions: list[int] = []
        self._under_way = False

    def send(self) -> None:
        """Begin the transfer if there is something new; nobody may be acting meanwhile."""
        if self._present() != self._versions:
            self.copy()
            self.sent()

    def copy(self) -> None:
        """The transfer itself, on the present stream; `sent` must follow, where this is captured each time."""
        members = len(self.flat)
        parts = [tensor.detach().reshape(members, -1) for tensor in self._tensors]
        self.flat.copy_(torch.cat(parts, dim=1), non_blocking=True)

    def sent(self) -> None:
        """The present weights are on their way."""
        self._versions = self._present()
        if self._arrival is not None:
            self._arrival.record()
            self._under_way = True

    def _present(self) -> list[int]:
        return [learner.version for learner in self._learners]

    def wait(self) -> None:
        """Have the present weights in `flat`."""
        self.send()
        if self._under_way and self._arrival is not None:
            self._arrival.synchronize()
            self._under_way = False


class ActingPolicy:
    """A CPU policy that follows a learner. On a CPU it shares the model's tensors; from a GPU it is copied.

    The learner's `version` tells whether the copy is old; `current()` then waits once for the new weights, so
    nobody acts on old ones.
    """

    def __init__(self, learner: Learner, *, copies: bool | None = None) -> None:
        """`copies` None: where the learner is on a GPU."""
        self.learner = learner
        self.transfer: WeightTransfer | None = None  # who brings the copy its weights
        self._policy: Policy = learner.model.policy
        if learner.device.type == "cuda" if copies is None else copies:
            self.follow(WeightTransfer([learner], self.tensors()), 0)

    @property
    def copies(self) -> bool:
        return self.transfer is not None

    def tensors(self) -> list[Tensor]:
        """What is copied, in the order in which it lies in the copy."""
        source = self.learner.model.policy
        return [*source.parameters(), *source.buffers()]

    def follow(self, transfer: WeightTransfer, row: int) -> None:
        """Let the copy lie in a row of what `transfer` brings: a population's for all members at once."""
        self.transfer = transfer
        policy = copy.deepcopy(self.learner.model.policy).to("cpu").requires_grad_(False)
        self._policy = on_arrays(bind_parameters(policy, transfer.flat[row]))

    def send_ahead(self) -> None:
        """The weights will not change before somebody acts: let them be on their way."""
        if self.transfer is not None:
            self.transfer.send()

    def current(self) -> Policy:
        """The policy with the model's present weights."""
        if self.transfer is not None:
            self.transfer.wait()
        return self._policy
