"""Fine-tuning: the return before the first step in the environment, the lowest return after it, and the last."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks import report
from rl_training.report.facts import ranges
from rl_training.report.grouping import Groups
from rl_training.report.reading import Run


def fine_tuning(groups: Groups) -> list[str]:
    """A table of runs that start from data, if some were evaluated both before and after the first environment
    step.

    Steps up to 0 are updates on data. A run without such updates (RLPD) has no return before the first step.
    """
    rows, any_before = [], False
    for method, task in ((method, task) for task in groups.tasks for method in groups.methods):
        runs = [run for run in groups.cell(method, task).seen if run.dataset and (run.curve.steps > 0).any()]
        if not runs:
            continue
        before = [run.curve.values[run.curve.steps <= 0][-1] for run in runs if (run.curve.steps <= 0).any()]
        after = [run.curve.values[run.curve.steps > 0] for run in runs]
        lowest, last = [float(np.min(values)) for values in after], [float(values[-1]) for values in after]
        any_before |= bool(before)
        seeds = ranges(run.seed for run in runs if run.seed is not None)
        rows.append([method, task, seeds, _spread(before), _spread(lowest), _spread(last), _last(runs)])
    header = ["", "", "seeds", "before", "lowest", "last", "last at step"]
    words = (
        "Evaluations during training, mean ± standard deviation over seeds: the last one on data alone, the lowest "
        "one of each seed in the environment, and the last one."
    )
    return [f"## Before and after\n\n{words}\n\n{report.table(header, rows)}"] if any_before else []


def _spread(values: Sequence[float]) -> str:
    return report.spread(values) if values else "–"


def _last(runs: Sequence[Run]) -> str:
    return " / ".join(f"{step:,.0f}" for step in sorted({run.curve.steps[-1] for run in runs}))
