"""Sweeps: results against each setting that was varied."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.report.grouping import Groups
from rl_training.report.statistics import Estimate, Floats, estimate
from rl_training.report.tasks import text_of
from rl_training.study.plan import short


@dataclass(frozen=True)
class Effect:
    """Results of an algorithm on a task by the value of one setting, over all values of the other settings."""

    algo: str
    task: str
    setting: str
    values: tuple[Any, ...]  # in order
    results: tuple[Floats, ...]
    iqm: tuple[Estimate, ...]

    @property
    def is_numeric(self) -> bool:
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)


def effects(groups: Groups, results: Mapping[tuple[str, str], Floats]) -> Iterator[Effect]:
    """The effect of every setting in which methods differ, by algorithm and task."""
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
