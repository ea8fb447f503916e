"""Read the evaluations of a run from metrics.csv."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.experiment.metric_names import tag_of

Floats = NDArray[np.float64]

_MOST_DIGITS = 15
_UPDATES, _ENV_STEPS = tag_of("update_count"), tag_of("global_step")


def _none() -> Floats:
    return np.empty(0)


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The evaluations of a run, in order of their steps."""

    steps: Floats = field(default_factory=_none)
    """environment steps, or updates offline; updates before the first environment step count from below 0"""
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

    def after(self, updates: int) -> Curve:
        """The same with steps that count from the end of this many updates before the first environment step."""
        return replace(self, steps=self.steps - updates)

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
    before: int | None = None
    """updates before the first environment step; None if no row has environment steps"""
    tags: tuple[str, ...] = ()
    """the metrics that it has a column for"""


@dataclass
class _Rows:
    """Columns of a log; the later row of a step that was logged twice (as 0.1 did) completes the earlier one."""

    times: list[float] = field(default_factory=list)
    last: int = 0
    evaluated: dict[int, tuple[int, float]] = field(default_factory=dict)  # step: number of the row, value
    updated: dict[int, float] = field(default_factory=dict)  # step: updates
    before: int | None = None


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
    seconds = _training_seconds(np.array(rows.times), created, resumed)[found[:, 0].astype(int)]
    curve = Curve(steps, _updates_at(steps, rows.updated), seconds, found[:, 1].copy())
    return Log(curve, rows.last, rows.times[-1], bad, rows.before, tags)


def _collect(lines: Any, header: list[str], tag: str) -> tuple[_Rows, int]:
    """Collect the complete rows; a row without a valid step and time is skipped."""
    rows, bad, width = _Rows(), 0, len(header)
    value_at = header.index(tag) if tag in header else None
    updates_at, env_steps_at = (header.index(name) if name in header else None for name in (_UPDATES, _ENV_STEPS))
    for cells in lines:
        if len(cells) != width or not _is_step(cells[0]) or not math.isfinite(time := _number(cells[1])):
            continue
        rows.last = step = int(cells[0])
        rows.times.append(time)
        if updates_at is not None and cells[updates_at]:
            rows.updated[step] = _number(cells[updates_at])
        if env_steps_at is not None and (made := _number(cells[env_steps_at] or "nan")) > 0:
            rows.before = step - int(made)
        if value_at is not None and cells[value_at]:
            value = _number(cells[value_at])
            if math.isfinite(value):
                rows.evaluated[step] = len(rows.times) - 1, value
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
    """Updates at each evaluation, interpolated linearly between the start and the rows that have them."""
    known = {step: count for step, count in known.items() if math.isfinite(count)}
    if not known:
        return np.full_like(steps, np.nan)
    known = {0: 0.0, **known}
    at = sorted(known)
    return np.interp(steps, at, [known[step] for step in at])


def _training_seconds(rows: Floats, created: float | None, resumed: Sequence[float]) -> Floats:
    """Training time up to each row, without the time between a resumption and the last row before it.

    If a row has an earlier time than the row before, the clock has changed; the row adds no time.
    """
    start = rows[0] if created is None else min(created, rows[0])
    moments = np.array([-np.inf, *sorted(resumed)])
    since = np.maximum([start, *rows[:-1]], moments[np.searchsorted(moments, rows, "right") - 1])
    passed: Floats = np.maximum(rows - since, 0.0).cumsum()
    return passed
