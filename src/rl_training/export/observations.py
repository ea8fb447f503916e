"""Observations to test an exported file with: those of the run if available, and extreme ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl_training.data.datasets import TransitionDataset
from rl_training.data.formats import read_columns
from rl_training.data.loading import DatasetChoice, DatasetConfig
from rl_training.data.transitions import RowLayout
from rl_training.errors import CheckpointError, RLTrainingError
from rl_training.experiment.checkpointing import Checkpoint, find_checkpoint
from rl_training.experiment.registry import resolve
from rl_training.runs.state import read_run_checkpoint
from rl_training.runtime.loading import LoadedPolicy

Rows = NDArray[np.float32]
COUNT = 1_000
_PLACES = 10  # positions in a file, with a tenth of the rows read from each
_CORNERS = 32
_MAGNITUDES = (1e1, 1e2, 1e3, 1e6, 1e12, 1e20)


@dataclass(frozen=True)
class Observations:
    """`seen [n, O]`: the run's observations and corners of their range; `beyond [m, O]`: far outside this range.

    `source` describes their origin.
    """

    seen: Rows
    beyond: Rows
    source: str


def observations_for(
    checkpoint: Checkpoint, loaded: LoadedPolicy, dataset: TransitionDataset | None = None
) -> Observations:
    """Collect test observations, deterministically; `dataset` is the training data if it exists only in memory."""
    own, source = _own(checkpoint, loaded, dataset)
    rng = np.random.default_rng(0)
    if (missing := COUNT - len(own)) > 0:
        more = rng.normal(own.mean(0), own.std(0), (missing, own.shape[1])).astype(np.float32)
        own, source = np.concatenate([own, more]), f"{len(own)} of {source}, {missing} drawn like them"
    low, high = own.min(0), own.max(0)
    corners = np.where(rng.random((_CORNERS, len(low))) < 0.5, low, high)
    seen = np.concatenate([own, [low, high, np.zeros_like(low)], corners]).astype(np.float32)
    return Observations(seen, _beyond(rng, len(low)), source)


def _beyond(rng: np.random.Generator, width: int) -> Rows:
    """Observations of every magnitude, up to the largest float32."""
    draws = [magnitude * rng.standard_normal((8, width)) for magnitude in _MAGNITUDES]
    signs = rng.choice([-1.0, 1.0], (8, width))
    end, tiny = (float(getattr(np.finfo(np.float32), name)) for name in ("max", "tiny"))
    return np.concatenate([*draws, signs * end, signs * tiny]).astype(np.float32)


def _own(checkpoint: Checkpoint, loaded: LoadedPolicy, dataset: TransitionDataset | None) -> tuple[Rows, str]:
    if dataset is not None:
        some = np.asarray(dataset.rows[:: -(-len(dataset.rows) // COUNT)])
        return _columns(loaded, some), "the data it was trained on"
    if (rows := _replay(checkpoint)) is not None:
        return _columns(loaded, rows), "its replay buffer"
    if (found := _files(loaded)) is not None:
        return found, "the data it was trained on"
    return _drawn(loaded)


def _columns(loaded: LoadedPolicy, rows: Rows) -> Rows:
    return rows[:COUNT, : RowLayout.of(loaded.spaces).obs_dim]


def _replay(checkpoint: Checkpoint) -> Rows | None:
    """Rows of the checkpoint's replay buffer; if it only has a policy, of the run's newest checkpoint."""
    try:
        if checkpoint.rows is None:
            newest = find_checkpoint(checkpoint.path.resolve().parent.parent / "checkpoints")
            checkpoint = read_run_checkpoint(newest)
        rows: Rows = checkpoint.some_rows(COUNT).numpy()
    except CheckpointError:
        return None
    return rows


def _files(loaded: LoadedPolicy) -> Rows | None:
    """Rows of the data sets that the configuration names, if their files still exist."""
    try:
        section = resolve(loaded.config)[DatasetConfig]
    except LookupError:
        return None
    found = [rows for choice in section.datasets or (section,) if (rows := _file(choice, loaded)) is not None]
    return np.concatenate(found)[:: len(found)][:COUNT] if found else None


def _file(choice: DatasetChoice, loaded: LoadedPolicy) -> Rows | None:
    place, kind = choice.dataset_path or choice.dataset_id, choice.dataset_kind
    if place is None or kind is None or kind == "random":
        return None
    try:
        with read_columns(place, kind) as columns:
            column, size = columns.data["observations"], len(columns)
            starts = np.linspace(0, max(size - COUNT // _PLACES, 0), _PLACES).astype(int)
            parts = [column.read(start, min(start + COUNT // _PLACES, size)) for start in map(int, starts)]
    except (RLTrainingError, OSError):
        return None
    rows = np.concatenate(parts).astype(np.float32)
    fits = rows.shape[1] == loaded.spaces.obs_dim and bool(np.isfinite(rows).all())
    return rows if fits else None


def _drawn(loaded: LoadedPolicy) -> tuple[Rows, str]:
    """Draw from a normal distribution, with the moments of the normaliser if it is enabled."""
    rng, normalizer = np.random.default_rng(1), loaded.policy.normalizer
    draws = rng.standard_normal((COUNT, loaded.spaces.obs_dim))
    if not normalizer.enabled:
        return draws.astype(np.float32), "a normal distribution"
    moments = draws / normalizer.scale.numpy() + normalizer.shift.numpy()
    return moments.astype(np.float32), "a normal distribution with the moments of its normaliser"
