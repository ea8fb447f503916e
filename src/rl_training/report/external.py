"""Results of another program, from a CSV file with the columns `step`, `seed` and `value`, and maybe `task`."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from rl_training.errors import ConfigError
from rl_training.report.logs import Curve
from rl_training.report.reading import Reading, Run
from rl_training.report.run_files import printable
from rl_training.report.tasks import tasks_of

_COLUMNS = ("step", "seed", "value")
# A seed that ends before this share of the steps of the longest one gets a remark.
_SHORT = 0.9


def with_external(reading: Reading, files: Mapping[str, str | Path], names: Mapping[str, str]) -> Reading:
    """`reading` with a run for each seed and task of `files`, which are methods by name; `names` renames tasks."""
    tasks = {task: names.get(task, task) for task in tasks_of(reading.runs).values()}
    if taken := [name for name in files if any(run.algo == name for run in reading.runs)]:
        raise ConfigError(f"{files[taken[0]]}: {taken[0]!r} names an algorithm of the runs; choose another name")
    runs = [run for name, path in files.items() for run in _runs(name, Path(path), tasks)]
    return replace(reading, runs=(*reading.runs, *runs))


def _runs(name: str, path: Path, tasks: Mapping[str, str]) -> list[Run]:
    points: dict[tuple[str, int], dict[float, float]] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            if missing := [column for column in _COLUMNS if column not in (rows.fieldnames or ())]:
                raise ConfigError(
                    f"{path}: has no column {missing[0]!r}; needed: {', '.join(_COLUMNS)}, maybe task"
                )
            for row in rows:
                if None in row or None in row.values():
                    raise ValueError(f"must have {len(rows.fieldnames or ())} fields, as the first line")
                task, (step, value) = _task(path, row.get("task"), tasks), _point(row)
                of_seed = points.setdefault((task, _seed(row["seed"])), {})
                if step in of_seed:
                    raise ValueError(f"step {row['step']} of seed {row['seed']} and {task} is given twice")
                of_seed[step] = value
    except ConfigError:
        raise
    except (ValueError, csv.Error) as error:
        raise ConfigError(f"{path}:{rows.line_num}: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    if not points:
        raise ConfigError(f"{path}: has no rows")
    longest = {task: max(max(found) for (one, _), found in points.items() if one == task) for task, _ in points}
    return [_run(name, path, task, seed, found, longest[task]) for (task, seed), found in points.items()]


def _task(path: Path, name: str | None, known: Mapping[str, str]) -> str:
    """The task of a row; `known` are the tasks of the runs with their new names."""
    if not name and len(known) != 1:
        raise ConfigError(f"{path}: the runs have several tasks; add a column 'task' with their names")
    if name and known and name not in {*known, *known.values()}:
        raise ValueError(f"task must be one of {', '.join(map(repr, known.values()))}, got {name!r}")
    return name or next(iter(known))


def _point(row: Mapping[str, str]) -> tuple[float, float]:
    step, value = float(row["step"]), float(row["value"])
    if not math.isfinite(step) or not math.isfinite(value):
        raise ValueError(f"step and value must be finite, got {row['step']}, {row['value']}")
    if step < 0:
        raise ValueError(f"step must be >= 0, got {row['step']}")
    return step, value


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"seed must be a whole number, got {text!r}") from None


def _run(name: str, path: Path, task: str, seed: int, points: Mapping[float, float], longest: float) -> Run:
    steps = np.array(sorted(points))
    short = steps[-1] < _SHORT * longest
    unknown = np.full(len(steps), math.nan)
    return Run(
        place=printable(f"{path}, seed {seed}"),
        name=printable(name),
        given=printable(str(path)),
        algo=printable(name),
        env_id=printable(task),
        seed=seed,
        status="finished",
        record={"versions": {}, "device": ""},
        curve=Curve(steps, unknown, unknown, np.array([points[step] for step in steps])),
        step=int(steps[-1]),
        notes=(f"ends at step {steps[-1]:,.0f}, others of this method at {longest:,.0f}",) if short else (),
    )
