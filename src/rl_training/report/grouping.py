"""Which runs are compared: methods and tasks, the runs that count, and why others do not.

A method is an algorithm and those of its settings that differ between runs on one task. What differs between tasks
alone (budgets, mostly) makes no other method, and neither does a setting that the version of some run did not have.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.report.reading import Reading, Run, Unread
from rl_training.study.plan import described, short

By = Literal["settings", "path", "tags"]
BY = ("settings", "path", "tags")
Score = Literal["last", "best"]
# What runs are grouped by, and settings of looking on, which make no other method.
_IGNORED = TrainConfig.affecting("watching") | {"algo", "env_id", "algo_kwargs.eval_interval"}
# Settings by which runs of 0.2 changed rows before they recorded them, with the values that change nothing.
_PREPARING = {
    "reward_scale": 1,
    "reward_shift": 0,
    "reward_range_scaling": False,
    "top_fraction": 1,
    "validation_fraction": 0,
}
# Algorithms whose runs, before raw rows were recorded, recorded only the rows with a next action.
_NEXT_ACTIONS = frozenset({"rebrac"})
_OVER = ("finished", "stopped", "diverged")
_MOST_WORDS = 120


@dataclass(frozen=True)
class Selection:
    """How runs are grouped, and which number of each counts."""

    by: By = "settings"
    score: Score = "last"
    at: float | None = None
    """a step: runs count with their last evaluation up to it, and must have come so far"""
    unfinished: bool = False
    """whether runs that are not over count as well, as they stand"""
    names: Mapping[str, str] = field(default_factory=dict)
    """other names of methods and tasks"""

    def value_of(self, run: Run) -> float | None:
        """The number a run counts with."""
        values = (run.curve if self.at is None else run.curve.until(self.at)).values
        if not len(values):
            return None
        return float(values[-1] if self.score == "last" else values.max())


@dataclass(frozen=True)
class Trouble:
    """A run that does not count, or counts with a reservation."""

    place: str
    what: str
    reason: str
    effect: str


@dataclass
class Cell:
    """The runs of one method on one task."""

    method: str
    task: str
    runs: list[Run] = field(default_factory=list)  # that count
    others: list[Run] = field(default_factory=list)  # with evaluations, which curves show as far as they go

    @property
    def seen(self) -> list[Run]:
        return [*self.runs, *self.others]


@dataclass(frozen=True)
class Groups:
    """Methods and tasks in the order in which they were found."""

    methods: tuple[str, ...]
    tasks: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    changes: Mapping[str, Mapping[str, Any]]  # by method: the settings that make it
    algos: Mapping[str, str]  # by method
    env_ids: Mapping[str, str | None]  # by task
    troubles: tuple[Trouble, ...]

    def cell(self, method: str, task: str) -> Cell:
        return self.cells.get((method, task), Cell(method, task))


def group(reading: Reading, selection: Selection) -> Groups:
    """Sort what was read into methods and tasks."""
    tasks = _tasks(reading.runs)
    varying = _varying(reading.runs, tasks)
    made = {
        run: {key: run.settings[key] for key in varying.get(run.algo, ()) if key in run.settings}
        for run in reading.runs
    }
    labels = _labels((run.algo, made[run]) for run in reading.runs)
    folders = _folders(run.given for run in reading.runs)
    cells: dict[tuple[str, str], Cell] = {}
    changes: dict[str, Mapping[str, Any]] = {}
    algos: dict[str, str] = {}
    env_ids: dict[str, str | None] = {}
    for run in reading.runs:
        name = {
            "settings": labels[run.algo, text_of(made[run])],
            "path": f"{folders[run.given]}: {run.algo}",
            "tags": f"{run.algo} ({', '.join(run.tags) or 'no tags'})",
        }[selection.by]
        method, task = _named(name, selection), _named(tasks[run], selection)
        changes.setdefault(method, made[run] if selection.by == "settings" else {})
        algos.setdefault(method, run.algo)
        env_ids.setdefault(task, run.env_id)
        cells.setdefault((method, task), Cell(method, task)).others.append(run)
    troubles = [_unread(one) for one in reading.unread]
    for cell in cells.values():
        troubles += _sorted_out(cell, selection)
    return Groups(tuple(changes), tuple(env_ids), cells, changes, algos, env_ids, tuple(troubles))


def _named(name: str, selection: Selection) -> str:
    return selection.names.get(name, name)


def _folders(given: Iterable[str]) -> dict[str, str]:
    """Paths by their last parts, or whole where those are alike."""
    last = {path: path.rstrip("/").rpartition("/")[2] or path for path in given}
    alike = Counter(last.values())
    return {path: name if alike[name] == 1 else path for path, name in last.items()}


def _labels(made: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[tuple[str, str], str]:
    """Names of methods by algorithm and settings: short ones, as far as they tell methods apart."""
    known = {(algo, text_of(changes)): changes for algo, changes in made}
    found: dict[tuple[str, str], str] = {}
    taken: Counter[str] = Counter(_label(algo, changes, short=True) for (algo, _), changes in known.items())
    for key, changes in known.items():
        name = _label(key[0], changes, short=True)
        name = name if taken[name] == 1 else _label(key[0], changes, short=False)
        found[key] = name if name not in found.values() else f"{name} #{len(found) + 1}"
    return found


def _label(algo: str, changes: Mapping[str, Any], *, short: bool) -> str:
    rounded = {key: f"{value:.4g}" if type(value) is float else value for key, value in changes.items()}
    words = described(rounded if short else changes)
    if short and len(words) > _MOST_WORDS:
        words = words[: _MOST_WORDS - 1] + "…"
    return f"{algo} ({words})" if words else algo


def is_offline(run: Run) -> bool:
    """Whether the data is the task; an online run may have prior data, which is part of its method."""
    return bool(run.dataset) and "algo_kwargs.buffer_capacity" not in run.settings


def _tasks(runs: Iterable[Run]) -> dict[Run, str]:
    """The task of each run: environment and, offline, the data by name and, where that is not enough, contents."""
    of_data: dict[tuple[str | None, str], list[Run]] = {}
    for run in filter(is_offline, runs):
        of_data.setdefault((run.env_id, data_name(str(run.dataset.get("name")))), []).append(run)
    found = {run: run.env_id or "no environment" for run in runs}
    for (_, data), sharing in of_data.items():
        several = _other_contents(sharing)
        for run in sharing:
            found[run] += f", {data}" + (f" [{_contents(run).fingerprint}]" if several else "")
    return found


class _Contents(NamedTuple):
    """What a run recorded of its data: which preparation it was recorded after, and the rows at that time."""

    prepared: str  # empty: before any
    fingerprint: str
    rows: int | None
    part: Literal["all", "most", "some"] = "all"  # of the rows of the source


def _contents(run: Run) -> _Contents:
    data = run.dataset
    if "raw_fingerprint" in data:
        return _Contents("", _text(data["raw_fingerprint"]), _count(data.get("raw_rows")))
    given = {key: run.settings.get(f"algo_kwargs.{key}") for key in _PREPARING}
    prepared = {key: value for key, value in given.items() if value not in (None, _PREPARING[key])}
    part: Literal["all", "most", "some"] = "all"
    if run.algo in _NEXT_ACTIONS:
        prepared["next_actions"], part = True, "most"
    if "top_fraction" in prepared or "validation_fraction" in prepared:
        part = "some"
    words = text_of(prepared) if prepared else ""
    return _Contents(words, _text(data.get("fingerprint")), _count(data.get("rows")), part)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else text_of(value)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def data_name(name: str) -> str:
    """The files that data came from, without folders and kinds: on another machine a file lies elsewhere."""
    parts = (PurePath(part) for part in name.split(" + "))
    return " + ".join(part.stem if part.suffix else str(part) for part in parts)


def _other_contents(runs: Iterable[Run]) -> bool:
    """Whether data of one name are different data.

    Runs record the fingerprint of the raw rows. Those of 0.2 recorded that of the rows as they prepared them, which
    identifies data only if the preparations are alike. If they are not, the number of rows is compared: all of a
    source's, or, where rows were left out, no more than these. A row without a next action is the last of an
    episode, so leaving these out keeps at least half.
    """
    found = {_contents(run) for run in runs}
    prints: dict[str, set[str]] = {}
    for one in found:
        prints.setdefault(one.prepared, set()).add(one.fingerprint)
    whole = {one.rows for one in found if one.part == "all"}
    if len(whole) > 1 or any(len(several) > 1 for several in prints.values()):
        return True
    rows = next(iter(whole), None)
    if rows is None:
        return False
    least = {"all": rows, "most": rows / 2, "some": 0}
    return any(one.rows is not None and not least[one.part] <= one.rows <= rows for one in found)


def _varying(runs: Iterable[Run], tasks: Mapping[Run, str]) -> dict[str, list[str]]:
    """By algorithm: the settings that take several values on one task."""
    values: dict[tuple[str, str, str], set[str]] = {}
    # Runs that differ in their seed alone share their settings, which are looked at once.
    for run in {(run.algo, tasks[run], id(run.settings)): run for run in runs}.values():
        for key, value in run.settings.items():
            of_task = is_offline(run) and key.startswith("algo_kwargs.dataset")
            if key not in _IGNORED and not of_task:
                values.setdefault((run.algo, tasks[run], key), set()).add(text_of(value))
    found: dict[str, list[str]] = {}
    for (algo, _, key), several in values.items():
        if len(several) > 1 and key not in found.setdefault(algo, []):
            found[algo].append(key)
    return found


def text_of(value: Any) -> str:
    """A setting as text by which equal ones are known."""
    return json.dumps(value, sort_keys=True, default=str)


def _unread(one: Unread) -> Trouble:
    return Trouble(one.place, one.kind, one.reason, "not counted")


def _sorted_out(cell: Cell, selection: Selection) -> list[Trouble]:
    """Move the runs that count to `runs`; returns what is to be said of the others, and of some that count."""
    troubles, others = [], []
    newest: dict[int | None, Run] = {}
    for run in sorted(cell.others, key=lambda run: (len(run.curve) > 0, run.status in _OVER, run.created or 0.0)):
        newest[run.seed] = run
    for run in cell.others:
        again = newest[run.seed] is not run and run.seed is not None
        counts, what, reason = _judged(run, selection) if not again else _repeated(newest[run.seed])
        if counts:
            cell.runs.append(run)
        elif len(run.curve) and not again:
            others.append(run)
        effect = "counted" if counts else "not counted"
        reasons = [reason, *run.notes] if reason else run.notes
        troubles += [Trouble(run.place, what, one, effect) for one in reasons]
    cell.others = others
    return troubles


def _repeated(newest: Run) -> tuple[bool, str, str]:
    return False, "repeated", f"the same settings and seed as {newest.place}, which is newer or further"


def _judged(run: Run, selection: Selection) -> tuple[bool, str, str]:
    """Whether a run counts, what it is, and what is to be said of that, if anything."""
    cause = f": {run.cause}" if run.cause else ""
    if not len(run.curve):
        return False, run.status, f"{run.status} without an evaluation{cause}"
    if selection.at is not None:
        reached = bool(run.curve.steps[-1] >= selection.at)
        return reached, run.status, "" if reached else f"{run.status} before step {selection.at:,.0f}{cause}"
    if run.status == "diverged":
        return True, "diverged", f"counts with its evaluations up to step {run.curve.steps[-1]:,.0f}{cause}"
    if run.status not in _OVER:
        total = run.settings.get("total_timesteps")
        of = f" of {total:,}" if isinstance(total, int) else ""
        seen = f", last seen {_moment(run.updated)}" if run.status == "running" and run.updated else ""
        return selection.unfinished, run.status, f"{run.status} at step {run.step:,}{of}{seen}{cause}"
    return True, run.status, ""


def _moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return "at no time of this calendar"


def base_of(runs: Iterable[Run]) -> dict[str, Any]:
    """The most frequent value of every setting, by its short name."""
    counts: dict[str, Counter[str]] = {}
    known: dict[int, Mapping[str, Any]] = {}
    sharing: Counter[int] = Counter()
    for run in runs:
        known[id(run.settings)] = run.settings
        sharing[id(run.settings)] += 1
    for which, settings in known.items():
        for key, value in settings.items():
            counts.setdefault(short(key), Counter())[text_of(value)] += sharing[which]
    return {key: json.loads(found.most_common(1)[0][0]) for key, found in counts.items()}


def differences(settings: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that differ from a base."""
    return {
        short(key): value
        for key, value in settings.items()
        if short(key) in base and key not in _IGNORED and text_of(value) != text_of(base[short(key)])
    }


def checked_by(value: str) -> By:
    for name in BY:
        if value == name:
            return name  # type: ignore[return-value]
    raise ConfigError(f"by must be one of {', '.join(BY)}, got {value!r}", key="by")
