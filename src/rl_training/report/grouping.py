"""Group runs into methods and tasks, and select the runs that count.

A method is an algorithm with those settings that differ between runs on the same task. A setting that differs only
between tasks (usually the budget) does not make another method, nor does a setting that some run's version lacks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, cast, get_args

from rl_training.errors import ConfigError, nearest
from rl_training.experiment.config import TrainConfig
from rl_training.report.reading import ENDED, Reading, Run
from rl_training.report.tasks import is_offline, tasks_of, text_of, with_prior_data
from rl_training.study.plan import described, short

By = Literal["settings", "path", "tags"]
Score = Literal["last", "best"]
# Settings that do not make another method: those runs are grouped by, and those of evaluation and logging.
_IGNORED = TrainConfig.affecting("watching") | {"algo", "env_id", "algo_kwargs.eval_interval"}
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
    changes: Mapping[str, Mapping[str, Any]]  # by method: the settings that define it, which all its runs have
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
    runs = with_prior_data(reading.runs)
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
            "tags": f"{run.algo} ({', '.join(sorted(set(run.tags))) or 'no tags'})",
        }[selection.by]
        found |= dict.fromkeys((name, tasks[run]))
        method, task = (selection.names.get(one, one) for one in (name, tasks[run]))
        own = varied[run] if selection.by == "settings" else {}
        changes[method] = dict(pair for pair in changes.get(method, own).items() if pair in own.items())
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


def _select_runs(cell: Cell, selection: Selection) -> list[Trouble]:
    """Move the runs that count to `cell.runs`; return the remarks on all runs."""
    troubles, others = [], []
    # A cell has runs with other settings if the caller gave two methods one name.
    texts = {id(run.settings): text_of(_own_settings(run)) for run in cell.others}
    same = {run: (run.seed, run.algo, texts[id(run.settings)]) for run in cell.others}
    newest: dict[tuple[int | None, str, str], Run] = {}
    assessed = {run: _assess(run, selection) for run in cell.others}

    def quality(run: Run) -> tuple[bool, bool, bool, float]:
        return assessed[run][0], len(run.curve) > 0, run.status in ENDED, run.created or 0.0

    for run in sorted(cell.others, key=quality):
        newest[same[run]] = run
    for run, (counts, what, reason) in assessed.items():
        again = newest[same[run]] is not run and run.seed is not None
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
    so_far = f"counts with its evaluations up to step {run.curve.steps[-1]:,.0f}{cause}"
    if run.status == "diverged" and (early or selection.at is None):
        return True, "diverged", so_far
    if selection.at is not None:
        if early:
            return False, run.status, f"{run.status} before step {selection.at:,.0f}{cause}"
        first = run.curve.steps[0]
        problem = f"its first evaluation is at step {first:,.0f}" if first > selection.at else ""
        return not problem, run.status, problem
    if run.status not in ENDED:
        total, before = run.settings.get("total_timesteps"), run.record.get("pretraining")
        if before is None:  # not recorded by earlier versions
            before = run.settings.get("algo_kwargs.offline_pretrain_updates") or 0
        of = f" of {total + before:,}" if isinstance(total, int) and isinstance(before, int) else ""
        seen = f", last seen {_moment(run.updated)}" if run.status == "running" and run.updated else ""
        return selection.unfinished, run.status, f"{run.status} at step {run.step:,}{of}{seen}{cause}"
    return True, run.status, so_far if run.status == "stopped" else ""


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
