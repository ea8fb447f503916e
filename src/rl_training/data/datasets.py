"""`TransitionDataset`: a fixed set of packed transitions with its episodes, ready to be sampled.

Observations are raw, continuous actions are in [-1, 1], `dones` is 1 only at true terminations. Time limits
and cuts end an episode without ending the value of its last state. Data that exceed memory are read in chunks
and kept in a memory-mapped file (see `packing.py`).
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from rl_training.data.columns import ArrayColumn, Columns
from rl_training.data.formats import FileKind, read_columns
from rl_training.data.packing import allocate_rows, pack
from rl_training.data.sources import BatchSource, TensorSource
from rl_training.data.transitions import RowLayout, TransitionBatch
from rl_training.data.validation import counted_spaces, resolve_spaces, with_action_space
from rl_training.data.weighted import Part, WeightedSource
from rl_training.errors import ConfigError, DatasetError, MemoryLimitError
from rl_training.memory import human_bytes, room_on_gpu
from rl_training.spaces import SpaceSpec

RETURN_RANGE = 1000.0  # IQL: rewards are scaled so that returns span this much
RANKING_DISCOUNT = 0.99
_CHUNK_ROWS = 1 << 18

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DatasetStatistics:
    """What a person wants to know of a data set; without episodes there are no returns and lengths."""

    name: str
    rows: int
    episodes: int
    terminals: int
    timeouts: int  # episodes that ended without terminating: time limits and cuts
    return_mean: float | None
    return_std: float | None
    return_min: float | None
    return_max: float | None
    length_mean: float | None
    length_min: int | None
    length_max: int | None
    reward_min: float
    reward_max: float
    reward_mean: float
    action_min: tuple[float, ...]  # in the environment's units
    action_max: tuple[float, ...]
    action_counts: tuple[int, ...]  # rows with each discrete action; none for continuous ones
    obs_mean: tuple[float, ...]
    obs_std: tuple[float, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class TransitionDataset:
    """Packed rows `[n, layout.width]`, in memory or memory-mapped, and the last row of each episode.

    `episode_ends` is empty when the rows are shuffled transitions. `parts` is set on a mixture: rows are then
    drawn with the parts' weights, not uniformly. `reward_map` is the (scale, shift) the rewards have been through,
    so that new experience can be given the same. `next_actions` says that the rows hold them. Transforms return new
    data sets.
    """

    rows: NDArray[np.float32]
    spaces: SpaceSpec
    episode_ends: NDArray[np.int64]
    name: str = "arrays"
    notes: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    reward_map: tuple[float, float] = (1.0, 0.0)
    next_actions: bool = False
    memory_limit: int | None = field(default=None, repr=False)

    @classmethod
    def from_arrays(
        cls,
        observations: ArrayLike,
        actions: ArrayLike,
        rewards: ArrayLike,
        terminals: ArrayLike,
        timeouts: ArrayLike | None = None,
        next_observations: ArrayLike | None = None,
        *,
        action_low: ArrayLike | None = None,
        action_high: ArrayLike | None = None,
        num_actions: int | None = None,
        start: int = 0,
        spaces: SpaceSpec | None = None,
        name: str = "arrays",
        memory_limit: int | None = None,
    ) -> Self:
        """A data set of your own arrays `[n, …]`, actions in the environment's units.

        `terminals` marks true ends, `timeouts` time limits and cuts; where both are set, `terminals` wins.
        Without `next_observations` they are the following rows' observations inside each episode. The action
        space comes from `action_low` and `action_high` (one number or one per component), from `num_actions`
        and `start`, or from `spaces`; bounds never come from the data. Whole numbers `[n]` of which nothing is told
        are discrete actions from 0 to the largest.
        """
        given = {
            "observations": observations,
            "actions": actions,
            "rewards": rewards,
            "terminals": terminals,
            "timeouts": timeouts,
            "next_observations": next_observations,
        }
        columns = Columns(
            name,
            {key: ArrayColumn(np.asarray(value)) for key, value in given.items() if value is not None},
            action_low=_bound(action_low),
            action_high=_bound(action_high),
            num_actions=num_actions or 0,
            start=start,
        )
        return cls.from_columns(columns, spaces=spaces, memory_limit=memory_limit)

    @classmethod
    def load(
        cls,
        place: str | os.PathLike[str],
        *,
        kind: FileKind | None = None,
        download: bool = False,
        action_low: ArrayLike | None = None,
        action_high: ArrayLike | None = None,
        num_actions: int | None = None,
        start: int = 0,
        spaces: SpaceSpec | None = None,
        memory_limit: int | None = None,
    ) -> Self:
        """The data set in a file (`.npz`, `.hdf5`, `.h5`) or of a Minari id, checked.

        `kind` (`npz`, `hdf5`, `minari`) is for a file with another ending; `download` lets a Minari data set be
        fetched. A file that does not tell its action space needs one, as for `from_arrays`.
        """
        with read_columns(place, kind, download=download) as columns:
            if action_low is not None or action_high is not None or num_actions:
                columns = with_action_space(
                    columns, _bound(action_low), _bound(action_high), num_actions or 0, start
                )
            return cls.from_columns(columns, spaces=spaces, memory_limit=memory_limit)

    @classmethod
    def from_columns(
        cls, columns: Columns, *, spaces: SpaceSpec | None = None, memory_limit: int | None = None
    ) -> Self:
        """Check and pack the columns of a file; `spaces` are the environment's, if there is one."""
        if spaces is None and (spaces := counted_spaces(columns)) is not None:
            _log.warning(
                "%s: %d discrete actions, the largest number in the data plus one, because nothing tells their "
                "number; set num_actions or env_id if there are more",
                columns.name,
                spaces.num_actions,
            )
        spaces = resolve_spaces(columns, spaces)
        rows, ends, notes = pack(columns, spaces, memory_limit)
        if len(ends) == 1:
            notes = (*notes, "one episode only")
        return cls(rows, spaces, ends, columns.name, notes, memory_limit=memory_limit)

    @property
    def layout(self) -> RowLayout:
        return RowLayout.of(self.spaces, next_actions=self.next_actions)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def rewards(self) -> NDArray[np.float32]:
        return self._view(self.rows).rewards.numpy()

    @property
    def dones(self) -> NDArray[np.float32]:
        return self._view(self.rows).dones.numpy()

    def _view(self, rows: NDArray[np.float32]) -> TransitionBatch:
        """Columns that share the memory of `rows` (discrete actions excepted)."""
        return self.layout.unpack(torch.from_numpy(rows))

    def rows_on(self, device: torch.device) -> Tensor:
        """All rows on a device, if they fit."""
        rows = torch.from_numpy(self.rows)
        if device.type == "cuda" and rows.nbytes > (room := room_on_gpu(device)):
            raise MemoryLimitError(
                f"{self.name}: {human_bytes(rows.nbytes)} of transitions do not fit on the GPU, which has room for "
                f"{human_bytes(room)}; use device: cpu, or less data (top_fraction)"
            )
        return rows.to(device)

    def source(self, generator: torch.Generator, rows: Tensor | None = None) -> BatchSource:
        """Batches on the generator's device: uniform, or by the weights of a mixture; `rows` are there already."""
        rows = self.rows_on(generator.device) if rows is None else rows
        if self.parts:
            return WeightedSource(rows, self.layout, generator, self.parts)
        return TensorSource(rows, self.layout, generator)

    def fingerprint(self) -> str:
        """A checksum of every number in the rows: data that changed between two runs are noticed."""
        checksum = 0
        for chunk in self._chunks():
            checksum = zlib.crc32(np.ascontiguousarray(self.rows[chunk]).data, checksum)
        return f"{checksum:08x}"

    def columns(self) -> Columns:
        """The transitions in the environment's units, to be written to a file."""
        spaces, view = self.spaces, self._view(self.rows)
        timeouts = np.zeros(len(self), np.bool_)
        timeouts[self.episode_ends] = True
        timeouts &= self.dones == 0
        arrays = {
            "observations": view.obs.numpy(),
            "actions": spaces.to_env(view.actions.numpy()),
            "rewards": view.rewards.numpy(),
            "terminals": self.dones.astype(np.bool_),
            "timeouts": timeouts,
            "next_observations": view.next_obs.numpy(),
        }
        return Columns(
            self.name,
            {name: ArrayColumn(array) for name, array in arrays.items()},
            action_low=spaces.low or None,
            action_high=spaces.high or None,
            num_actions=spaces.num_actions,
            start=spaces.start,
        )

    def observation_moments(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean and standard deviation of each observation component, `[O]` each, of rows as they are drawn."""

        def expected(value: Callable[[NDArray[np.float32]], NDArray[np.float64]]) -> NDArray[np.float64]:
            parts = self.parts or (Part(len(self), 1.0),)
            total, first = np.zeros(self.spaces.obs_dim), 0
            for part in parts:
                chunks = self._viewed_chunks(first, first + part.rows)
                total += part.weight * (sum(value(chunk.obs.numpy()).sum(0) for chunk in chunks) / part.rows)
                first += part.rows
            return total / sum(part.weight for part in parts)

        mean = expected(lambda obs: obs.astype(np.float64))
        variance = expected(lambda obs: (obs - mean) ** 2)
        return mean.astype(np.float32), np.sqrt(variance).astype(np.float32)

    def episode_returns(self, discount: float = 1.0) -> NDArray[np.float64]:
        """The (discounted) sum of rewards of each episode."""
        starts, lengths = self._episodes("episode returns")
        rewards = self.rewards.astype(np.float64)
        if discount != 1.0:
            rewards *= discount ** (np.arange(len(self)) - np.repeat(starts, lengths))
        returns: NDArray[np.float64] = np.add.reduceat(rewards, starts)
        return returns

    def statistics(self) -> DatasetStatistics:
        """Counts, returns, lengths and ranges."""
        low = np.min([chunk.actions.numpy().min(0) for chunk in self._viewed_chunks()], axis=0)
        high = np.max([chunk.actions.numpy().max(0) for chunk in self._viewed_chunks()], axis=0)
        mean, std = self.observation_moments()
        episodes = len(self.episode_ends)
        returns = self.episode_returns() if episodes else None
        lengths = self._episodes("lengths")[1] if episodes else None
        return DatasetStatistics(
            name=self.name,
            rows=len(self),
            episodes=episodes,
            terminals=int(np.count_nonzero(self.dones)),
            timeouts=int(np.count_nonzero(self.dones[self.episode_ends] == 0)),
            return_mean=None if returns is None else float(returns.mean()),
            return_std=None if returns is None else float(returns.std()),
            return_min=None if returns is None else float(returns.min()),
            return_max=None if returns is None else float(returns.max()),
            length_mean=None if lengths is None else float(lengths.mean()),
            length_min=None if lengths is None else int(lengths.min()),
            length_max=None if lengths is None else int(lengths.max()),
            reward_min=float(self.rewards.min()),
            reward_max=float(self.rewards.max()),
            reward_mean=float(self.rewards.mean(dtype=np.float64)),
            action_min=_floats(self.spaces.to_env(low)),
            action_max=_floats(self.spaces.to_env(high)),
            action_counts=self._action_counts(),
            obs_mean=_floats(mean),
            obs_std=_floats(std),
            notes=self.notes,
        )

    def _action_counts(self) -> tuple[int, ...]:
        if not self.spaces.discrete:
            return ()
        counts = np.zeros(self.spaces.num_actions, np.int64)
        for chunk in self._viewed_chunks():
            counts += np.bincount(chunk.actions.numpy(), minlength=len(counts))
        return tuple(counts.tolist())

    def with_rewards(self, scale: float = 1.0, shift: float = 0.0) -> Self:
        """Every reward `r` becomes `scale * r + shift`."""
        rows = allocate_rows(self.name, len(self), self.layout.width, self.memory_limit)
        for chunk in self._chunks():
            rows[chunk] = self.rows[chunk]
            view = self._view(rows[chunk]).rewards.numpy()
            rewards = view.astype(np.float64) * scale + shift
            if not np.all(np.abs(rewards) < np.finfo(np.float32).max):
                raise DatasetError(f"{self.name}: rewards overflow with scale {scale:g} and shift {shift:g}")
            view[:] = rewards
        before = self.reward_map
        return replace(self, rows=rows, reward_map=(scale * before[0], scale * before[1] + shift))

    def with_return_range(self, span: float = RETURN_RANGE) -> Self:
        """Rewards scaled so that the best and the worst return are `span` apart (IQL on locomotion)."""
        returns = self.episode_returns()
        width = float(returns.max() - returns.min())
        if width <= 0:
            raise DatasetError(
                f"{self.name}: reward_range_scaling needs episodes with different returns, all "
                f"{len(returns)} have {returns.max():g}; use reward_scale"
            )
        return self.with_rewards(scale=span / width)

    def top_fraction(self, fraction: float) -> Self:
        """The best `fraction` of the episodes (at least one) by their return discounted with 0.99."""
        if not 0 < fraction <= 1:
            raise ConfigError(f"top_fraction must be in (0, 1], got {fraction}", key="top_fraction")
        if fraction == 1:
            return self
        returns = self.episode_returns(RANKING_DISCOUNT)
        starts, lengths = self._episodes("top_fraction")
        keep = max(1, int(fraction * len(returns)))
        best = np.sort(np.argsort(-returns, kind="stable")[:keep])
        rows = allocate_rows(self.name, int(lengths[best].sum()), self.layout.width, self.memory_limit)
        ends = np.cumsum(lengths[best])
        for start, length, end in zip(starts[best], lengths[best], ends):
            rows[end - length : end] = self.rows[start : start + length]
        return replace(
            self,
            rows=rows,
            episode_ends=ends - 1,
            notes=(*self.notes, f"best {keep} of {len(returns)} episodes"),
            parts=self._remaining_parts(starts[best], lengths[best]),
        )

    def with_next_actions(self) -> Self:
        """Rows that also hold the data's action in their next observation, which is the following row's.

        A terminated episode has none after its last row; the row's own action stands there, and `dones` masks it.
        An episode that was cut has none either, but would need one: its last row is left out.
        """
        if self.next_actions:
            return self
        starts, lengths = self._episodes("learning from next actions")
        cut = self.dones[self.episode_ends] == 0
        remaining = lengths - cut
        if not remaining.any():
            raise DatasetError(f"{self.name}: no row has a next action, every episode is cut after its first row")
        note = f"{np.count_nonzero(cut)} rows left out: the last of a cut episode, without a next action"
        return replace(
            self,
            rows=self._rows_with_next_actions(self.episode_ends[cut]),
            episode_ends=np.cumsum(remaining[remaining > 0]) - 1,
            notes=(*self.notes, note) if cut.any() else self.notes,
            parts=self._remaining_parts(starts, remaining),
            next_actions=True,
        )

    def _rows_with_next_actions(self, left_out: NDArray[np.int64]) -> NDArray[np.float32]:
        layout = RowLayout.of(self.spaces, next_actions=True)
        rows = allocate_rows(self.name, len(self) - len(left_out), layout.width, self.memory_limit)
        kept, continued = np.ones(len(self), np.bool_), np.ones(len(self), np.bool_)
        kept[left_out], continued[self.episode_ends] = False, False
        written = 0
        for chunk in self._chunks():
            index = chunk.start + np.flatnonzero(kept[chunk])
            here, after = self._view(self.rows[index]), self._view(self.rows[index + continued[index]])
            layout.pack(
                obs=here.obs.numpy(),
                actions=here.actions.numpy(),
                rewards=here.rewards.numpy(),
                next_obs=here.next_obs.numpy(),
                dones=here.dones.numpy(),
                out=rows[written : written + len(index)],
                next_actions=after.actions.numpy(),
            )
            written += len(index)
        return rows

    def _remaining_parts(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> tuple[Part, ...]:
        """The parts of a mixture after rows were left out; `lengths` remain of the episodes that began at `starts`.

        A part's weight shrinks with its rows, so that what was kept of a row-uniform mixture is drawn uniformly;
        an empty part leaves the mixture.
        """
        if not self.parts:
            return ()
        home = np.searchsorted(np.cumsum([part.rows for part in self.parts]), starts, side="right")
        counts = np.bincount(home, weights=lengths, minlength=len(self.parts)).astype(int)
        return tuple(
            Part(int(count), part.weight * count / part.rows) for count, part in zip(counts, self.parts) if count
        )

    def _episodes(self, purpose: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First row and length of each episode."""
        if len(self.episode_ends) == 0:
            raise DatasetError(
                f"{self.name}: {purpose} needs episodes, but the rows are unordered; use data "
                "whose rows follow each other"
            )
        starts = np.concatenate([[0], self.episode_ends[:-1] + 1])
        return starts, self.episode_ends - starts + 1

    def _viewed_chunks(self, start: int = 0, stop: int | None = None) -> Iterator[TransitionBatch]:
        for chunk in self._chunks(start, stop):
            yield self._view(self.rows[chunk])

    def _chunks(self, start: int = 0, stop: int | None = None) -> Iterator[slice]:
        """Consecutive rows, few enough to be worked on in memory, that cover those from `start` to `stop`."""
        stop = len(self) if stop is None else stop
        for first in range(start, stop, _CHUNK_ROWS):
            yield slice(first, min(first + _CHUNK_ROWS, stop))


def mix(
    components: Sequence[tuple[TransitionDataset, float]], *, memory_limit: int | None = None
) -> TransitionDataset:
    """A mixture of data sets: each row of a batch is drawn from a part with probability `weight / sum(weights)`."""
    if not components:
        raise ConfigError("datasets: at least one data set is needed", key="datasets")
    first = components[0][0]
    for index, (dataset, weight) in enumerate(components):
        if not weight > 0 or not np.isfinite(weight):
            key = f"datasets.{index}.weight"
            raise ConfigError(f"{key} must be > 0, got {weight}", key=key)
        difference = first.spaces.difference(dataset.spaces)
        if difference:
            raise DatasetError(f"{first.name} and {dataset.name} cannot be mixed: {difference}")
        if first.next_actions != dataset.next_actions:
            raise DatasetError(f"{first.name} and {dataset.name} cannot be mixed: only one has next actions")
    name = " + ".join(dataset.name for dataset, _ in components)
    sizes = [len(dataset) for dataset, _ in components]
    rows = allocate_rows(name, sum(sizes), first.layout.width, memory_limit)
    offsets = np.cumsum([0, *sizes])
    ends = []
    for (dataset, _), offset in zip(components, offsets):
        rows[offset : offset + len(dataset)] = dataset.rows
        ends.append(dataset.episode_ends + offset)
    ordered = all(len(dataset.episode_ends) for dataset, _ in components)
    total = sum(weight for _, weight in components)
    maps = {dataset.reward_map for dataset, _ in components}
    if len(maps) > 1:
        raise DatasetError(
            f"{name}: rewards were transformed differently: {sorted(maps)}; mix first, then transform"
        )
    return TransitionDataset(
        rows=rows,
        spaces=first.spaces,
        episode_ends=np.concatenate(ends) if ordered else np.zeros(0, np.int64),
        name=name,
        notes=tuple(f"{dataset.name}: {note}" for dataset, _ in components for note in dataset.notes),
        parts=tuple(Part(size, weight / total) for size, (_, weight) in zip(sizes, components)),
        reward_map=maps.pop(),
        next_actions=first.next_actions,
        memory_limit=memory_limit,
    )


def _bound(value: ArrayLike | None) -> tuple[float, ...] | None:
    return None if value is None else _floats(np.atleast_1d(np.asarray(value, dtype=np.float64)))


def _floats(array: NDArray[Any]) -> tuple[float, ...]:
    return tuple(float(x) for x in np.asarray(array).reshape(-1))
