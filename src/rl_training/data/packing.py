"""Packs raw columns into rows and back, in one pass, in memory or in a memory-mapped file.

Rows that exceed the memory limit are stored in an unnamed file in the temporary directory (`TMPDIR`). The system
frees it when the rows are no longer used or the process ends.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.data.columns import ACTION_PROBS, ArrayColumn, Columns
from rl_training.data.transitions import RowLayout, TransitionBatch
from rl_training.data.validation import MOST_FAULTS, Block, Chaining, Checker
from rl_training.errors import DatasetError, MemoryLimitError
from rl_training.memory import available_memory, human_bytes
from rl_training.spaces import SpaceSpec


class Packed(NamedTuple):
    """Rows, the index of each episode's last row (empty if unordered), notes, and a flag per row of the columns."""

    rows: NDArray[np.float32]
    episode_ends: NDArray[np.int64]
    notes: tuple[str, ...]
    kept: NDArray[np.bool_]


def allocate_rows(name: str, count: int, width: int, memory_limit: int | None = None) -> NDArray[np.float32]:
    """Allocate `count` rows: memory up to the limit (default: half of the free memory), else a mapped file."""
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
        if hasattr(os, "posix_fallocate"):  # writing to a hole of a mapped file is fatal on a full disk
            os.posix_fallocate(file.fileno(), 0, needed)
        return np.memmap(file, dtype=np.float32, mode="w+", shape=(count, width))


class Linked(NamedTuple):
    """A block with its next observations."""

    block: Block
    next_obs: NDArray[np.float32]
    keep: NDArray[np.bool_]  # rows that are transitions


class Walk:
    """One pass over columns that checks every row and finds the episodes.

    If the columns have no `next_observations`, the following row's observations are used. The last row of an
    episode that did not terminate then has none and is not kept; a terminal row gets its own observation, which is
    masked. After the pass, `ends` and `kept` have a flag per row of the columns, and `chaining.ordered()` can be
    called.
    """

    def __init__(self, columns: Columns, spaces: SpaceSpec, faults: list[DatasetError] | None = None) -> None:
        """If `faults` is given, errors in rows are collected there; otherwise the first one is raised."""
        self.columns = columns
        self.checker = Checker(columns.name, spaces, faults)
        self.chaining = Chaining(columns)
        self.ends = np.zeros(len(columns), np.bool_)
        self.kept = np.ones(len(columns), np.bool_)
        self.both = 0  # rows that terminate and are cut

    def __iter__(self) -> Iterator[Linked]:
        carried: Block | None = None  # the last row so far, which needs the next one
        for first, raw in self.columns.read_chunks():
            block = self.checker.block(first, raw)
            if carried is not None:
                block, first = carried.join(block), first - 1
            final = first + len(block.rewards) == len(self.columns)
            ends = [block.timeouts] if self.columns.ends_at_timeouts else [block.terminals, block.timeouts]
            end = np.logical_or.reduce([flags for flags in ends if flags is not None])
            end[-1] |= final
            if block.next_obs is None:
                next_obs = block.obs.copy()
                next_obs[:-1] = np.where(end[:-1, None], block.obs[:-1], block.obs[1:])
                keep = ~end | block.terminals
            else:
                broken = self.chaining.observe(block, first)
                if block.timeouts is None:
                    end[:-1] |= broken
                next_obs, keep = block.next_obs, np.ones(len(end), np.bool_)
            carried = block.rows(slice(-1, None))
            ready = slice(0, len(end) if final else len(end) - 1)
            if block.timeouts is not None and not self.columns.ends_at_timeouts:
                self.both += int((block.terminals & block.timeouts)[ready].sum())
            self.ends[first : first + ready.stop] = end[ready]
            self.kept[first : first + ready.stop] = keep[ready]
            yield Linked(block.rows(ready), next_obs[ready], keep[ready])


def faults_of(columns: Columns, spaces: SpaceSpec) -> list[DatasetError]:
    """The errors in the rows of `columns`, in order; if there are none, the error in their episodes.

    Stops after the chunk in which their number exceeds `MOST_FAULTS`.
    """
    faults: list[DatasetError] = []
    walk = Walk(columns, spaces, faults)
    for _ in walk:
        if len(faults) > MOST_FAULTS:
            break
    if not faults and "next_observations" in columns.data:
        try:
            walk.chaining.ordered()
        except DatasetError as fault:
            faults.append(fault)
    return faults


def pack(columns: Columns, spaces: SpaceSpec, layout: RowLayout, rows: NDArray[np.float32]) -> Packed:
    """Check every row of `columns` and pack those that are transitions into `rows`, which has room for all.

    Extra columns of the layout stay zero.
    """
    walk = Walk(columns, spaces)
    written = 0
    for block, next_obs, keep in walk:
        chosen: Any = slice(None) if keep.all() else keep
        stop = written + int(keep.sum())
        layout.pack(
            obs=block.obs[chosen],
            actions=block.actions[chosen],
            rewards=block.rewards[chosen],
            next_obs=next_obs[chosen],
            dones=block.terminals[chosen],
            out=rows[written:stop],
        )
        written = stop
    if written == 0:
        raise DatasetError(
            f"{columns.name}: no complete transition in {len(columns)} row{'s' * (len(columns) > 1)}; "
            "without 'next_observations' the last row of an episode has no successor"
        )
    ordered = walk.chaining.ordered()
    return Packed(
        rows[:written],
        _episode_ends(walk.ends, walk.kept) if ordered else np.zeros(0, np.int64),
        _notes(ordered, walk, len(columns) - written),
        walk.kept,
    )


def unpack(
    name: str,
    batch: TransitionBatch,
    spaces: SpaceSpec,
    episode_ends: NDArray[np.int64],
    action_probs: NDArray[Any] | None,
) -> Columns:
    """The columns of packed transitions, in the environment's units."""
    dones = batch.dones.numpy()
    timeouts = np.zeros(len(dones), np.bool_)
    timeouts[episode_ends] = True
    inside = len(episode_ends) > 0 and bool(np.any(dones[~timeouts]))
    if not inside:
        timeouts &= dones == 0
    arrays = {
        "observations": batch.obs.numpy(),
        "actions": spaces.to_env(batch.actions.numpy()),
        "rewards": batch.rewards.numpy(),
        "terminals": dones.astype(np.bool_),
        "timeouts": timeouts,
        "next_observations": batch.next_obs.numpy(),
        **({} if action_probs is None else {ACTION_PROBS: action_probs}),
    }
    return Columns(
        name,
        {column: ArrayColumn(array) for column, array in arrays.items()},
        action_low=spaces.low or None,
        action_high=spaces.high or None,
        num_actions=spaces.num_actions,
        start=spaces.start,
        ends_at_timeouts=inside,
    )


def _episode_ends(ends: NDArray[np.bool_], kept: NDArray[np.bool_]) -> NDArray[np.int64]:
    last = np.flatnonzero(ends)
    starts = np.concatenate([[0], last[:-1] + 1])
    lengths = np.add.reduceat(kept, starts, dtype=np.int64)
    return (np.cumsum(lengths[lengths > 0]) - 1).astype(np.int64)


def _notes(ordered: bool, walk: Walk, dropped: int) -> tuple[str, ...]:
    notes, chaining = [], walk.chaining
    if walk.both:
        notes.append(
            f"rows with both 'terminals' and 'timeouts': {walk.both}; they count as terminations, so values are "
            "not bootstrapped there; clear 'terminals' if the episodes were cut"
        )
    if not ordered:
        notes.append("rows do not follow each other: transitions without episodes")
    elif not chaining.has_timeouts and chaining.breaks:
        notes.append(f"no column 'timeouts': {chaining.breaks} episode ends found from next_observations")
    if dropped:
        notes.append(left_out(dropped, "the last of an episode, without a next observation"))
    return tuple(notes)


def left_out(rows: int, reason: str) -> str:
    """`1 row left out: …`"""
    return f"{rows} row{'s' * (rows != 1)} left out: {reason}"
