"""`TransitionDataset`: a fixed set of packed transitions with its episodes, ready to be sampled.

Observations are raw, continuous actions are in [-1, 1], `dones` is 1 only at terminations. Time limits and cuts end
an episode, but the value of its last state is bootstrapped. With `Columns.ends_at_timeouts` an episode continues
after a termination: its return ends there, its rows stay together. Data that exceed memory are memory-mapped.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from rl_training.data import formats
from rl_training.data.columns import ACTION_PROBS, OTHER_NAMES, Columns, bounds_of
from rl_training.data.extra_columns import NEXT_ACTIONS, Column, describe
from rl_training.data.formats.own import Reader
from rl_training.data.mapped import as_tensor, read_ahead
from rl_training.data.packing import allocate_rows, left_out, pack, unpack
from rl_training.data.sources import Part, TensorSource, WeightedSource, remaining_parts
from rl_training.data.statistics import DatasetStatistics, moments_of, returns_of, statistics_of
from rl_training.data.transforms import chunks, keep_spans, map_rewards, sum_n_steps, write_columns
from rl_training.data.transitions import RowLayout, TransitionBatch
from rl_training.data.validation import settled_spaces, with_action_space
from rl_training.errors import ConfigError, DatasetError, argument_hints
from rl_training.memory import room_on_gpu
from rl_training.spaces import SpaceSpec

RETURN_RANGE = 1000.0  # IQL scales rewards so that the range of returns is this
RANKING_DISCOUNT = 0.99
_CHUNK_ROWS = 1 << 18  # per chunk


class RawRows(NamedTuple):
    """Number and fingerprint of the rows of a source, before any transform."""

    rows: int
    fingerprint: str


@dataclass(frozen=True, eq=False)
class TransitionDataset:
    """Packed rows `[n, layout.width]`, in memory or memory-mapped, and the last row of each episode.

    `episode_ends` is empty if the rows are shuffled. If `parts` is set, the data set is a mixture, and rows are
    drawn with the weights of the parts. `reward_map` is the (scale, shift) applied to the rewards, to be applied to
    new experience too. `extras` are the extra columns of the rows, `n_step` the number of steps that a row covers,
    whose rewards are discounted by `n_step_gamma`.
    `action_probs` `[n]` are the probabilities of the logged actions, if the source has them; training ignores them.
    `lost` are the numbers of episodes that had no row left after `with_extras`. Transforms return new data sets.
    """

    rows: NDArray[np.float32]
    spaces: SpaceSpec
    episode_ends: NDArray[np.int64]
    name: str = "arrays"
    notes: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    reward_map: tuple[float, float] = (1.0, 0.0)
    extras: tuple[Column, ...] = ()
    n_step: int = 1
    memory_limit: int | None = None
    checksum: str | None = None  # `fingerprint()`, if known
    raw: RawRows | None = None  # of the source rows, see `as_raw`
    action_probs: NDArray[Any] | None = None
    lost: tuple[int, ...] = ()
    n_step_gamma: float | None = None

    __array_ufunc__ = __iter__ = None  # neither NumPy nor a loop may take the episodes for items

    @classmethod
    @argument_hints(OTHER_NAMES)
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
        ends_at_timeouts: bool = False,
        action_probs: ArrayLike | None = None,
        spaces: SpaceSpec | None = None,
        name: str = "arrays",
        memory_limit: int | None = None,
    ) -> Self:
        """A data set from arrays `[n, …]`, with actions in the environment's units.

        `terminals` marks terminations, `timeouts` time limits and cuts; if both are set, `terminals` takes
        precedence. With `ends_at_timeouts` only `timeouts` end an episode, and it continues after a row in
        `terminals`: trajectories that were labelled with a task later. If `next_observations` is missing, the
        following row's observation of the episode is used. The last row of each episode that did not terminate is
        then left out, with its reward. The action space is given by `action_low` and `action_high` (one number or
        one per component), by `num_actions` and `start`, or by `spaces`; bounds are never inferred from the data.
        Integer actions `[n]` without any of these are discrete actions from 0 to the largest. `action_probs` `[n]`
        are the probabilities of the logged actions, for importance sampling.
        """
        given = {
            "observations": observations,
            "actions": actions,
            "rewards": rewards,
            "terminals": terminals,
            "timeouts": timeouts,
            "next_observations": next_observations,
            "action_low": action_low,
            "action_high": action_high,
            "num_actions": num_actions,
            "start": start,
            "ends_at_timeouts": ends_at_timeouts,
            "action_probs": action_probs,
        }
        return cls.from_columns(Columns.of_arrays(name, given), spaces=spaces, memory_limit=memory_limit)

    @classmethod
    def load(
        cls,
        place: str | os.PathLike[str],
        *,
        kind: str | Reader | None = None,
        download: bool = False,
        action_low: ArrayLike | None = None,
        action_high: ArrayLike | None = None,
        num_actions: int | None = None,
        start: int = 0,
        spaces: SpaceSpec | None = None,
        memory_limit: int | None = None,
    ) -> Self:
        """Load and check a file (`.npz`, `.hdf5`, `.h5`) or a Minari data set.

        `kind` (`npz`, `hdf5`, `minari`) is needed for files with another suffix; it may be a function that reads a
        file of your own format. `download` allows to download a Minari data set. If the file does not declare its
        action space, pass it as in `from_arrays`.
        """
        with formats.read_columns(place, kind, download=download) as columns:
            if action_low is not None or action_high is not None or num_actions:
                low, high = bounds_of(action_low), bounds_of(action_high)
                columns = with_action_space(columns, low, high, num_actions or 0, start)
            return cls.from_columns(columns, spaces=spaces, memory_limit=memory_limit)

    @classmethod
    def from_columns(
        cls,
        columns: Columns,
        *,
        spaces: SpaceSpec | None = None,
        memory_limit: int | None = None,
        rows: NDArray[np.float32] | None = None,
        reserve: tuple[Column, ...] = (),
    ) -> Self:
        """Check and pack columns; `spaces` are the environment's, if there is one.

        They are packed into `rows`, by default new memory or a temporary file. The extra columns `reserve` are
        zero (see `fill_reserved`).
        """
        spaces = settled_spaces(columns, spaces)
        wide = RowLayout.of(spaces, reserve)
        room = allocate_rows(columns.name, len(columns), wide.width, memory_limit) if rows is None else rows
        packed, ends, notes, kept = pack(columns, spaces, wide, room)
        made = cls(packed, spaces, ends, columns.name, notes, extras=reserve, memory_limit=memory_limit)
        found = columns.data.get(ACTION_PROBS)
        return made if found is None else replace(made, action_probs=found.read(0, len(columns))[kept])

    def save(self, place: str | os.PathLike[str]) -> Path:
        """Write a new `.npz` or `.hdf5` file or Minari data set, with these rewards; returns its path."""
        if self.n_step > 1:
            raise DatasetError(f"{self.name}: rows of {self.n_step} steps cannot be saved; save before with_n_step")
        return formats.write_columns(place, self.columns())

    def __repr__(self) -> str:
        spaces, number = self.spaces, len(self.episode_ends)
        episodes = f"{number:,} episode{'s' * (number > 1)}" if number else "unordered"
        actions = f"{spaces.num_actions} discrete actions" if spaces.discrete else f"actions {spaces.action_dim}"
        return f"TransitionDataset({self.name!r}, {len(self):,} rows, {episodes}, obs {spaces.obs_dim}, {actions})"

    def __getitem__(self, episodes: slice) -> Self:
        """The episodes of a slice, as `dataset[:100]`, copied."""
        if not isinstance(episodes, slice):
            raise TypeError(f"episodes are selected by a slice, as in dataset[:100], got {episodes!r}")
        chosen = np.sort(np.arange(len(self.episodes("a slice")[0]))[episodes])
        if not len(chosen):
            raise DatasetError(f"{self.name}: the slice contains none of {len(self.episode_ends):,} episodes")
        return self.of_episodes(chosen, f"{len(chosen):,} of {len(self.episode_ends):,} episodes")

    def __add__(self, other: TransitionDataset) -> TransitionDataset:
        """The rows of both, in this order, all drawn with the same probability."""
        from rl_training.data.mixing import merge

        return merge([self, other]) if isinstance(other, TransitionDataset) else NotImplemented

    @property
    def layout(self) -> RowLayout:
        return RowLayout.of(self.spaces, self.extras)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def rewards(self) -> NDArray[np.float32]:
        return self._view(self.rows).rewards.numpy()

    @property
    def dones(self) -> NDArray[np.float32]:
        return self._view(self.rows).dones.numpy()

    def columns_at(self, index: NDArray[np.int64]) -> TransitionBatch:
        """The rows at `index`, copied."""
        return self._view(self.rows[index])

    def _view(self, rows: NDArray[np.float32]) -> TransitionBatch:
        """Columns that share the memory of `rows` (except discrete actions)."""
        return self.layout.unpack(as_tensor(rows))

    def rows_on(self, device: torch.device, room: int | None = None) -> Tensor:
        """All rows on a device if they fit into `room` bytes (None: most free memory), else where they are."""
        rows = as_tensor(self.rows)
        fits = device.type == "cpu" or rows.nbytes <= (room_on_gpu(device) if room is None else room)
        return rows.to(device) if fits else rows

    def source(self, generator: torch.Generator, rows: Tensor | None = None) -> TensorSource:
        """A source of batches, uniform or by the weights of a mixture; `rows` are those of `rows_on`."""
        rows = self.rows_on(generator.device) if rows is None else rows
        ahead = read_ahead(self.rows) if rows.device.type == "cpu" else None
        if self.parts:
            return WeightedSource(rows, self.layout, generator, self.parts, ahead)
        return TensorSource(rows, self.layout, generator, ahead)

    def fingerprint(self) -> str:
        """A checksum of all rows."""
        if self.checksum is not None:
            return self.checksum
        return _checksum(self.rows[chunk] for chunk in chunks(0, len(self), _CHUNK_ROWS))

    def as_raw(self) -> Self:
        """This data set with `raw` set to its own rows; transforms keep `raw`.

        Extra columns are ignored, so that `raw` is the same for all learners.
        """
        if not self.extras:
            known = self.fingerprint()
            return replace(self, checksum=known, raw=RawRows(len(self), known))
        plain = RowLayout.of(self.spaces)
        found = _checksum(plain.pack_batch(batch) for batch in self.viewed_chunks())
        return replace(self, raw=RawRows(len(self), found))

    def columns(self) -> Columns:
        """The transitions in the environment's units, for writing a file."""
        return unpack(self.name, self._view(self.rows), self.spaces, self.episode_ends, self.action_probs)

    def observation_moments(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean and standard deviation of each observation component, `[O]` each, by the sampling weights."""
        return moments_of(self)

    def episode_returns(self, discount: float = 1.0) -> NDArray[np.float64]:
        """The (discounted) sum of rewards of each episode, up to its first termination."""
        self._require_single_steps("returns of episodes need")
        return returns_of(self, discount, _CHUNK_ROWS)

    def statistics(self) -> DatasetStatistics:
        """Counts, returns, lengths and ranges."""
        return statistics_of(self)

    def with_rewards(self, scale: float = 1.0, shift: float = 0.0, *, in_place: bool = False) -> Self:
        """Every reward `r` becomes `scale * r + shift`."""
        if shift:
            self._require_single_steps("reward_shift needs")
        stale = [column for column in self.extras if column.like == "rewards"]
        if stale and not in_place:  # in place, the columns are reserved and filled later
            raise DatasetError(f"{self.name}: {describe(stale)} depends on the rewards; change them before")
        rows = self._room(len(self), in_place)
        map_rewards(self.name, self.layout, self.rows, rows, scale, shift, _CHUNK_ROWS)
        before = self.reward_map
        return self._changed(rows, reward_map=(scale * before[0], scale * before[1] + shift))

    def with_return_range(self, span: float = RETURN_RANGE, *, in_place: bool = False) -> Self:
        """Scale rewards so that the range of the returns is `span` (IQL on locomotion)."""
        returns = self.episode_returns()
        width = float(returns.max() - returns.min())
        if width <= 0:
            raise DatasetError(
                f"{self.name}: reward_range_scaling needs episodes with different returns, all "
                f"{len(returns)} have {returns.max():g}; use reward_scale"
            )
        return self.with_rewards(scale=span / width, in_place=in_place)

    def top_fraction(self, fraction: float, *, in_place: bool = False) -> Self:
        """The best `fraction` of the episodes (at least one) by return, discounted with 0.99."""
        if not 0 < fraction <= 1:
            raise ConfigError(f"top_fraction must be in (0, 1], got {fraction}", key="top_fraction")
        if fraction == 1:
            return self
        returns = self.episode_returns(RANKING_DISCOUNT)
        keep = max(1, int(fraction * len(returns) + 1e-9))  # 0.7 · 90 is 62.99…
        best = np.sort(np.argsort(-returns, kind="stable")[:keep])
        return self.of_episodes(best, f"best {keep} of {len(returns)} episodes", in_place=in_place)

    def of_episodes(self, chosen: NDArray[np.int64], remark: str, *, in_place: bool = False) -> Self:
        """The `chosen` episodes, in ascending order."""
        starts, lengths = (column[chosen] for column in self.episodes("a choice of episodes"))
        ends = np.cumsum(lengths)
        rows = self._room(int(ends[-1]), in_place)
        keep_spans(self.rows, rows, starts, lengths, _CHUNK_ROWS)
        return self._changed(
            rows[: ends[-1]],
            np.arange(ends[-1]) + np.repeat(starts + lengths - ends, lengths),
            episode_ends=ends - 1,
            notes=(*self.notes, remark),
            parts=remaining_parts(self.parts, starts, lengths),
            lost=(),
        )

    def with_next_actions(self) -> Self:
        """Add the data's action in the next observation; the last row of a cut episode is left out."""
        return self.with_extras((NEXT_ACTIONS,))

    def with_extras(self, extras: tuple[Column, ...]) -> Self:
        """Add the columns `extras`, computed from the present rewards; rows that lack one of them are left out."""
        if set(extras) <= set(self.extras):
            return self
        if self.extras:
            raise DatasetError(
                f"{self.name}: the rows have {describe(self.extras)} and need {describe(extras)}; use data without "
                "extra columns"
            )
        return self._with_values(extras, reserved=False)

    def fill_reserved(self) -> Self:
        """`with_extras`, in place, for the columns that `from_columns` has reserved."""
        return self._with_values(self.extras, reserved=True) if self.extras else self

    def _with_values(self, extras: tuple[Column, ...], *, reserved: bool) -> Self:
        self._require_single_steps(f"{describe(extras)} needs")
        values = {column.name: column.values(self) for column in extras}
        kept = np.ones(len(self), np.bool_)
        for column in values.values():
            kept[column.lacking] = False
        starts = self.episodes("extra columns")[0]
        remaining = np.add.reduceat(kept, starts, dtype=np.int64)
        wide, rows = RowLayout.of(self.spaces, extras), self.rows
        if not reserved:
            rows = allocate_rows(self.name, int(remaining.sum()), wide.width, self.memory_limit)
        write_columns(self.rows, self.layout, rows, wide, kept, values, _CHUNK_ROWS)
        notes = [left_out(len(one.lacking), one.reason) for one in values.values() if len(one.lacking)]
        return self._changed(
            rows[: remaining.sum()],
            kept,
            episode_ends=np.cumsum(remaining[remaining > 0]) - 1,
            notes=(*self.notes, *notes),
            parts=remaining_parts(self.parts, starts, remaining),
            extras=extras,
            lost=tuple(np.flatnonzero(remaining == 0).tolist()),
        )

    def with_n_step(self, n: int, gamma: float, *, in_place: bool = False) -> Self:
        """Each row becomes the transition over the next `n` rows of its episode, for training (see `n_step`).

        The fingerprint stays that of the single steps.
        """
        if self.n_step_gamma not in (None, gamma):
            raise DatasetError(
                f"{self.name}: its rows are {self.n_step}-step returns with gamma {self.n_step_gamma}, got gamma "
                f"{gamma}; use the same, or single steps"
            )
        if n == 1:
            return self
        if self.n_step > 1:
            raise DatasetError(f"{self.name}: its rows are {self.n_step}-step returns already; use single steps")
        self.episodes("n_step")
        rows, known = self._room(len(self), in_place), self.fingerprint()
        if not in_place:
            np.copyto(rows, self.rows)
        sum_n_steps(rows, self.layout, self.episode_ends, n, gamma, _CHUNK_ROWS)
        return replace(self, rows=rows, checksum=known, n_step=n, n_step_gamma=gamma)

    def _require_single_steps(self, needs: str) -> None:
        if self.n_step > 1:
            steps = f"single steps, its rows have {self.n_step}"
            raise DatasetError(f"{self.name}: {needs} {steps}; use with_n_step last")

    def _room(self, count: int, in_place: bool) -> NDArray[np.float32]:
        """Memory for `count` transformed rows; `in_place` invalidates this data set."""
        return self.rows if in_place else allocate_rows(self.name, count, self.layout.width, self.memory_limit)

    def _changed(self, rows: NDArray[np.float32], kept: Any = slice(None), **changes: Any) -> Self:
        """This data set with other rows, made from those at the index `kept`."""
        probs = None if self.action_probs is None else self.action_probs[kept]
        return replace(self, rows=rows, checksum=None, action_probs=probs, **changes)

    def episodes(self, purpose: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First row and length of each episode."""
        if len(self.episode_ends) == 0:
            raise DatasetError(
                f"{self.name}: {purpose} needs episodes, but the rows are unordered; use data "
                "whose rows follow each other"
            )
        starts = np.concatenate([[0], self.episode_ends[:-1] + 1])
        return starts, self.episode_ends - starts + 1

    def viewed_chunks(self, start: int = 0, stop: int | None = None) -> Iterator[TransitionBatch]:
        """The columns in chunks of consecutive rows."""
        for chunk in chunks(start, len(self) if stop is None else stop, _CHUNK_ROWS):
            yield self._view(self.rows[chunk])


def _checksum(parts: Iterable[NDArray[np.float32]]) -> str:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(np.ascontiguousarray(part).data, checksum)
    return f"{checksum:08x}"
