"""The numbers of a report equal their definitions, written out here without scipy."""

from __future__ import annotations

import json
import math
from importlib import resources
from itertools import product

import numpy as np
import pytest

from rl_training.report import statistics
from rl_training.report.statistics import Floats, compare, detectable, estimate
from rl_training.study.study import iqm as study_iqm

RNG = np.random.default_rng(3)
CASES = [
    [RNG.normal(size=10) for _ in range(5)],
    [RNG.normal(0.8, 0.4, size=n) for n in (3, 7, 1, 4)],
    [np.round(RNG.normal(size=6), 0), np.round(RNG.normal(size=5), 0)],  # ties
    [np.array([2.0])],
]
OTHERS = [[sample + RNG.choice([-1.0, 0.0, 0.5], size=len(sample)) for sample in case] for case in CASES]


def iqm_of(values: list[float]) -> float:
    """The mean without the lowest and the highest quarter, rounded down."""
    ordered = sorted(values)
    cut = len(ordered) // 4
    middle = ordered[cut : len(ordered) - cut]
    return sum(middle) / len(middle)


def pooled(case: list[Floats]) -> list[float]:
    """All scores; if tasks have different numbers of seeds, each as often as makes the tasks equally large."""
    sizes = [len(sample) for sample in case]
    size = sizes[0] if len(set(sizes)) == 1 else 4 * math.lcm(*sizes)  # a quarter of it is a whole number
    return [value for sample in case for value in sample.tolist() for _ in range(size // len(sample))]


def means(case: list[Floats]) -> list[float]:
    return [sum(sample.tolist()) / len(sample) for sample in case]


@pytest.mark.parametrize("case", CASES)
def test_interquartile_mean(case: list[Floats]) -> None:
    assert statistics.iqm(*case) == pytest.approx(iqm_of(pooled(case)), abs=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_mean_over_tasks(case: list[Floats]) -> None:
    assert statistics.mean(*case) == pytest.approx(sum(means(case)) / len(case), abs=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_median_over_tasks(case: list[Floats]) -> None:
    ordered = sorted(means(case))
    half = len(ordered) // 2
    expected = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    assert statistics.median(*case) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_optimality_gap(case: list[Floats]) -> None:
    missed = [[1 - value if value < 1 else 0.0 for value in sample.tolist()] for sample in case]
    expected = sum(sum(values) / len(values) for values in missed) / len(missed)
    assert statistics.optimality_gap(*case) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("ours", "theirs"), list(zip(CASES, OTHERS)))
def test_probability_of_improvement(ours: list[Floats], theirs: list[Floats]) -> None:
    shares = []
    for xs, ys in zip(ours, theirs):
        won = [1.0 if x > y else 0.5 if x == y else 0.0 for x, y in product(xs.tolist(), ys.tolist())]
        shares.append(sum(won) / len(won))
    found = statistics.probability_of_improvement(*ours, *theirs)
    assert found == pytest.approx(sum(shares) / len(shares), abs=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_performance_profile(case: list[Floats]) -> None:
    taus = np.linspace(-2, 2, 41)
    found = statistics.profile(taus)(*case)
    for tau, share in zip(taus, found):
        expected = [sum(value > tau for value in sample.tolist()) / len(sample) for sample in case]
        assert share == pytest.approx(sum(expected) / len(expected), abs=1e-9)


@pytest.mark.parametrize(("ours", "theirs"), list(zip(CASES, OTHERS)))
def test_difference(ours: list[Floats], theirs: list[Floats]) -> None:
    found = statistics.difference_of_iqm(*ours, *theirs)
    assert found == pytest.approx(iqm_of(pooled(ours)) - iqm_of(pooled(theirs)), abs=1e-9)


@pytest.mark.parametrize("method", statistics.METHODS)
def test_intervals_hold_the_estimate_and_narrow_with_seeds(method: str) -> None:
    wide = estimate([np.linspace(0, 1, 5)], method=method)
    narrow = estimate([np.linspace(0, 1, 50)], method=method)
    for found in (wide, narrow):
        assert found.low < found.value < found.high
    assert narrow.high - narrow.low < wide.high - wide.low


def test_the_interval_is_the_stratified_bootstraps() -> None:
    """Tasks with constant scores have no interval, however far apart they are; pooled they would have one."""
    found = estimate([np.full(5, 0.0), np.full(5, 10.0)])
    assert (found.low, found.value, found.high) == (5.0, 5.0, 5.0)


def test_one_seed_has_no_interval_and_nothing_is_better() -> None:
    found = compare([np.array([3.0])], [np.array([1.0])])
    assert (found.value, found.low, found.high) == (2.0, None, None)
    assert not found.excludes_zero
    assert detectable(found) is None


def test_a_method_is_better_if_the_interval_excludes_zero() -> None:
    low, high = RNG.normal(0, 1, 10), RNG.normal(5, 1, 10)
    assert compare([high], [low]).excludes_zero
    assert compare([low], [high]).excludes_zero
    assert not compare([low], [RNG.normal(0, 1, 10)]).excludes_zero


@pytest.mark.parametrize(
    ("sizes", "can"),
    [([(3, 3)], False), ([(4, 4)], True), ([(2, 9)], True), ([(1, 9)], False), ([(3, 3)] * 2, True)],
)
def test_few_seeds_are_separated_by_chance(sizes: list[tuple[int, int]], can: bool) -> None:
    """Enough seeds: at most one arrangement in forty has all scores of one method above all of the other."""
    ours, theirs = ([np.zeros(pair[i]) for pair in sizes] for i in range(2))
    assert statistics.enough(ours, theirs) == can


@pytest.mark.slow
def test_the_detectable_difference_has_its_nominal_power() -> None:
    """Of two methods that differ by it, about 80 % of the intervals exclude 0."""
    one, other = RNG.normal(0, 1, (2, 300, 20))
    size = np.median([detectable(compare([x], [y])) or 0 for x, y in zip(one[:60], other[:60])])
    shown = [compare([x + size], [y]).excludes_zero for x, y in zip(one, other)]
    assert 0.68 < np.mean(shown) < 0.9


def test_results_repeat() -> None:
    assert estimate(CASES[0]) == estimate(CASES[0])


def test_the_interquartile_mean_of_a_study_is_that_of_a_report() -> None:
    for size in range(1, 30):
        values = RNG.normal(size=size)
        assert study_iqm(values.tolist()) == pytest.approx(float(statistics.iqm(values)), rel=1e-12, abs=1e-12)


def test_the_default_method_is_the_one_with_the_best_coverage() -> None:
    text = resources.files("rl_training").joinpath("assets", "report", "coverage.json").read_text()
    measured = json.loads(text)
    assert measured["default"] == measured["best"] == statistics.METHOD
    assert measured["studies"] >= 1000
    assert {(size["tasks"], size["seeds"]) for size in measured["sizes"]} >= {(5, 10), (5, 5)}
    assert all(size["called_better"] < 0.1 for size in measured["equals"])
    for size in measured["sizes"]:
        errors = {name: abs(found["coverage"] - 0.95) for name, found in size["methods"].items()}
        assert set(errors) == set(statistics.METHODS)
        if size["tasks"] == 5:
            assert min(errors, key=lambda name: errors[name]) == statistics.METHOD


def test_tasks_with_different_numbers_of_seeds_have_the_same_weight() -> None:
    """As if every score had been found as often as makes the tasks equally large."""
    rng = np.random.default_rng(0)
    for few, many in ((2, 3), (3, 4), (1, 6), (5, 10)):
        one, other = rng.normal(size=few), rng.normal(size=many)
        alike = statistics.iqm(np.repeat(one, 4 * many), np.repeat(other, 4 * few))
        assert statistics.iqm(one, other) == pytest.approx(alike)
        several = statistics.iqm(np.stack([one, one + 1]), np.stack([other, other + 1]))
        assert several == pytest.approx([alike, alike + 1])
