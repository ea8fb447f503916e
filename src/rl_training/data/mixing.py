"""Mixtures of data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rl_training.data.columns import ACTION_PROBS
from rl_training.data.datasets import TransitionDataset
from rl_training.data.extra_columns import describe
from rl_training.data.packing import allocate_rows
from rl_training.data.sources import Part
from rl_training.errors import ConfigError, DatasetError
from rl_training.spaces import SpaceSpec


def mix(
    components: Sequence[tuple[TransitionDataset, float]], *, rows: NDArray[np.float32] | None = None
) -> TransitionDataset:
    """A mixture of data sets: each row of a batch is drawn from a part with probability `weight / sum(weights)`.

    `rows`, if given, already contain those of all components in order.
    """
    if not components:
        raise ConfigError("datasets: at least one data set is needed", key="datasets")
    first = components[0][0]
    for index, (dataset, weight) in enumerate(components):
        if not weight > 0 or not np.isfinite(weight):
            key = f"datasets.{index}.weight"
            raise ConfigError(f"{key} must be > 0, got {weight}", key=key)
        _require_alike(first, dataset)
    name = " + ".join(dataset.name for dataset, _ in components)
    sizes = [len(dataset) for dataset, _ in components]
    offsets = np.cumsum([0, *sizes])
    if rows is None:
        rows = allocate_rows(name, sum(sizes), first.layout.width)
        for (dataset, _), offset in zip(components, offsets):
            rows[offset : offset + len(dataset)] = dataset.rows
    ends = [dataset.episode_ends + offset for (dataset, _), offset in zip(components, offsets)]
    ordered = all(len(dataset.episode_ends) for dataset, _ in components)
    total = sum(weight for _, weight in components)
    maps = {dataset.reward_map for dataset, _ in components}
    if len(maps) > 1:
        raise DatasetError(
            f"{name}: rewards were transformed differently: {sorted(maps)}; mix first, then transform"
        )
    probs = [dataset.action_probs for dataset, _ in components if dataset.action_probs is not None]
    firsts = np.cumsum([0, *(len(one.episode_ends) + len(one.lost) for one, _ in components)]).tolist()
    return TransitionDataset(
        rows=rows,
        spaces=first.spaces,
        episode_ends=np.concatenate(ends) if ordered else np.zeros(0, np.int64),
        name=name,
        notes=tuple(f"{dataset.name}: {note}" for dataset, _ in components for note in dataset.notes),
        parts=tuple(Part(size, weight / total) for size, (_, weight) in zip(sizes, components)),
        reward_map=maps.pop(),
        extras=first.extras,
        action_probs=np.concatenate(probs) if len(probs) == len(components) else None,
        lost=tuple(first + number for first, (dataset, _) in zip(firsts, components) for number in dataset.lost),
    )


def _require_alike(first: TransitionDataset, dataset: TransitionDataset) -> None:
    """Raise if the rows of two data sets mean different things."""
    if dataset.n_step > 1:
        raise DatasetError(
            f"{dataset.name}: rows of {dataset.n_step} steps cannot be mixed; mix before with_n_step"
        )
    require_same_spaces(first.name, first.spaces, dataset.name, dataset.spaces)
    if first.extras != dataset.extras:
        has, other = describe(first.extras), describe(dataset.extras)
        raise DatasetError(
            f"{first.name} and {dataset.name} cannot be mixed: the first has {has}, the second has {other}"
        )


def merge(datasets: Sequence[TransitionDataset]) -> TransitionDataset:
    """All rows of several data sets, in their order; each is drawn with the same probability."""
    for lacks, problem in (
        (
            [one for one in datasets if not len(one.episode_ends)],
            "its rows are unordered, and other data have episodes",
        ),
        (
            [one for one in datasets if one.action_probs is None],
            f"has no column {ACTION_PROBS!r}, and other data do",
        ),
    ):
        if 0 < len(lacks) < len(datasets):
            raise DatasetError(f"{lacks[0].name}: {problem}; merge one kind")
    return replace(mix([(one, len(one)) for one in datasets]), parts=())


def require_same_spaces(name: str, spaces: SpaceSpec, other_name: str, other: SpaceSpec) -> None:
    """Raise if two data sets to mix have different spaces."""
    if difference := spaces.difference(other, "the first has", "the second has"):
        raise DatasetError(f"{name} and {other_name} cannot be mixed: {difference}")
