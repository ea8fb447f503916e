"""Read the evaluations of a run from metrics.csv."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.experiment.metric_names import tag_of

Floats = NDArray[np.float64]

_MOST_DIGITS = 15
_UPDATES = tag_of("update_count")


def _none() -> Floats:
    return np.empty(0)


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The evaluations of a run, in order of their steps."""

    steps: Floats = field(default_factory=_none)
    """environment steps online, updates offline, the sum of both for offline-to-online runs"""
    updates: Floats = field(default_factory=_none)
    """NaN if the log does not have them"""
    seconds: Floats = field(default_factory=_none)
    """time of training, without the time between an interruption and its resumption"""
    values: Floats = field(default_factory=_none)

    def __len__(self) -> int:
        return len(self.values)

    def until(self, step: float) -> Curve:
        """The evaluations up to `step`."""
        return self._kept(self.steps <= step)

    def since(self, step: float) -> Curve:
        """The evaluations from `step` on."""
        return self._kept(self.steps >= step)

    def _kept(self, kept: NDArray[np.bool_]) -> Curve:
        columns = (self.steps, self.updates, self.seconds, self.values)
        return Curve(*(column[kept[: len(column)]] for column in columns))


@dataclass(frozen=True, slots=True)
class Log:
    """The contents of metrics.csv that a report uses."""

    curve: Curve
    step: int = 0
    """step of the last row"""
    time: float | None = None
    """Unix seconds of the last row"""
    bad: int = 0
    """number of evaluations that are not finite"""
    tags: tuple[str, ...] = ()
    """the metrics that it has a column for"""


@dataclass
class _Rows:
    """Columns of a log; the later row of a step that was logged twice (as 0.1 did) completes the earlier one."""

    times: list[float] = field(default_factory=list)
    last: int = 0
    evaluated: dict[int, tuple[float, float]] = field(default_factory=dict)  # step: time, value
    updated: dict[int, float] = field(default_factory=dict)  # step: updates


def read_log(data: bytes, metric: str, created: float | None = None, resumed: Sequence[float] = ()) -> Log:
    """Parse a metrics.csv, which may be incomplete while a run writes it; raise ValueError if it is not a log."""
    text = data[: data.rfind(b"\n") + 1].decode("utf-8", "replace")
    try:
        lines = csv.reader(io.StringIO(text))
        header = next(lines, [])
        if header and header[:2] != ["step", "time"]:
            raise ValueError("not a log of this package")
        rows, bad = _collect(lines, header, tag_of(metric))
        tags = tuple(name for name in header[2:] if name != "schema")
    except csv.Error as error:
        raise ValueError(str(error)) from None
    if not rows.times:
        return Log(Curve(), bad=bad, tags=tags)
    steps = np.array(sorted(rows.evaluated), dtype=np.float64)
    found = np.array([rows.evaluated[int(step)] for step in steps]).reshape(-1, 2)
    seconds = _training_seconds(np.array(rows.times), found[:, 0], created, resumed)
    curve = Curve(steps, _updates_at(steps, rows.updated), seconds, found[:, 1].copy())
    return Log(curve, rows.last, rows.times[-1], bad, tags)


def _collect(lines: Any, header: list[str], tag: str) -> tuple[_Rows, int]:
    """Collect the complete rows; a row without a valid step and time is skipped."""
    rows, bad, width = _Rows(), 0, len(header)
    value_at = header.index(tag) if tag in header else None
    updates_at = header.index(_UPDATES) if _UPDATES in header else None
    for cells in lines:
        if len(cells) != width or not _is_step(cells[0]) or not math.isfinite(time := _number(cells[1])):
            continue
        rows.last = step = int(cells[0])
        rows.times.append(time)
        if updates_at is not None and cells[updates_at]:
            rows.updated[step] = _number(cells[updates_at])
        if value_at is not None and cells[value_at]:
            value = _number(cells[value_at])
            if math.isfinite(value):
                rows.evaluated[step] = time, value
            else:
                bad += 1
    return rows, bad


def _is_step(cell: str) -> bool:
    """Whether a cell is a whole number that a float holds exactly."""
    return cell.isdecimal() and len(cell) <= _MOST_DIGITS


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _updates_at(steps: Floats, known: dict[int, float]) -> Floats:
    """Updates at each evaluation, interpolated linearly between the rows that have them."""
    known = {step: count for step, count in known.items() if math.isfinite(count)}
    if not known:
        return np.full_like(steps, np.nan)
    at = sorted(known)
    found: Floats = np.interp(steps, at, [known[step] for step in at])
    return found


def _training_seconds(rows: Floats, at: Floats, created: float | None, resumed: Sequence[float]) -> Floats:
    """Training time up to the times `at`, without the time from the last row to a resumption."""
    start = rows[0] if created is None else min(created, rows[0])
    idle = np.zeros_like(at)
    since = start
    for moment in sorted(resumed):
        before = rows[rows < moment]
        since = max(since, before.max() if len(before) else start)
        idle[at >= moment] += max(0.0, moment - since)
        since = max(since, moment)
    found: Floats = at - start - idle
    return found
