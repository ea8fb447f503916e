"""The acting policy: it runs on the CPU, where a forward pass of few rows is faster than a GPU's kernel launches.

Its weights are copied from the GPU in one transfer, which starts right after the last update before an action.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from rl_training.algorithms.base import Learner
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.models.arrays import copy_bound_to, on_arrays
from rl_training.models.policies import Policy
from rl_training.spaces import SpaceSpec


class WeightTransfer:
    """Copies the policy weights of S learners to `flat`, `[S, N]` on the CPU, if one of them has changed."""

    def __init__(self, learners: Sequence[Learner], tensors: Sequence[Tensor], flat: Tensor | None = None) -> None:
        """`tensors`: the parameters and buffers of the policies, each stacked over all S of them.

        `flat`: where to copy them; None allocates it.
        """
        self._learners, self._tensors = learners, tensors
        on_gpu, members = learners[0].device.type == "cuda", len(learners)
        if flat is None:
            flat = torch.empty((members, sum(t.numel() for t in tensors) // members), pin_memory=on_gpu)
        self.flat = flat
        self._arrival = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        self._versions = [-1] * members  # of the weights that were sent
        self._pending = False

    def has(self, row: int) -> bool:
        """Whether the current weights of one policy were sent."""
        return self._learners[row].version == self._versions[row]

    def send(self) -> None:
        """Start the transfer if the weights have changed; the policy must not act meanwhile."""
        if self._current_versions() != self._versions:
            self.copy()
            self.sent()

    def copy(self) -> None:
        """Queue the copy on the current stream; call `sent` afterwards, after each replay if this is captured."""
        members = len(self.flat)
        parts = [tensor.detach().reshape(members, -1) for tensor in self._tensors]
        self.flat.copy_(torch.cat(parts, dim=1), non_blocking=True)

    def sent(self) -> None:
        """Record that the copy of the current weights is queued."""
        self._versions = self._current_versions()
        if self._arrival is not None:
            self._arrival.record()
            self._pending = True

    def _current_versions(self) -> list[int]:
        return [learner.version for learner in self._learners]

    def wait(self) -> None:
        """Block until `flat` contains the current weights."""
        self.send()
        if self._pending and self._arrival is not None:
            self._arrival.synchronize()
            self._pending = False


class ActingPolicy:
    """A learner's policy. It shares the tensors of a model on the CPU, and is a copy on the CPU of one on a GPU.

    If the learner's `version` has changed, `current()` waits for the new weights, so the copy is never outdated.
    """

    def __init__(self, learner: Learner, *, copies: bool | None = None) -> None:
        """`copies`: whether to copy the policy; None copies it if the learner is on a GPU."""
        self.learner = learner
        self.device = learner.device  # where the policy acts
        self.transfer: WeightTransfer | None = None  # updates the copy
        self.row = 0  # of the transfer
        self._policy: Policy = learner.model.policy
        if learner.device.type == "cuda" if copies is None else copies:
            self.bind(WeightTransfer([learner], self.tensors()), 0)

    def tensors(self) -> list[Tensor]:
        """The tensors to copy, in the order of the copy."""
        source = self.learner.model.policy
        return [*source.parameters(), *source.buffers()]

    def bind(self, transfer: WeightTransfer, row: int) -> None:
        """Use row `row` of `transfer.flat` as weights; the members of a population share one transfer."""
        self.transfer, self.row, self.device = transfer, row, transfer.flat.device
        self._policy = on_arrays(copy_bound_to(self.learner.model.policy, transfer.flat[row]))

    def send_ahead(self) -> None:
        """Start copying the weights to the host now."""
        if self.transfer is not None and not self.transfer.has(self.row):
            self.transfer.send()

    def current(self) -> Policy:
        """The policy with the model's current weights."""
        if self.transfer is not None:
            self.transfer.wait()
        return self._policy


def fetch_together(acting: Sequence[ActingPolicy], stacked: Callable[[Tensor], Tensor]) -> None:
    """Copy the weights of all policies in one transfer, if they are copied at all.

    `stacked` returns the tensor `[S, …]` of all policies for a tensor of the first.
    """
    if acting and acting[0].transfer is not None:
        transfer = WeightTransfer([one.learner for one in acting], [stacked(t) for t in acting[0].tensors()])
        for row, one in enumerate(acting):
            one.bind(transfer, row)


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy on the CPU with its spaces and configuration."""

    policy: Policy
    spaces: SpaceSpec
    config: TrainConfig

    def require_stochastic(self) -> None:
        """Raise if the policy is deterministic, because `--stochastic` would have no effect."""
        if not self.policy.stochastic:
            raise ConfigError(f"--stochastic: the policy of {self.config.algo} is deterministic; leave it out")

    def predict(
        self, obs: ArrayLike, *, deterministic: bool | None = None, rng: np.random.Generator | None = None
    ) -> NDArray[Any]:
        """Actions in the environment's units for one observation or a batch.

        A policy that is sampled (see `Policy.samples`) uses `rng`, or a new random generator.
        """
        batch, noise = self.spaces.observations(obs), None
        if self.policy.samples(deterministic):
            draws = (rng or np.random.default_rng()).standard_normal((len(batch), self.spaces.action_dim))
            noise = draws.astype(np.float32)
        result = self.act(batch, noise)
        return result[0] if self.spaces.is_single(obs) else result

    def act(self, batch: NDArray[np.float32], noise: NDArray[np.float32] | None = None) -> NDArray[Any]:
        """Actions for finite flat observations `[B, O]`: the mode, or a sample given standard normal `noise`."""
        with torch.inference_mode():
            inputs = torch.from_numpy(batch)
            actions = (
                self.policy.mode(inputs) if noise is None else self.policy.sample(inputs, torch.from_numpy(noise))
            )
        # A very large observation may overflow inside the network; the middle of the range is a valid action.
        return self.spaces.to_env(np.nan_to_num(actions.numpy(), nan=0.0))
