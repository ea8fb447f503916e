"""Raw columns to packed rows, in one pass, in memory or in a memory-mapped file.

Rows that exceed the memory limit are kept in an unnamed file of the temporary directory (`TMPDIR`): the
system frees it when the rows are no longer used or the process ends, however it ends.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.data.columns import Columns
from rl_training.data.transitions import RowLayout
from rl_training.data.validation import Block, Chaining, Checker
from rl_training.errors import DatasetError, MemoryLimitError
from rl_training.memory import available_memory, human_bytes
from rl_training.spaces import SpaceSpec


class Packed(NamedTuple):
    """Rows, the index of each episode's last row (none if unordered), and remarks for a reader."""

    rows: NDArray[np.float32]
    episode_ends: NDArray[np.int64]
    notes: tuple[str, ...]


def allocate_rows(name: str, count: int, width: int, memory_limit: int | None = None) -> NDArray[np.float32]:
    """Room for `count` rows: memory up to the limit (default: half of what is free), else a mapped file."""
    needed = count * width * 4
    limit = available_memory() // 2 if memory_limit is None else memory_limit
    if needed <= limit:
        return np.empty((count, width), dtype=np.float32)
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise MemoryLimitError(
            f"{name}: {count:,} transitions need {human_bytes(needed)}, more than memory "
            f"({human_bytes(limit)}) and {folder} ({human_bytes(free)} free); set TMPDIR to a larger disk "
            "or use fewer rows"
        )
    with tempfile.TemporaryFile() as file:
        if hasattr(os, "posix_fallocate"):  # writing into a hole of a mapped file is fatal on a full disk
            os.posix_fallocate(file.fileno(), 0, needed)
        return np.memmap(file, dtype=np.float32, mode="w+", shape=(count, width))


def pack(columns: Columns, spaces: SpaceSpec, memory_limit: int | None = None) -> Packed:
    """Check every row of `columns` and pack those that are transitions.

    Without `next_observations` they are the following row's observations; the last row of an episode that did
    not terminate then has none and is left out, a terminal row keeps its own, which is never looked at.
    """
    layout, checker, chaining = RowLayout.of(spaces), Checker(columns.name, spaces), Chaining(columns)
    count = len(columns)
    rows = allocate_rows(columns.name, count, layout.width, memory_limit)
    ends, kept = np.zeros(count, np.bool_), np.ones(count, np.bool_)
    written = 0
    carried: Block | None = None  # the last row so far, which needs its successor
    for first, raw in columns.chunks():
        block = checker.block(first, raw)
        if carried is not None:
            block, first = carried.join(block), first - 1
        final = first + len(block.rewards) == count
        end = block.terminals.copy() if block.timeouts is None else block.terminals | block.timeouts
        end[-1] |= final
        if block.next_obs is None:
            next_obs = block.obs.copy()
            next_obs[:-1] = np.where(end[:-1, None], block.obs[:-1], block.obs[1:])
            keep = ~end | block.terminals
        else:
            broken = chaining.observe(block, first)
            if block.timeouts is None:
                end = np.append(end[:-1] | broken, end[-1])
            next_obs, keep = block.next_obs, np.ones(len(end), np.bool_)
        done = slice(0, len(end) if final else -1)
        ends[first : first + len(end[done])] = end[done]
        kept[first : first + len(end[done])] = keep[done]
        keep = keep[done]
        stop = written + int(keep.sum())
        layout.pack(
            obs=block.obs[done][keep],
            actions=block.actions[done][keep],
            rewards=block.rewards[done][keep],
            next_obs=next_obs[done][keep],
            dones=block.terminals[done][keep],
            out=rows[written:stop],
        )
        written = stop
        carried = block.last()
    if written == 0:
        raise DatasetError(
            f"{columns.name}: no complete transition among {count} row{'s' * (count > 1)}; without "
            "'next_observations' the last row of an episode has no successor"
        )
    ordered = chaining.ordered()
    return Packed(
        rows[:written],
        _episode_ends(ends, kept) if ordered else np.zeros(0, np.int64),
        _notes(ordered, chaining, count - written),
    )


def _episode_ends(ends: NDArray[np.bool_], kept: NDArray[np.bool_]) -> NDArray[np.int64]:
    last = np.flatnonzero(ends)
    starts = np.concatenate([[0], last[:-1] + 1])
    lengths = np.add.reduceat(kept, starts, dtype=np.int64)
    return (np.cumsum(lengths[lengths > 0]) - 1).astype(np.int64)


def _notes(ordered: bool, chaining: Chaining, dropped: int) -> tuple[str, ...]:
    notes = []
    if not ordered:
        notes.append("rows do not follow each other: transitions without episodes")
    elif not chaining.has_timeouts and chaining.breaks:
        notes.append(f"no column 'timeouts': {chaining.breaks} episode ends found from next_observations")
    if dropped:
        notes.append(f"{dropped} rows left out: the last of an episode, without a next observation")
    return tuple(notes)
