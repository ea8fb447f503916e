"""What is done to packed rows, from `rows` into `out`, `step` rows at a time; `out` may be `rows` themselves.

In place, rows only ever move towards the front, and what a step needs is read before any of it is written.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rl_training.data.mapped import as_tensor
from rl_training.data.transitions import RowLayout
from rl_training.errors import DatasetError

Rows = NDArray[np.float32]


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
    """The spans of rows that begin at `starts`, in rising order, one after the other."""
    written = 0
    for start, length in zip(starts.tolist(), lengths.tolist()):
        for chunk in chunks(start, start + length, step):
            stop = written + chunk.stop - chunk.start
            if out is not rows or written != chunk.start:
                out[written:stop] = rows[chunk]
            written = stop


def fill_next_actions(
    rows: Rows,
    layout: RowLayout,
    out: Rows,
    episode_ends: NDArray[np.int64],
    left_out: NDArray[np.int64],
    step: int,
) -> None:
    """All rows but `left_out`, each with the action of the row after it, or with its own at the end of an episode.

    `layout` is that of `rows`; `out` is laid out with next actions.
    """
    wide = RowLayout(layout.obs_dim, layout.action_dim, layout.discrete, next_actions=True)
    kept, continued = np.ones(len(rows), np.bool_), np.ones(len(rows), np.bool_)
    kept[left_out], continued[episode_ends] = False, False
    written = 0
    for chunk in chunks(0, len(rows), step):
        index = chunk.start + np.flatnonzero(kept[chunk])
        here, after = (layout.unpack(as_tensor(rows[chosen])) for chosen in (index, index + continued[index]))
        wide.pack(
            obs=here.obs.numpy(),
            actions=here.actions.numpy(),
            rewards=here.rewards.numpy(),
            next_obs=here.next_obs.numpy(),
            dones=here.dones.numpy(),
            out=out[written : written + len(index)],
            next_actions=after.actions.numpy(),
        )
        written += len(index)
