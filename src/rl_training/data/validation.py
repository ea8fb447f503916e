"""Checks of raw columns; every error names file, column and row.

`Checker` checks numbers chunk by chunk. Whether `next_observations` belong to their rows can only be decided for
the whole data set, so `Chaining` collects evidence and decides at the end:

- inside an episode the next observation is the following row's observation: *ordered*;
- most rows do not continue, and the column is not shifted: *unordered*, transitions without episodes;
- anything else, such as a shifted column or one that continues across time limits: an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.data.columns import Columns
from rl_training.errors import ConfigError, DatasetError
from rl_training.spaces import SpaceSpec

_log = logging.getLogger(__name__)
ACTION_TOLERANCE = 1e-5  # tolerance relative to the range of each action component; actions inside it are clipped
CHAIN_TOLERANCE = 1e-5  # absolute and relative tolerance; files round observations
MOST_COUNTED = 100_000  # discrete actions; a larger number is probably an identifier
MOST_FAULTS = 10  # errors that are listed
# How to declare an action space by an environment, in each interface.
_OR_ENVIRONMENT = ", or the environment: env_id in a configuration, --env on the command line, spaces=… in Python"


class Block(NamedTuple):
    """The checked columns of a chunk, with internal actions."""

    obs: NDArray[np.float32]  # [n, O]
    actions: NDArray[np.float32]  # [n, A], or [n] if discrete
    rewards: NDArray[np.float32]  # [n]
    terminals: NDArray[np.bool_]  # [n]
    timeouts: NDArray[np.bool_] | None  # [n]
    next_obs: NDArray[np.float32] | None  # [n, O]

    def join(self, later: Block) -> Block:
        """This block followed by `later`."""
        columns: list[Any] = [None if a is None else np.concatenate([a, b]) for a, b in zip(self, later)]
        return Block(*columns)

    def rows(self, wanted: slice) -> Block:
        """Some of the rows."""
        columns: list[Any] = [None if column is None else column[wanted] for column in self]
        return Block(*columns)


def resolve_spaces(columns: Columns, spaces: SpaceSpec | None) -> SpaceSpec:
    """The spaces of a data set; the environment's `spaces`, if given, must match those of the source."""
    own = declared_spaces(columns)
    if spaces is None:
        if own is None:
            raise _unknown(columns)
        spaces = own
    if columns.obs_dim != spaces.obs_dim:
        raise DatasetError(
            f"{columns.name}: column 'observations' has {columns.obs_dim} components, the environment has "
            f"{spaces.obs_dim}"
        )
    shape = columns.data["actions"].shape
    width = shape[1] if len(shape) == 2 else 1
    if width != spaces.action_dim or (len(shape) == 1 and not spaces.discrete):
        wanted = "[n]" if spaces.discrete else f"[n, {spaces.action_dim}]"
        one_hot = "; give the number of the action, not a column for each" if width == spaces.num_actions else ""
        raise DatasetError(
            f"{columns.name}: column 'actions' must have shape {wanted} for this action space, got "
            f"{list(shape)}{one_hot}"
        )
    if own is not None:
        require_same_actions(columns.name, own, spaces)
    return spaces


def _unknown(columns: Columns) -> DatasetError:
    """The error for data with an unknown action space."""
    actions = columns.data["actions"]
    if len(actions.shape) == 1:
        return DatasetError(
            f"{columns.name}: column 'actions' has shape [n], as discrete actions have, but their "
            f"number is unknown; give num_actions{_OR_ENVIRONMENT} (continuous actions have shape [n, A])"
        )
    whole = "; whole numbers of discrete actions have shape [n]" if actions.dtype.kind in "iub" else ""
    return DatasetError(
        f"{columns.name}: the action bounds are unknown; give action_low and action_high{_OR_ENVIRONMENT} "
        f"(they are never guessed from the data){whole}"
    )


def settled_spaces(columns: Columns, spaces: SpaceSpec | None) -> SpaceSpec:
    """`resolve_spaces`, but an unknown number of discrete actions is inferred from the data and logged."""
    if spaces is None and (spaces := counted_spaces(columns)) is not None:
        _log.warning(
            "%s: %d discrete actions, the largest number in the data plus one, because no number is given; "
            "if there are more, give num_actions%s",
            columns.name,
            spaces.num_actions,
            _OR_ENVIRONMENT,
        )
    return resolve_spaces(columns, spaces)


def counted_spaces(columns: Columns) -> SpaceSpec | None:
    """Discrete spaces inferred from integer actions `[n]`: from 0 to the largest.

    Only actions that the data never contain can be missed, and no learner could learn those. Bounds of continuous
    actions are never inferred.
    """
    actions = columns.data["actions"]
    if declared_spaces(columns) is not None or len(actions.shape) != 1 or actions.dtype.kind not in "iu":
        return None
    first = last = 0
    for start, stop in columns.chunks():
        chunk = actions.read(start, stop)
        first, last = min(first, int(chunk.min())), max(last, int(chunk.max()))
    if first < 0 or last >= MOST_COUNTED:
        raise DatasetError(
            f"{columns.name}: column 'actions' has numbers from {first} to {last}; number the actions from 0, or "
            f"give their number and the first one (num_actions and start){_OR_ENVIRONMENT}"
        )
    return SpaceSpec(columns.obs_dim, num_actions=last + 1, action_dtype="int64")


def declared_spaces(columns: Columns) -> SpaceSpec | None:
    """The spaces that the source declares, or None."""
    try:
        if columns.num_actions:
            return SpaceSpec(
                columns.obs_dim, num_actions=columns.num_actions, start=columns.start, action_dtype="int64"
            )
        if columns.action_low is None or columns.action_high is None:
            if columns.action_low is not None or columns.action_high is not None:
                raise ConfigError("action_low and action_high are only useful together")
            return None
        shape = columns.data["actions"].shape
        width = shape[1] if len(shape) == 2 else 1
        return SpaceSpec(columns.obs_dim, _wide(columns.action_low, width), _wide(columns.action_high, width))
    except ConfigError as error:
        raise DatasetError(f"{columns.name}: {error}") from None


def with_action_space(
    columns: Columns,
    low: tuple[float, ...] | None,
    high: tuple[float, ...] | None,
    num_actions: int = 0,
    start: int = 0,
) -> Columns:
    """`columns` with the user's action space, which must not contradict that of the source."""
    told = replace(columns, action_low=low, action_high=high, num_actions=num_actions, start=start)
    own, wanted = declared_spaces(columns), declared_spaces(told)
    if own is not None and wanted is not None:
        require_same_actions(columns.name, own, wanted)
    return told


def _wide(bound: tuple[float, ...], width: int) -> tuple[float, ...]:
    return bound * width if len(bound) == 1 else bound


def require_same_actions(name: str, own: SpaceSpec, wanted: SpaceSpec) -> None:
    """Raise if the action space of the data differs from that of the environment or configuration."""
    same = (own.num_actions, own.start, len(own.low)) == (wanted.num_actions, wanted.start, len(wanted.low))
    if not same or not np.allclose([own.low, own.high], [wanted.low, wanted.high], rtol=1e-5, atol=1e-8):
        raise DatasetError(
            f"{name}: its actions are {_describe(own)}, but the environment or the configuration has "
            f"{_describe(wanted)}; convert the data or correct "
            f"{'num_actions' if wanted.discrete else 'action_low and action_high'}"
        )


def _describe(spaces: SpaceSpec) -> str:
    if spaces.discrete:
        return f"{spaces.num_actions} discrete actions from {spaces.start}"
    return f"[{', '.join(f'{low:g}..{high:g}' for low, high in zip(spaces.low, spaces.high))}]"


class Checker:
    """Converts raw chunks to checked blocks; raises the first error, or collects errors in `faults` if given.

    Blocks with collected errors contain placeholders and must not be used.
    """

    def __init__(self, name: str, spaces: SpaceSpec, faults: list[DatasetError] | None = None) -> None:
        self.name = name
        self.spaces = spaces
        self.faults = faults

    def block(self, first: int, raw: dict[str, NDArray[Any]]) -> Block:
        """Check one chunk, whose first row is row `first` of the data set."""
        timeouts, following = raw.get("timeouts"), raw.get("next_observations")
        return Block(
            obs=self._finite("observations", raw["observations"], first),
            actions=self._actions(raw["actions"], first),
            rewards=self._finite("rewards", raw["rewards"], first),
            terminals=self._flags("terminals", raw["terminals"], first),
            timeouts=None if timeouts is None else self._flags("timeouts", timeouts, first),
            next_obs=None if following is None else self._finite("next_observations", following, first),
        )

    def _refuse(self, column: str, first: int, rows: NDArray[Any], text: Callable[[int], str]) -> None:
        """Report errors in `rows` of a chunk that begins at row `first`; `text` describes the error of a row."""
        for row in rows[: MOST_FAULTS + 1].tolist():
            fault = DatasetError(f"{self.name}: column {column!r}, row {first + row}: {text(row)}")
            if self.faults is None:
                raise fault
            self.faults.append(fault)

    def _finite(self, column: str, values: NDArray[Any], first: int) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):
            single = np.asarray(values, dtype=np.float32)
        finite = np.isfinite(single)
        if not finite.all():
            wide, good = values.reshape(len(values), -1), finite.reshape(len(values), -1)
            self._refuse(
                column,
                first,
                np.flatnonzero(~good.all(1)),
                lambda row: f"{wide[row, int(np.argmin(good[row]))]} is not a finite float32 number",
            )
            single = np.where(finite, single, np.float32(0))
        return single

    def _flags(self, column: str, values: NDArray[Any], first: int) -> NDArray[np.bool_]:
        if values.dtype != np.bool_ and len(bad := np.flatnonzero((values != 0) & (values != 1))):
            self._refuse(column, first, bad, lambda row: f"{values[row]} is not 0 or 1")
        return values.astype(np.bool_)

    def _actions(self, values: NDArray[Any], first: int) -> NDArray[np.float32]:
        spaces = self.spaces
        self._finite("actions", values, first)
        if self.faults:
            legal = spaces.start if spaces.discrete else np.asarray(spaces.low)
            values = np.where(np.isfinite(values), values, legal)
        if spaces.discrete:
            return self._choices(values.reshape(-1), first)
        low, high = np.asarray(spaces.low), np.asarray(spaces.high)
        slack = ACTION_TOLERANCE * (high - low)
        if np.any(values.min(0) < low - slack) or np.any(values.max(0) > high + slack):
            outside = (values < low - slack) | (values > high + slack)
            rows = np.flatnonzero(outside.any(1))
            self._refuse("actions", first, rows, lambda row: self._range(values, outside, row))
        return spaces.from_env(values)

    def _range(self, values: NDArray[Any], outside: NDArray[np.bool_], row: int) -> str:
        component = int(np.argmax(outside[row]))
        return (
            f"{values[row, component]:g} (component {component}) is outside "
            f"[{self.spaces.low[component]:g}, {self.spaces.high[component]:g}]; "
            "actions are expected in the environment's units"
        )

    def _choices(self, values: NDArray[Any], first: int) -> NDArray[np.float32]:
        start, last = self.spaces.start, self.spaces.start + self.spaces.num_actions - 1
        broken = values != np.floor(values)
        rows = np.flatnonzero(broken)
        self._refuse("actions", first, rows, lambda row: f"{values[row]} is not an integer action index")
        rows = np.flatnonzero(~broken & ((values < start) | (values > last)))
        self._refuse("actions", first, rows, lambda row: f"{values[row]} is outside {start}..{last}")
        return np.zeros(len(values), np.float32) if self.faults else self.spaces.from_env(values)


class Chaining:
    """Evidence on whether next observations continue their episodes, collected block by block."""

    def __init__(self, columns: Columns) -> None:
        self.name = columns.name
        self.has_timeouts = "timeouts" in columns.data
        self.ends_at_timeouts = columns.ends_at_timeouts
        self.separated = columns.separated
        self.pairs = self.breaks = self.shifted = self.limits = self.crossings = 0
        self.first_break = self.first_crossing = -1

    def observe(self, block: Block, first: int) -> NDArray[np.bool_]:
        """Which rows of `block`, except its last, are not continued by the next row although no flag ends them."""
        assert block.next_obs is not None
        following, here, after = block.next_obs[:-1], block.obs[:-1], block.obs[1:]
        chained = _close(following, after)
        limit = np.zeros(len(here), np.bool_) if block.timeouts is None else block.timeouts[:-1]
        terminal = block.terminals[:-1] & (not self.ends_at_timeouts)
        limit = limit & ~terminal
        inside = ~(limit | terminal)
        broken = inside & ~chained
        crossing = limit & chained
        crossing[crossing] = ~_close(here[crossing], after[crossing])
        self.pairs += int(inside.sum())
        self.breaks += int(broken.sum())
        self.limits += int(limit.sum())
        self.crossings += int(crossing.sum())
        stale = _close(following, here)
        stale[1:] |= _close(following[1:], here[:-1])
        self.shifted += int((stale & inside).sum())
        if self.first_break < 0 and broken.any():
            self.first_break = first + int(np.argmax(broken))
        if self.first_crossing < 0 and crossing.any():
            self.first_crossing = first + int(np.argmax(crossing))
        return broken

    def ordered(self) -> bool:
        """Whether rows follow each other in episodes; raises if they are neither ordered nor shuffled."""
        if 2 * self.breaks > self.pairs:
            if 2 * self.shifted > self.pairs:
                raise self._fail(
                    self.first_break,
                    "is the observation of this row or of an earlier one; the column is shifted, leave it "
                    "out to have it rebuilt from 'observations'",
                )
            return False
        if self.breaks and self.has_timeouts:
            raise self._fail(
                self.first_break,
                f"differs from 'observations' of row {self.first_break + 1} inside an episode; mark the end "
                "of the episode in 'timeouts' or correct the row",
            )
        if not self.separated and 2 * self.crossings > self.limits:
            raise self._fail(
                self.first_crossing,
                "is the first observation of the next episode although 'timeouts' ends the episode here; "
                "leave the column out to have it rebuilt, or clear the flag if the episode continues",
            )
        return True

    def _fail(self, row: int, text: str) -> DatasetError:
        return DatasetError(f"{self.name}: column 'next_observations', row {row}: {text}")


def _close(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which rows of `a` and `b` are equal up to rounding.

    Rows that are equal, or differ in their first number, are found first; only the others are compared in full.
    """
    result: NDArray[np.bool_] = np.all(a == b, axis=1)
    first, other = a[:, 0], b[:, 0]
    open_rows = np.flatnonzero(~result & (np.abs(first - other) <= CHAIN_TOLERANCE * (1 + np.abs(other))))
    a, b = a[open_rows], b[open_rows]
    result[open_rows] = np.all(np.abs(a - b) <= CHAIN_TOLERANCE * (1 + np.abs(b)), axis=1)
    return result
