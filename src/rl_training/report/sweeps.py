"""Sweeps: the return against each setting that was varied, and the score of choosing among what was trained."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.report.grouping import Groups, Selection, text_of
from rl_training.report.normalising import Scale
from rl_training.report.reading import Run, finite
from rl_training.report.statistics import Choice, Estimate, Floats, choice, estimate
from rl_training.study.plan import short

_FEWEST_POLICIES = 3


@dataclass(frozen=True)
class Effect:
    """The results of an algorithm on a task by the value of one setting, whatever the others were."""

    algo: str
    task: str
    setting: str
    values: tuple[Any, ...]  # in order
    results: tuple[Floats, ...]
    iqm: tuple[Estimate, ...]

    @property
    def is_numeric(self) -> bool:
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)


@dataclass(frozen=True)
class Selecting:
    """What choosing among the policies of an algorithm on a task yields, by the number of episodes played."""

    algo: str
    task: str
    policies: int
    scores: Choice
    best: float


def effects(groups: Groups, results: Mapping[tuple[str, str], Floats]) -> Iterator[Effect]:
    """Every setting that makes a method, by algorithm and task."""
    keys = dict.fromkeys((groups.algos[m], key) for m in groups.methods for key in groups.changes[m])
    for algo, key in keys:
        for task in groups.tasks:
            by_value: dict[str, list[Floats]] = {}
            for method in groups.methods:
                if groups.algos[method] == algo and key in groups.changes[method] and (method, task) in results:
                    value = text_of(groups.changes[method][key])
                    by_value.setdefault(value, []).append(results[method, task])
            if len(by_value) > 1:
                yield _effect(algo, task, short(key), by_value)


def _effect(algo: str, task: str, setting: str, by_value: Mapping[str, list[Floats]]) -> Effect:
    found = [(json.loads(text), np.concatenate(samples)) for text, samples in by_value.items()]
    if all(isinstance(value, int | float) for value, _ in found):
        found.sort(key=lambda pair: float(pair[0]))
    values = tuple(value for value, _ in found)
    samples = tuple(sample for _, sample in found)
    return Effect(algo, task, setting, values, samples, tuple(estimate([sample]) for sample in samples))


def selecting(groups: Groups, scales: Mapping[str, Scale | None], selection: Selection) -> Iterator[Selecting]:
    """For algorithms of which several settings were trained, where evaluations tell their spread."""
    for algo in dict.fromkeys(groups.algos.values()):
        for task in groups.tasks:
            methods = [method for method in groups.methods if groups.algos[method] == algo]
            runs = [run for method in methods for run in groups.cell(method, task).runs]
            scale = scales[task]
            if sum(bool(groups.cell(method, task).runs) for method in methods) < 2 or scale is None:
                continue
            known = [pair for run in runs if (pair := _score_and_spread(run, selection)) is not None]
            if len(known) >= _FEWEST_POLICIES and len(known) == len(runs):
                means, spreads = np.array(known).T
                scores = scale.score(means)
                found = choice(scores, spreads / (scale.high - scale.low))
                yield Selecting(algo, task, len(known), found, float(scores.max()))


def _score_and_spread(run: Run, selection: Selection) -> tuple[float, float] | None:
    """Mean and standard deviation of the episodes of the evaluation that a run counts with.

    A log without the standard deviation leaves that of the last evaluation, which run.json has.
    """
    place = selection.place_of(run)
    if place is None:
        return None
    spread = float(run.curve.spreads[place]) if len(run.curve.spreads) else np.nan
    if np.isnan(spread) and place == len(run.curve) - 1:
        spread = finite(run.metrics.get("eval_return_std"), np.nan)
    return (float(run.curve.values[place]), spread) if np.isfinite(spread) and spread >= 0 else None
