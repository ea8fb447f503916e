"""Learning curves of a method on a task: the interquartile mean of its runs, with confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rl_training.report.logs import Curve
from rl_training.report.statistics import Floats, estimate

Axis = Literal["steps", "updates", "seconds"]
AXES: tuple[Axis, ...] = ("steps", "updates", "seconds")
_POINTS = 160
_RESAMPLES = 1_999


@dataclass(frozen=True)
class Band:
    """A curve over several runs; `low` and `high` are NaN at points with a single run."""

    x: Floats
    middle: Floats
    low: Floats
    high: Floats
    runs: NDArray[np.int64]  # number of runs that reached each point
    of: int  # number of all runs


def band(curves: Sequence[Curve], axis: Axis) -> Band | None:
    """IQM of the runs at each point that at least half of them reached; None if no log has `axis`."""
    lines = [(getattr(curve, axis), curve.values) for curve in curves if len(curve)]
    lines = [(x, y) for x, y in lines if np.isfinite(x).all()]
    if not lines:
        return None
    x = _grid([x for x, _ in lines])
    table = np.stack([np.interp(x, *line, left=np.nan, right=np.nan) for line in lines])  # [runs, points]
    reached = np.isfinite(table)
    kept = reached.sum(0) * 2 >= len(lines)
    x, table, reached = x[kept], table[:, kept], reached[:, kept]
    middle, low, high = (np.full(len(x), np.nan) for _ in range(3))
    # Points reached by the same runs are computed at once.
    for mask in np.unique(reached, axis=1).T:
        at = (reached == mask[:, None]).all(0)
        found = estimate([table[mask][:, at].T], resamples=_RESAMPLES)
        middle[at] = found.value
        if found.low is not None:
            low[at], high[at] = found.low, found.high
    return Band(x, middle, low, high, reached.sum(0), len(lines))


def _grid(lines: Sequence[Floats]) -> Floats:
    """The points at which runs were evaluated, or evenly spaced points if these are too many."""
    x: Floats = np.unique(np.concatenate(lines))
    return x if len(x) <= _POINTS else np.linspace(x[0], x[-1], _POINTS)


def first_above(curve: Curve, threshold: float) -> float | None:
    """Step of the first evaluation at or above a threshold, 0 if that is before the first one, or None."""
    above = np.flatnonzero(curve.values >= threshold)
    return max(0.0, float(curve.steps[above[0]])) if len(above) else None
