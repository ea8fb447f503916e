"""The contents of a report as data; tables, figures, the page and report.json are made from it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from rl_training.experiment.metric_names import less_is_better
from rl_training.report import statistics
from rl_training.report.curves import AXES, Axis, Band, band, first_above
from rl_training.report.grouping import Cell, Groups, Selection, Trouble, check_known, group
from rl_training.report.normalising import Scale, scale_of
from rl_training.report.reading import Reading
from rl_training.report.statistics import Estimate, Floats, Samples, estimate
from rl_training.report.sweeps import Effect, effects

MOST_SHOWN = 8
"""most methods that are drawn and compared in pairs on a task; tables show all methods"""
_THRESHOLD = 0.9
_EVEN = 0.05


@dataclass(frozen=True)
class Options:
    """Options of a report."""

    selection: Selection = field(default_factory=Selection)
    normalize: str = "auto"
    references: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    threshold: Mapping[str, float] | float | None = None
    """a result, for all tasks or by task; None: first evaluations + 90 % of the difference to the best IQM"""


@dataclass(frozen=True)
class Result:
    """Result of a method on a task."""

    method: str
    task: str
    values: Floats  # one per seed
    last: Estimate  # IQM of last evaluations
    best: Estimate  # IQM of best evaluations
    chosen: Estimate  # `last` or `best`, as selected by the options
    threshold: float | None
    reached: int  # number of runs that reached the threshold
    steps_to: float | None  # median steps until the threshold, if more than half of the runs reached it
    step: float  # median step of the last evaluation

    @property
    def seeds(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def std(self) -> float | None:
        return float(np.std(self.values, ddof=1)) if self.seeds > 1 else None


@dataclass(frozen=True)
class Overall:
    """Normalised scores of a method over all tasks."""

    method: str
    iqm: Estimate
    median: Estimate
    mean: Estimate
    gap: Estimate
    profile: Estimate | None  # only of methods shown


@dataclass(frozen=True)
class Pair:
    """Comparison of two methods, in results on a task or (`task` None) in scores over all tasks."""

    first: str
    second: str
    task: str | None
    difference: Estimate
    probability: Estimate
    detectable: float | None
    enough: bool  # whether the seeds can show a difference

    @property
    def better(self) -> str | None:
        """The better method, if the interval of the difference excludes 0 and there are enough seeds."""
        if not self.enough or not self.difference.excludes_zero:
            return None
        return self.first if self.difference.value > 0 else self.second

    @property
    def reservation(self) -> str:
        """A remark if the interval of the probability contains 0.5, else an empty string."""
        low, high = self.probability.low, self.probability.high
        return "" if low is None or not low <= 0.5 <= high else ", but the interval of P contains 0.5"


@dataclass(frozen=True)
class Summary:
    """The contents of a report; expensive parts are computed on first access."""

    reading: Reading
    options: Options
    groups: Groups
    results: Mapping[tuple[str, str], Result]
    scales: Mapping[str, Scale | None]

    @property
    def troubles(self) -> tuple[Trouble, ...]:
        return self.groups.troubles

    @property
    def methods(self) -> tuple[str, ...]:
        return self.groups.methods

    @property
    def size(self) -> str:
        """`12 runs, 2 methods, 1 task`."""
        counts = {"run": self.reading.runs, "method": self.methods, "task": self.groups.tasks}
        return ", ".join(f"{len(of)} {name}{'s' * (len(of) != 1)}" for name, of in counts.items())

    @property
    def runs(self) -> list[dict[str, Any]]:
        """Every run with its method and task, as a record."""
        return [
            {
                "place": run.place,
                "method": cell.method,
                "task": cell.task,
                "seed": run.seed,
                "status": run.status,
                "counted": run in cell.runs,
                "last": run.last,
                "best": run.best,
                "step": run.step,
                "seconds": run.seconds,
            }
            for cell in self.groups.cells.values()
            for run in cell.seen
        ]

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """The tasks with a result."""
        known = {task for _, task in self.results}
        return tuple(task for task in self.groups.tasks if task in known)

    @cached_property
    def shown(self) -> dict[str | None, tuple[str, ...]]:
        """The methods drawn and compared, by task and (None) over all tasks; at most the best `MOST_SHOWN`."""
        means = {m: float(np.mean([np.mean(x) for x in found.values()])) for m, found in self.scores.items()}
        found: dict[str | None, tuple[str, ...]] = {None: _best(self.methods, means)}
        sign = -1.0 if less_is_better(self.reading.metric) else 1.0
        for task in self.groups.tasks:
            known = {method: -np.inf for method in self.methods if self.groups.cell(method, task).seen}
            known |= {m: sign * float(one.chosen.value) for (m, of), one in self.results.items() if of == task}
            found[task] = _best(self.methods, known)
        return found

    @cached_property
    def drawn(self) -> tuple[str, ...]:
        """The methods that appear in a figure."""
        known = {method for methods in self.shown.values() for method in methods}
        return tuple(method for method in self.methods if method in known)

    @cached_property
    def scores(self) -> dict[str, dict[str, Floats]]:
        """Scores by method and task, of methods with results on every task; empty for a single task."""
        scales = {task: scale for task in self.groups.tasks if (scale := self.scales[task]) is not None}
        return {
            method: {task: scale.score(self.results[method, task].values) for task, scale in scales.items()}
            for method in self.methods
            if len(scales) > 1 and all((method, task) in self.results for task in scales)
        }

    @cached_property
    def taus(self) -> Floats:
        """Scores at which the profiles are computed."""
        values = [value for found in self.scores.values() for sample in found.values() for value in sample]
        return np.linspace(min(0.0, *values), max(1.0, *values), 101) if values else np.linspace(0.0, 1.0, 101)

    @cached_property
    def overall(self) -> dict[str, Overall]:
        """Statistics over all tasks, of methods with scores."""
        return {
            method: _overall(method, list(found.values()), self.taus if method in self.shown[None] else None)
            for method, found in self.scores.items()
        }

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """All pairs of methods shown, over all tasks and on each task."""
        found = []
        for task, methods in self.shown.items():
            for first, second in itertools.combinations(methods, 2):
                if task is None:
                    ours, theirs = (list(self.scores[method].values()) for method in (first, second))
                    found.append(_pair(first, second, None, ours, theirs))
                elif (first, task) in self.results and (second, task) in self.results:
                    one, other = (self.results[method, task].values for method in (first, second))
                    found.append(_pair(first, second, task, [one], [other]))
        return tuple(found)

    @cached_property
    def effects(self) -> tuple[Effect, ...]:
        return tuple(effects(self.groups, {key: result.values for key, result in self.results.items()}))

    @cached_property
    def bands(self) -> dict[tuple[Axis, str, str], Band]:
        """Learning curves of the methods shown, by axis, task and method."""
        found = {}
        for axis, task in itertools.product(AXES, self.groups.tasks):
            for method in self.shown[task]:
                curve = band([run.curve for run in self.groups.cell(method, task).seen], axis)
                if curve is not None:
                    found[axis, task, method] = curve
        return found

    @cached_property
    def uneven(self) -> dict[str, dict[str, float]]:
        """The median last step of each method, for tasks on which these steps differ."""
        found: dict[str, dict[str, float]] = {}
        for (method, task), result in self.results.items():
            found.setdefault(task, {})[method] = result.step
        ends = {task: (min(steps.values()), max(steps.values())) for task, steps in found.items()}
        return {task: found[task] for task, (low, high) in ends.items() if high - low > _EVEN * abs(low)}


def summarise(reading: Reading, options: Options | None = None) -> Summary:
    """Summarise runs."""
    options = options or Options()
    groups = group(reading, options.selection)
    tasks = [*groups.tasks, *(name for name in groups.env_ids.values() if name)]
    check_known("references", options.references, tasks)
    check_known("threshold", options.threshold if isinstance(options.threshold, Mapping) else (), tasks)
    cells = [cell for cell in groups.cells.values() if cell.runs]
    thresholds = {task: _threshold(task, groups, options) for task in groups.tasks}
    results = {(cell.method, cell.task): _result(cell, thresholds[cell.task], options) for cell in cells}
    scales = {}
    for task in groups.tasks:
        found = [result.values for (_, of), result in results.items() if of == task]
        scales[task] = scale_of(
            task, groups.env_ids[task], found, reading.metric, options.normalize, options.references
        )
    return Summary(reading, options, groups, results, scales)


def _threshold(task: str, groups: Groups, options: Options) -> float | None:
    given = options.threshold
    if isinstance(given, Mapping):
        given = given.get(task, given.get(groups.env_ids[task] or ""))
    if given is not None:
        return float(given)
    cells = [groups.cell(method, task) for method in groups.methods]
    finals = [_values(cell, options.selection) for cell in cells if cell.runs]
    if not finals:
        return None
    first = float(np.mean([run.curve.values[0] for cell in cells for run in cell.runs]))
    best = max(float(statistics.iqm(values)) for values in finals)
    return first + _THRESHOLD * (best - first) if best > first else None


def _values(cell: Cell, selection: Selection) -> Floats:
    return np.array([selection.value_of(run) for run in cell.runs], dtype=np.float64)


def _result(cell: Cell, threshold: float | None, options: Options) -> Result:
    selection = options.selection
    curves = [run.curve if selection.at is None else run.curve.until(selection.at) for run in cell.runs]
    last = np.array([curve.values[-1] for curve in curves])
    best = np.array([curve.values.max() for curve in curves])
    steps = [] if threshold is None else [first_above(curve, threshold) for curve in curves]
    reached = [step for step in steps if step is not None]
    late = sorted(reached) + [np.inf] * (len(curves) - len(reached))
    middle = float(np.median(late)) if late else np.inf
    found = {"last": estimate([last]), "best": estimate([best])}
    return Result(
        cell.method,
        cell.task,
        last if selection.score == "last" else best,
        found["last"],
        found["best"],
        found[selection.score],
        threshold,
        len(reached),
        middle if np.isfinite(middle) else None,
        float(np.median([curve.steps[-1] for curve in curves])),
    )


def _overall(method: str, samples: Samples, taus: Floats | None) -> Overall:
    return Overall(
        method,
        iqm=estimate(samples),
        median=estimate(samples, statistics.median),
        mean=estimate(samples, statistics.mean),
        gap=estimate(samples, statistics.optimality_gap),
        profile=None if taus is None else estimate(samples, statistics.profile(taus), resamples=1_999),
    )


def _best(methods: Sequence[str], values: Mapping[str, float]) -> tuple[str, ...]:
    """The methods with a value, at most the best `MOST_SHOWN`, in the order of `methods`."""
    best = sorted(values, key=lambda method: -values[method])[:MOST_SHOWN]
    return tuple(method for method in methods if method in best)


def _pair(first: str, second: str, task: str | None, ours: list[Floats], theirs: list[Floats]) -> Pair:
    difference = statistics.compare(ours, theirs)
    probability = statistics.compare(ours, theirs, statistics.probability_of_improvement)
    enough = statistics.enough(ours, theirs)
    return Pair(first, second, task, difference, probability, statistics.detectable(difference), enough)
