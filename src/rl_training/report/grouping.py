"""Group runs into methods and tasks, and select the runs that count.

A method is an algorithm with those settings that differ between runs on the same task. A setting that differs only
between tasks (usually the budget) does not make another method, nor does a setting that some run's version lacks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, Literal, NamedTuple, cast, get_args

from rl_training.errors import ConfigError, nearest
from rl_training.experiment.config import TrainConfig
from rl_training.report.reading import ENDED, Reading, Run
from rl_training.study.plan import described, short

By = Literal["settings", "path", "tags"]
Score = Literal["last", "best"]
# Settings that do not make another method: those runs are grouped by, and those of evaluation and logging.
_IGNORED = TrainConfig.affecting("watching") | {"algo", "env_id", "algo_kwargs.eval_interval"}
# Settings that changed the rows before runs of 0.2 recorded their fingerprint, with the values that change nothing.
_PREPARATION = {
    "reward_scale": 1,
    "reward_shift": 0,
    "reward_range_scaling": False,
    "top_fraction": 1,
    "validation_fraction": 0,
}
# Algorithms whose runs of 0.2 recorded only the rows with a next action.
_NEXT_ACTIONS = frozenset({"rebrac"})
# The file of every Minari data set, in the folder `data` of that data set.
_MINARI_FILE = "main_data.hdf5"
_MOST_WORDS = 60  # characters of settings in the name of a method


@dataclass(frozen=True)
class Selection:
    """How runs are grouped, and which evaluation of each run counts."""

    by: By = "settings"
    score: Score = "last"
    at: float | None = None
    """a step: only runs that reached it, or diverged before, count, with their evaluations up to it"""
    unfinished: bool = False
    """whether runs that have not ended count, with their results so far"""
    names: Mapping[str, str] = field(default_factory=dict)
    """new names of methods and tasks"""

    def value_of(self, run: Run) -> float | None:
        """The result of a run that counts."""
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
    runs: list[Run] = field(default_factory=list)  # runs that count
    others: list[Run] = field(default_factory=list)  # other runs with evaluations, which are drawn in curves only

    @property
    def seen(self) -> list[Run]:
        return [*self.runs, *self.others]


@dataclass(frozen=True)
class Groups:
    """Methods and tasks in the order they were found."""

    methods: tuple[str, ...]
    tasks: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    changes: Mapping[str, Mapping[str, Any]]  # by method: the settings that define it
    algos: Mapping[str, str]  # by method
    env_ids: Mapping[str, str | None]  # by task
    troubles: tuple[Trouble, ...]

    @property
    def legend(self) -> dict[str, str]:
        """The settings of each method whose name is a number."""
        words = {method: _words(self.changes[method]) for method in self.methods}
        return {method: text for method, text in words.items() if text and text not in method}

    def cell(self, method: str, task: str) -> Cell:
        return self.cells.get((method, task), Cell(method, task))


def group(reading: Reading, selection: Selection) -> Groups:
    """Group runs into methods and tasks."""
    runs = _with_prior_data(reading.runs)
    tasks = tasks_of(runs)
    varying = _varying(runs, tasks)
    varied = {run: _chosen(_own_settings(run), varying.get(run.algo, ())) for run in runs}
    labels = _labels((run.algo, varied[run]) for run in runs)
    folders = _folders(run.given for run in runs)
    cells: dict[tuple[str, str], Cell] = {}
    changes: dict[str, Mapping[str, Any]] = {}
    algos: dict[str, str] = {}
    env_ids: dict[str, str | None] = {}
    found: dict[str, None] = {}
    for run in runs:
        name = {
            "settings": labels[run.algo, text_of(varied[run])],
            "path": f"{folders[run.given]}: {run.algo}",
            "tags": f"{run.algo} ({', '.join(run.tags) or 'no tags'})",
        }[selection.by]
        found |= dict.fromkeys((name, tasks[run]))
        method, task = (selection.names.get(one, one) for one in (name, tasks[run]))
        changes.setdefault(method, varied[run] if selection.by == "settings" else {})
        algos.setdefault(method, run.algo)
        env_ids.setdefault(task, run.env_id)
        cells.setdefault((method, task), Cell(method, task)).others.append(run)
    check_known("names", selection.names, found)
    troubles = [Trouble(one.place, one.kind, one.reason, "not counted") for one in reading.unread]
    for cell in cells.values():
        troubles += _select_runs(cell, selection)
    return Groups(tuple(changes), tuple(env_ids), cells, changes, algos, env_ids, tuple(troubles))


def _folders(given: Iterable[str]) -> dict[str, str]:
    """The last part of each path, or the whole path if last parts are equal."""
    last = {path: path.rstrip("/").rpartition("/")[2] or path for path in given}
    alike = Counter(last.values())
    return {path: name if alike[name] == 1 else path for path, name in last.items()}


def _labels(methods: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[tuple[str, str], str]:
    """Names of methods by algorithm and settings; numbers if the settings of an algorithm are long."""
    known = {(algo, text_of(changes)): changes for algo, changes in methods}
    found: dict[tuple[str, str], str] = {}
    taken: Counter[str] = Counter(_label(algo, changes, short=True) for (algo, _), changes in known.items())
    longest = {
        algo: max(len(described(changes)) for (one, _), changes in known.items() if one == algo)
        for algo, _ in known
    }
    for key, changes in known.items():
        name = _label(key[0], changes, short=True)
        name = name if taken[name] == 1 else _label(key[0], changes, short=False)
        if longest[key[0]] > _MOST_WORDS:
            name = f"{key[0]} {1 + sum(algo == key[0] for algo, _ in found)}"
        found[key] = name if name not in found.values() else f"{name} #{len(found) + 1}"
    return found


def _label(algo: str, changes: Mapping[str, Any], *, short: bool) -> str:
    words = _words(changes) if short else described(changes)
    return f"{algo} ({words})" if words else algo


def _words(changes: Mapping[str, Any]) -> str:
    return described({key: f"{value:.4g}" if type(value) is float else value for key, value in changes.items()})


def is_offline(run: Run) -> bool:
    """Whether the data set is part of the task; the prior data of an online run are part of its method."""
    return bool(run.dataset) and "algo_kwargs.buffer_capacity" not in run.settings


def tasks_of(runs: Iterable[Run]) -> dict[Run, str]:
    """The task of each run: environment and, offline, data set, with its fingerprint if names are ambiguous."""
    of_data: dict[tuple[str | None, str], list[Run]] = {}
    for run in filter(is_offline, runs):
        of_data.setdefault((run.env_id, data_name(str(run.dataset.get("name")))), []).append(run)
    found = {run: run.env_id or "no environment" for run in runs}
    for (_, data), sharing in of_data.items():
        several = _other_contents(sharing)
        for run in sharing:
            found[run] += f", {data}" + (f" [{_contents(run).fingerprint}]" if several else "")
    return found


def _with_prior_data(runs: Iterable[Run]) -> list[Run]:
    """The runs; the fingerprint of prior data is a setting if data of the same name have different contents."""
    of_data: dict[tuple[str, str | None, str], list[Run]] = {}
    for run in runs:
        if run.dataset and not is_offline(run):
            place = run.algo, run.env_id, data_name(str(run.dataset.get("name")))
            of_data.setdefault(place, []).append(run)
    marks = {
        run: _contents(run).fingerprint
        for several in of_data.values()
        if _other_contents(several)
        for run in several
    }
    made: dict[tuple[int, str], dict[str, Any]] = {}  # runs that differ only in their seed share their settings
    for run, mark in marks.items():
        made.setdefault((id(run.settings), mark), {**run.settings, "algo_kwargs.data": mark})
    return [replace(run, settings=made[id(run.settings), marks[run]]) if run in marks else run for run in runs]


class _Contents(NamedTuple):
    """Fingerprint and number of rows that a run recorded, after the preparation `prepared` (empty: raw rows)."""

    prepared: str
    fingerprint: str
    rows: int | None
    part: Literal["all", "most", "some"] = "all"  # the part of the source's rows that was recorded


def _contents(run: Run) -> _Contents:
    data = run.dataset
    if "raw_fingerprint" in data:
        return _Contents("", _text(data["raw_fingerprint"]), _count(data.get("raw_rows")))
    given = {key: run.settings.get(f"algo_kwargs.{key}") for key in _PREPARATION}
    prepared = {key: value for key, value in given.items() if value not in (None, _PREPARATION[key])}
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
    """The names of data files without folders and suffixes, which may differ between machines.

    A Minari data set is named by its folder: all of them have the same file name.
    """
    return " + ".join(_file_name(PurePath(part)) for part in name.split(" + "))


def _file_name(path: PurePath) -> str:
    if path.name == _MINARI_FILE:
        return path.parent.parent.name
    return path.stem if path.suffix else str(path)


def _other_contents(runs: Iterable[Run]) -> bool:
    """Whether data sets of the same name have different contents.

    Runs record the fingerprint of the raw rows. Runs of 0.2 recorded the fingerprint of the prepared rows, which
    identifies the data only if the preparations are equal. Otherwise the number of rows is compared: it must equal
    the source's, or not exceed it if rows were left out. Leaving out rows without a next action, which are the last
    of their episodes, keeps at least half of the rows.
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
    """The settings with several values on the same task, by algorithm."""
    values: dict[tuple[str, str, str], set[str]] = {}
    # Runs that differ only in their seed share one settings object.
    for run in {(run.algo, tasks[run], id(run.settings)): run for run in runs}.values():
        for key, value in _own_settings(run).items():
            values.setdefault((run.algo, tasks[run], key), set()).add(text_of(value))
    found: dict[str, list[str]] = {}
    for (algo, _, key), several in values.items():
        if len(several) > 1 and key not in found.setdefault(algo, []):
            found[algo].append(key)
    return found


def _chosen(settings: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: settings[key] for key in keys if key in settings}


def _own_settings(run: Run) -> dict[str, Any]:
    """The settings in which two methods may differ.

    Those of the task are left out. The files of a mixture belong to the task, their weights do not.
    """
    own = {key: value for key, value in run.settings.items() if key not in _IGNORED}
    if not is_offline(run):
        return own
    parts = own.get("algo_kwargs.datasets")
    own = {key: value for key, value in own.items() if not key.startswith("algo_kwargs.dataset")}
    if isinstance(parts, list) and parts:
        own["algo_kwargs.weights"] = [part.get("weight") if isinstance(part, Mapping) else None for part in parts]
    return own


def text_of(value: Any) -> str:
    """A value as text; equal values give equal texts."""
    return json.dumps(value, sort_keys=True, default=str)


def _select_runs(cell: Cell, selection: Selection) -> list[Trouble]:
    """Move the runs that count to `cell.runs`; return the remarks on all runs."""
    troubles, others = [], []
    # A cell has runs with other settings if the caller gave two methods one name.
    texts = {id(run.settings): text_of(_own_settings(run)) for run in cell.others}
    same = {run: (run.seed, run.algo, texts[id(run.settings)]) for run in cell.others}
    newest: dict[tuple[int | None, str, str], Run] = {}
    for run in sorted(cell.others, key=lambda run: (len(run.curve) > 0, run.status in ENDED, run.created or 0.0)):
        newest[same[run]] = run
    for run in cell.others:
        again = newest[same[run]] is not run and run.seed is not None
        counts, what, reason = _assess(run, selection)
        if again:
            reason = f"has the settings and seed of {newest[same[run]].place}, which is newer or longer"
            counts, what = False, "repeated"
        if counts:
            cell.runs.append(run)
        elif len(run.curve) and not again:
            others.append(run)
        effect = "counted" if counts else "not counted"
        reasons = [reason, *run.notes] if reason else run.notes
        troubles += [Trouble(run.place, what, one, effect) for one in reasons]
    cell.others = others
    return troubles


def _assess(run: Run, selection: Selection) -> tuple[bool, str, str]:
    """Whether a run counts, its state, and a remark (may be empty)."""
    cause = f": {run.cause}" if run.cause else ""
    if not len(run.curve):
        return False, run.status, f"{run.status} without an evaluation{cause}"
    early = selection.at is not None and run.curve.steps[-1] < selection.at
    if run.status == "diverged" and (early or selection.at is None):
        return True, "diverged", f"counts with its evaluations up to step {run.curve.steps[-1]:,.0f}{cause}"
    if selection.at is not None:
        if early:
            return False, run.status, f"{run.status} before step {selection.at:,.0f}{cause}"
        first = run.curve.steps[0]
        problem = f"its first evaluation is at step {first:,.0f}" if first > selection.at else ""
        return not problem, run.status, problem
    if run.status not in ENDED:
        total = run.settings.get("total_timesteps")
        of = f" of {total:,}" if isinstance(total, int) else ""
        seen = f", last seen {_moment(run.updated)}" if run.status == "running" and run.updated else ""
        return selection.unfinished, run.status, f"{run.status} at step {run.step:,}{of}{seen}{cause}"
    return True, run.status, ""


def _moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return "at an invalid time"


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


def check_known(option: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise for the first name that is not known."""
    names = list(dict.fromkeys(known))
    for name in given:
        if name not in names:
            raise ConfigError(
                f"{option}: no run has {name!r}{nearest(name, names)}; known: {', '.join(names)}", key=option
            )


def checked_by(value: str) -> By:
    if value not in get_args(By):
        raise ConfigError(f"by must be one of {', '.join(get_args(By))}, got {value!r}", key="by")
    return cast("By", value)
