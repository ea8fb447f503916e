"""Statistics for few runs: robust means, intervals, comparisons.

Scores are one array per task, with one number per seed. The stratified bootstrap resamples within each task. The
interquartile mean (IQM) is the mean of the middle half of all scores. Definitions follow Agarwal et al., "Deep
reinforcement learning at the edge of the statistical precipice" (2021).
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
Samples = Sequence[Floats]
"""scores, one array per task"""
Statistic = Callable[..., Any]
"""function of samples along `axis`, vectorised so that scipy computes all resamples at once"""

CONFIDENCE = 0.95
POWER = 0.8
RESAMPLES = 4_999
EXPANDED = "expanded percentile"
METHODS = ("percentile", "basic", "BCa", EXPANDED)
METHOD = EXPANDED
"""the method whose coverage is closest to `CONFIDENCE`, as measured by benchmarks/evidence/coverage.py"""
_SEED = 0


def iqm(*samples: Floats, axis: int = -1) -> Any:
    """The interquartile mean of all scores, in which tasks with different numbers of seeds have the same weight."""
    sizes, scores = [sample.shape[-1] for sample in samples], np.concatenate(samples, axis=-1)
    if len(set(sizes)) == 1:
        return stats.trim_mean(scores, 0.25, axis=-1)
    order = np.argsort(scores, axis=-1)
    weights = np.repeat([1.0 / (size * len(sizes)) for size in sizes], sizes)[order]
    upper = weights.cumsum(-1)
    middle = np.clip(np.minimum(upper, 0.75) - np.maximum(upper - weights, 0.25), 0.0, None)
    return (np.take_along_axis(scores, order, -1) * middle).sum(-1) / middle.sum(-1)


def mean(*samples: Floats, axis: int = -1) -> Any:
    """The mean over tasks of their means."""
    return np.mean([np.mean(sample, axis=axis) for sample in samples], axis=0)


def median(*samples: Floats, axis: int = -1) -> Any:
    """The median over tasks of their means."""
    return np.median([np.mean(sample, axis=axis) for sample in samples], axis=0)


def optimality_gap(*samples: Floats, axis: int = -1) -> Any:
    """Mean amount by which scores fall short of 1; scores above 1 count as 1."""
    return 1.0 - mean(*(np.minimum(sample, 1.0) for sample in samples), axis=axis)


def probability_of_improvement(*samples: Floats, axis: int = -1) -> Any:
    """Probability that a run of the first half of the samples beats one of the second half; a tie counts half."""
    ours, theirs = _halves(samples)
    wins = [
        stats.mannwhitneyu(x, y, axis=axis, method="asymptotic").statistic / (x.shape[axis] * y.shape[axis])
        for x, y in zip(ours, theirs)
    ]
    return np.mean(wins, axis=0)


def difference_of_iqm(*samples: Floats, axis: int = -1) -> Any:
    """IQM of the first half of the samples minus the IQM of the second half."""
    ours, theirs = _halves(samples)
    return iqm(*ours, axis=axis) - iqm(*theirs, axis=axis)


def profile(thresholds: Floats) -> Statistic:
    """The share of runs whose score exceeds each threshold; all tasks have the same weight."""

    def shares(*samples: Floats, axis: int = -1) -> Any:
        return np.stack([mean(*(np.asarray(x > t, float) for x in samples), axis=axis) for t in thresholds])

    return shares


def _halves(samples: Samples) -> tuple[Samples, Samples]:
    middle = len(samples) // 2
    return samples[:middle], samples[middle:]


@dataclass(frozen=True)
class Estimate:
    """A statistic with its confidence interval and standard error; both are None for a single seed."""

    value: Any
    low: Any = None
    high: Any = None
    error: Any = None

    @property
    def excludes_zero(self) -> bool:
        return self.low is not None and bool(self.low > 0 or self.high < 0)


def estimate(
    samples: Samples, statistic: Statistic = iqm, *, method: str = METHOD, resamples: int = RESAMPLES
) -> Estimate:
    """Compute `statistic` with its interval, over the last axis of the samples."""
    samples = [np.asarray(sample, dtype=np.float64) for sample in samples]
    value = statistic(*samples, axis=-1)
    if any(sample.shape[-1] < 2 for sample in samples):
        return Estimate(value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # BCa gives no interval if all scores are equal
        found = stats.bootstrap(
            tuple(samples),
            statistic,
            n_resamples=resamples,
            vectorized=True,
            axis=-1,
            confidence_level=_level(samples) if method == EXPANDED else CONFIDENCE,
            method="percentile" if method == EXPANDED else method,
            rng=np.random.default_rng(_SEED),
        )
    low, high = (np.where(np.isnan(end), value, end) for end in found.confidence_interval)
    return Estimate(value, low[()], high[()], found.standard_error)


def _level(samples: Samples) -> float:
    """The level at which percentiles of few scores have the width of Student's t interval.

    The variance of resamples of n scores is too small by a factor of (n - 1) / n, and the normal distribution has
    thinner tails than Student's t. Hesterberg, "What teachers should know about the bootstrap" (2015), corrects
    both.
    """
    scores = sum(sample.shape[-1] for sample in samples)
    freedom = scores - len(samples)
    tail = stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * math.sqrt(scores / freedom)
    return float(1 - 2 * stats.norm.sf(tail))


def compare(ours: Samples, theirs: Samples, statistic: Statistic = difference_of_iqm) -> Estimate:
    """Compare two methods on the same tasks."""
    return estimate([*ours, *theirs], statistic)


def enough(ours: Samples, theirs: Samples) -> bool:
    """Whether the number of seeds can show a difference at all.

    Even if every run of one method beats every run of the other, two equal methods may be separated completely by
    chance: with three seeds each on one task, in one case of ten.
    """
    arrangements = math.prod(math.comb(len(x) + len(y), len(x)) for x, y in zip(ours, theirs))
    return 2 / arrangements <= 1 - CONFIDENCE


def seeds_needed() -> int:
    """The smallest number of seeds per method that is `enough` on one task."""
    return next(count for count in itertools.count(2) if enough([np.zeros(count)], [np.zeros(count)]))


def detectable(difference: Estimate) -> float | None:
    """The smallest true difference that these seeds would show with probability `POWER`."""
    if difference.error is None:
        return None
    return float((stats.norm.ppf((1 + CONFIDENCE) / 2) + stats.norm.ppf(POWER)) * difference.error)
