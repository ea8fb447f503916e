"""Coverage of the 95 % interval of the interquartile mean, and how often one of two equal methods is called better.

    python -m benchmarks.evidence.coverage [--studies 1000] [--json src/rl_training/assets/report/coverage.json]

Scores are drawn from five distributions that resemble the scores of runs: normal, with a tail, with failing seeds,
bimodal, and close to a ceiling. The true interquartile mean is computed from so large a sample that its error is a
hundredth of the width of an interval. The best method is the one whose coverage over all sizes is closest to the
nominal level; it must be the default of the package. Every report reads its footnote from the file.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.report.statistics import CONFIDENCE, METHOD, METHODS, compare, enough, estimate, iqm

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, Any], Any]

ASSET = Path("src/rl_training/assets/report/coverage.json")
SIZES = ((5, 10), (5, 5), (1, 10), (1, 5))  # tasks, seeds
EQUALS = ((5, 10), (5, 5), (5, 3), (1, 10), (1, 5), (1, 4), (1, 3))
TRUTH = 4_000_000
TASKS: dict[str, Draw] = {
    "even": lambda rng, size: rng.normal(0.6, 0.1, size),
    "tail": lambda rng, size: 0.2 + 0.15 * rng.lognormal(0.0, 0.6, size),
    "failures": lambda rng, size: np.where(rng.random(size) < 0.2, 0.05, 0.8) + rng.normal(0, 0.05, size),
    "two camps": lambda rng, size: np.where(rng.random(size) < 0.5, 0.3, 0.7) + rng.normal(0, 0.06, size),
    "ceiling": lambda rng, size: rng.beta(8.0, 1.5, size),
}


def kinds_of(tasks: int) -> list[list[Draw]]:
    """Distributions of the tasks of each kind of study: all five tasks together, or one of them."""
    return [list(TASKS.values())] if tasks == len(TASKS) else [[draw] for draw in TASKS.values()]


def measure(tasks: int, seeds: int, studies: int) -> dict[str, dict[str, float]]:
    """Return coverage and mean width by method."""
    rng = np.random.default_rng(7)
    kinds = kinds_of(tasks)
    truths = [iqm(*(draw(rng, TRUTH // len(kind)) for draw in kind)) for kind in kinds]
    covered, widths = dict.fromkeys(METHODS, 0), dict.fromkeys(METHODS, 0.0)
    for number in range(studies):
        kind, truth = kinds[number % len(kinds)], truths[number % len(kinds)]
        samples = [draw(rng, seeds) for draw in kind]
        for method in METHODS:
            found = estimate(samples, iqm, method=method)
            covered[method] += bool(found.low <= truth <= found.high)
            widths[method] += float(found.high - found.low)
    return {
        method: {"coverage": covered[method] / studies, "width": round(widths[method] / studies, 4)}
        for method in METHODS
    }


def called_better(tasks: int, seeds: int, studies: int) -> float:
    """How often one of two methods with identically distributed scores is called better."""
    rng, found = np.random.default_rng(11), 0
    for number in range(studies):
        kind = kinds_of(tasks)[number % len(kinds_of(tasks))]
        ours, theirs = ([draw(rng, seeds) for draw in kind] for _ in range(2))
        found += enough(ours, theirs) and compare(ours, theirs).excludes_zero
    return found / studies


def best_of(sizes: list[dict[str, Any]]) -> str:
    """The method whose coverage is closest to its nominal level on average."""
    return min(METHODS, key=lambda m: sum(abs(size["methods"][m]["coverage"] - CONFIDENCE) for size in sizes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=1_000)
    parser.add_argument("--json", type=Path, default=ASSET)
    args = parser.parse_args()
    started, sizes = time.monotonic(), []
    for tasks, seeds in SIZES:
        methods = measure(tasks, seeds, args.studies)
        sizes.append({"tasks": tasks, "seeds": seeds, "methods": methods})
        for method, found in methods.items():
            print(
                f"{tasks} x {seeds:2}  {method:20} {found['coverage']:.3f}  width {found['width']:.4f}", flush=True
            )
    equals = []
    for tasks, seeds in EQUALS:
        equals.append({"tasks": tasks, "seeds": seeds, "called_better": called_better(tasks, seeds, args.studies)})
        print(f"{tasks} x {seeds:2}  called better {equals[-1]['called_better']:.3f}")
    best = best_of(sizes)
    print(f"best: {best}; default: {METHOD}; {time.monotonic() - started:.0f} s")
    record = {"confidence": CONFIDENCE, "studies": args.studies, "default": METHOD, "best": best}
    record |= {"sizes": sizes, "equals": equals}
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
