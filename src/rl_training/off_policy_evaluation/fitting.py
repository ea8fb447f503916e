"""FQE of K policies on B bootstraps as one population: each member has its own weights, minibatches and policy.

The members of a bootstrap start from the same networks and draw the same minibatches for every policy. Differences
between policies are therefore not due to chance, and two policies that act alike get the same value.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.algorithms.fqe import FQE, FQEConfig
from rl_training.data.datasets import TransitionDataset
from rl_training.data.episodes import Episodes, Resample
from rl_training.errors import DivergedError
from rl_training.experience.fqe_data import (
    EpisodeSampler,
    FirstStates,
    PolicyActions,
    Units,
    build_fqe,
    sample_together,
)
from rl_training.memory import available_memory, human_bytes, room_on_gpu
from rl_training.models.mlp import NetworkConfig
from rl_training.models.policies import Policy
from rl_training.models.simba import EXPANSION
from rl_training.off_policy_evaluation import defaults
from rl_training.runs.fleet import COPIES
from rl_training.seeding import fqe_seeds
from rl_training.updates.stack import Stack
from rl_training.updates.stacked import StackedUpdater
from rl_training.updates.updater import Acceleration, Updater, accelerate

BATCH_SIZE = 256
# Updates between two readings of the clipped share, and the share of updates after which readings are averaged.
_BLOCK, _CONVERGED = 250, 0.8
# Updates before the first call of `watch`: enough to estimate the remaining time.
_FIRST = 20
# Memory of one member's activations during an update, in layers of its widest network.
_LAYERS = 12

_log = logging.getLogger(__name__)
Watch = Callable[[float], None]


@dataclass(frozen=True)
class Plan:
    """Settings of FQE, with the defaults of every command."""

    updates: int = defaults.UPDATES
    batch_size: int = BATCH_SIZE
    seed: int = defaults.SEED
    sampled: bool = False
    acceleration: Acceleration = "auto"
    config: FQEConfig = field(default_factory=FQEConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)


@dataclass(frozen=True)
class Fit:
    """Results of FQE for K policies and B bootstraps, `[K, B]` each, and the fitted learners."""

    values: NDArray[np.float64]
    drift: NDArray[np.float64]  # change of the values over the last fifth of the updates
    clipped: NDArray[np.float64]  # share of targets outside their bounds during that fifth
    learners: tuple[tuple[FQE, ...], ...] = field(repr=False, default=())


class FQEUpdater(StackedUpdater):
    """Updates of a population whose minibatches, with the actions of each member's policy, are one gather."""

    def __init__(self, stack: Stack, updaters: Sequence[Updater], parts: Sequence[Resample]) -> None:
        super().__init__(stack, updaters)
        self._parts = list(parts)

    def _sample(self) -> Tensor:
        sources = [one.source for one in self.members if isinstance(one.source, EpisodeSampler)]
        return sample_together(sources, self._parts, self.batch_size)


def fit(
    dataset: TransitionDataset,
    episodes: Episodes,
    policies: Sequence[Policy],
    parts: Sequence[Resample],
    plan: Plan,
    device: torch.device,
    *,
    keep: bool = False,
    watch: Watch = lambda done: None,
) -> Fit:
    """Fit every policy on every resample, as many policies at a time as fit in memory.

    `keep` also returns the learners. `watch` is called with the share of the work that is done: first with 0, then
    after a few updates, then regularly.
    """
    rows = dataset.rows_on(device)
    parts = [part.to(rows.device) for part in parts]
    units, moments = Units.of(dataset, episodes, plan.config.gamma), dataset.observation_moments()

    def learner(bootstrap: int) -> FQE:
        seeds = fqe_seeds(plan.seed, bootstrap)
        return build_fqe(dataset, units, moments, plan.config, plan.network, seeds, device)

    room = _room_for(dataset, learner(0), len(policies), len(parts), plan, rows.device)
    found: list[Fit] = []
    for first in range(0, len(policies), room.policies):
        some = [policy.to(rows.device) for policy in policies[first : first + room.policies]]
        actions = PolicyActions(dataset, rows, some, sampled=plan.sampled, tabulate=room.tables)
        learners = [[learner(b) for b in range(len(parts))] for _ in some]
        watch_part = partial(report_part, watch, first / len(policies), len(some) / len(policies))
        one = _fit(actions, episodes, parts, learners, plan, watch_part)
        found.append(one if keep else replace(one, learners=()))
    return Fit(
        values=np.concatenate([one.values for one in found]),
        drift=np.concatenate([one.drift for one in found]),
        clipped=np.concatenate([one.clipped for one in found]),
        learners=tuple(chain.from_iterable(one.learners for one in found)),
    )


def report_part(watch: Watch, before: float, part: float, share: float) -> None:
    """Report the `share` of a `part` of the work that begins after `before`."""
    watch(before + part * share)


class Room(NamedTuple):
    """Number of policies fitted at a time, and whether their actions are precomputed."""

    policies: int
    tables: bool


def _room_for(
    dataset: TransitionDataset, example: FQE, policies: int, parts: int, plan: Plan, home: torch.device
) -> Room:
    """Find out what fits in memory and warn if not all policies do. Rows and action tables are stored on `home`."""
    model = example.model
    networks = sum(tensor.nbytes for tensor in chain(model.parameters(), model.buffers()))
    inner = EXPANSION if plan.network.network == "simba" else 1
    widest = max((model.obs_dim + model.action_dim, *(inner * size for size in plan.network.hidden_sizes)))
    each = parts * (COPIES * networks + 4 * _LAYERS * plan.batch_size * widest)
    table, free = PolicyActions.table_bytes(dataset), _free(home)
    tables = not plan.sampled and table <= free // 2
    if tables:
        free //= 2
        each += table if home == example.device else 0
    most = min(policies, _free(example.device) // each, free // table if tables else policies)
    if most < policies:
        _log.warning(
            "memory for %d of %d policies at a time (%s each): the others follow",
            max(1, most),
            policies,
            human_bytes(each),
        )
    return Room(max(1, most), tables)


def _free(device: torch.device) -> int:
    return room_on_gpu(device) if device.type == "cuda" else int(0.5 * available_memory())


def _fit(
    actions: PolicyActions,
    episodes: Episodes,
    parts: Sequence[Resample],
    learners: Sequence[Sequence[FQE]],
    plan: Plan,
    watch: Watch,
) -> Fit:
    updater = _updater(actions, parts, learners, plan)
    first = FirstStates(actions, episodes, plan.seed)
    clipped: list[NDArray[np.float64]] = []
    converged = int(_CONVERGED * plan.updates)
    before, done = np.full((len(learners), len(parts)), np.nan), 0
    watch(0.0)
    while done < plan.updates:
        bound = converged if done < converged else plan.updates
        count = min(_BLOCK if done else _FIRST, bound - done)
        updater.run(count)
        done += count
        watch(done / plan.updates)
        if done == converged:
            before = _values(first, learners, parts)
        if done > converged:
            clipped.append(_clipped(learners))
    values = _values(first, learners, parts)
    if not np.all(np.isfinite(values)):
        raise DivergedError("FQE diverged: its values are not finite; use a smaller learning_rate")
    return Fit(values, values - before, np.mean(clipped, axis=0), tuple(tuple(some) for some in learners))


def _updater(
    actions: PolicyActions, parts: Sequence[Resample], learners: Sequence[Sequence[FQE]], plan: Plan
) -> Updater:
    """The updater of all members; a single member is not stacked."""
    updaters = []
    for place, some in enumerate(learners):
        for part, learner in zip(parts, some, strict=True):
            accelerate(learner, plan.acceleration)
            source = EpisodeSampler(actions, place, part, learner.generator)
            updaters.append(Updater(learner, source, plan.batch_size))
    if len(updaters) == 1:
        return updaters[0]
    return FQEUpdater(Stack([updater.learner for updater in updaters]), updaters, parts)


def _clipped(learners: Sequence[Sequence[FQE]]) -> NDArray[np.float64]:
    """Share of clipped targets of the last update, `[K, B]`."""
    return np.array([[float(one.terms["clipped_share"]) for one in some] for some in learners])


def _values(
    first: FirstStates, learners: Sequence[Sequence[FQE]], parts: Sequence[Resample]
) -> NDArray[np.float64]:
    """Mean value of the first states of each resample, `[K, B]`."""
    found = [
        [
            float((first.values(learner, place) * part.counts.cpu()).sum() / part.counts.sum())
            for learner, part in zip(some, parts, strict=True)
        ]
        for place, some in enumerate(learners)
    ]
    return np.array(found)
