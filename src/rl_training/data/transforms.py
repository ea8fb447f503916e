"""Transforms of packed rows, from `rows` to `out`, `step` rows at a time; `out` may be `rows`.

In place, rows only move towards the front, and each step reads what it needs before it writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.data.extra_columns import ColumnValues
from rl_training.data.mapped import as_tensor
from rl_training.data.n_step import NStepReturns, stored_dones
from rl_training.data.transitions import RowLayout
from rl_training.errors import DatasetError

Rows = NDArray[np.float32]
Values = Mapping[str, ColumnValues]


def chunks(start: int, stop: int, step: int) -> Iterator[slice]:
    """Slices of at most `step` consecutive rows that cover those from `start` to `stop`."""
    for first in range(start, stop, step):
        yield slice(first, min(first + step, stop))


def map_rewards(name: str, layout: RowLayout, rows: Rows, out: Rows, scale: float, shift: float, step: int) -> None:
    """Every reward `r` becomes `scale * r + shift`."""
    for chunk in chunks(0, len(rows), step):
        if out is not rows:
            out[chunk] = rows[chunk]
        view = layout.unpack(as_tensor(out[chunk])).rewards.numpy()
        rewards = view.astype(np.float64) * scale + shift
        if not np.all(np.abs(rewards) < np.finfo(np.float32).max):
            raise DatasetError(f"{name}: rewards overflow with scale {scale:g} and shift {shift:g}")
        view[:] = rewards


def keep_spans(rows: Rows, out: Rows, starts: NDArray[np.int64], lengths: NDArray[np.int64], step: int) -> None:
    """Keep the spans of rows that begin at the ascending `starts`."""
    written = 0
    for start, length in zip(starts.tolist(), lengths.tolist()):
        for chunk in chunks(start, start + length, step):
            stop = written + chunk.stop - chunk.start
            if out is not rows or written != chunk.start:
                out[written:stop] = rows[chunk]
            written = stop


def sum_n_steps(rows: Rows, layout: RowLayout, ends: NDArray[np.int64], n: int, gamma: float, step: int) -> None:
    """Each row becomes, in place, the transition over the next `n` rows of its episode (see `n_step`).

    `ends` are the last rows of all episodes; a row is written after the rows before it, which depend on it.
    """
    rows[ends, -1] = stored_dones(rows[ends, -1] == 1, np.ones(len(ends), np.bool_))
    ring, returns = as_tensor(rows), NStepReturns(n, gamma, 1, torch.device("cpu"))
    for chunk in chunks(0, len(rows), step):
        ring[chunk] = returns.rows(ring, torch.arange(chunk.start, chunk.stop), len(rows) - 1, layout)


def write_columns(
    rows: Rows, layout: RowLayout, out: Rows, wide: RowLayout, kept: NDArray[np.bool_], values: Values, step: int
) -> None:
    """Write all `kept` rows with the extra columns `values`; `layout` is that of `rows`, `wide` that of `out`."""
    written = 0
    for chunk in chunks(0, len(rows), step):
        index = chunk.start + np.flatnonzero(kept[chunk])
        here = layout.unpack(as_tensor(rows[index]))._asdict()
        columns = {name: here[name].numpy() for name in wide.places if name not in values}
        columns |= {name: column.at(index) for name, column in values.items()}
        wide.pack(**columns, out=out[written : written + len(index)])
        written += len(index)
