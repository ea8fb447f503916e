"""`JointActing`: several collectors choose their actions with one evaluation of their policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.algorithms.execution import JointRandom, is_by_rows
from rl_training.experience.acting import WeightTransfer
from rl_training.experience.base import Experience
from rl_training.experience.collector import Collector
from rl_training.models.arrays import JointPolicy, fits_arrays

# Arguments of `Collector.send`: internal actions, and the same in the environments' units.
Actions = tuple[NDArray[Any], NDArray[Any]]


class JointActing:
    """Chooses the actions of collectors that act by their policies, if they differ in tensors and draws only."""

    def __init__(self) -> None:
        self._collectors: list[Collector] = []
        self._group: _Group | None = None  # of `_collectors`; None if each must act by itself

    def actions(self, experiences: Sequence[Experience]) -> list[Actions | None]:
        """The actions of each of `experiences`; None for one that must act by itself."""
        acting = [one for one in experiences if isinstance(one, Collector) and not one.acts_randomly]
        if acting != self._collectors:
            self._collectors, self._group = acting, _Group(acting) if _are_alike(acting) else None
        if self._group is None or len({one.progress for one in acting}) > 1:
            return [None] * len(experiences)
        chosen = dict(zip(acting, self._group.actions()))
        return [chosen.get(one) for one in experiences]  # type: ignore[call-overload]


def _are_alike(collectors: Sequence[Collector]) -> bool:
    """Whether these are several collectors that differ in tensors and draws only, and have policies on arrays."""
    if len(collectors) < 2:
        return False
    first = collectors[0]
    shapes = [tensor.shape for tensor in first.acting.tensors()]
    return (
        is_by_rows(first.learner.explore)
        and first.acting.device.type == "cpu"
        and fits_arrays(first.learner.model.policy)
        and all(
            one.learner.config == first.learner.config
            and one.acting.transfer is first.acting.transfer
            and [tensor.shape for tensor in one.acting.tensors()] == shapes
            and one.spaces == first.spaces
            and one.width == first.width
            for one in collectors
        )
    )


class _Group:
    """Collectors that act with one product per layer and one call of `explore`.

    Each collector's generator draws the numbers that it draws alone. The products are those of the collector's own
    acting policy if that is a copy on arrays. On a CPU it is not: there the products are equal up to rounding.
    """

    def __init__(self, collectors: Sequence[Collector]) -> None:
        self._collectors, acting = collectors, [one.acting for one in collectors]
        first, transfer = acting[0], acting[0].transfer
        if transfer is None:
            flat = torch.empty((len(acting), sum(tensor.numel() for tensor in first.tensors())))
            self._transfers = [
                WeightTransfer([one.learner], one.tensors(), flat[i : i + 1]) for i, one in enumerate(acting)
            ]
            rows = list(range(len(acting)))
        else:
            flat, self._transfers, rows = transfer.flat, [transfer], [one.row for one in acting]
        self._policy = JointPolicy(first.learner.model.policy, flat, rows)
        self._random = JointRandom([one.draws for one in collectors])

    def actions(self) -> list[Actions]:
        for transfer in self._transfers:
            transfer.wait()
        first, count = self._collectors[0], len(self._collectors)
        obs = torch.from_numpy(np.concatenate([one.obs for one in self._collectors]))
        # Numbers of a member that has diverged do not concern the others; its collector raises.
        with torch.inference_mode(), np.errstate(all="ignore"):
            internal = first.learner.explore(self._policy, obs, self._random, first.progress).numpy()
            converted = first.spaces.to_env(internal)
        parts = (actions.reshape(count, -1, *actions.shape[1:]) for actions in (internal, converted))
        return list(zip(*parts))
