"""Read run folders, without importing torch.

A path is a run folder, a folder of run folders at any depth, a study's folder, or a packed study. Runs may be still
running, interrupted, broken or written by older versions; runs that cannot be read are listed with the reason.
"""

from __future__ import annotations

import os
import platform
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment.runs import DONE, RECORD, RESOLVED, parse_run_record
from rl_training.platforms import process_exists
from rl_training.report.likeness import completed, with_origins
from rl_training.report.logs import Curve, Log, read_log
from rl_training.report.run_files import (
    ReadFile,
    finite,
    parse_settings,
    printable,
    reader_of,
    tags_of,
    without_seed,
)
from rl_training.study.packing import open_packed_study
from rl_training.study.plan import PLAN, RUNS, Plan, identity, parse_plan
from rl_training.study.trials import Failure, failure_name, parse_failure

METRICS = "metrics.csv"
RETURN = "eval_return_mean"
ENDED = (*DONE, "diverged")
"""the statuses of a run that has ended by itself, with results"""
# What makes a resumed run another method than its last settings, by the words of its record.
_CHANGED = ("settings have changed", "schedules have changed", "data have changed")

Kind = Literal["broken", "missing", "failed"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Run:
    """One run, as read from its folder."""

    place: str
    name: str
    given: str  # the caller's path below which the run was found
    study: str | None = None
    algo: str
    env_id: str | None
    seed: int | None
    status: str
    cause: str | None = None  # why it ended before the end of its budget
    settings: Mapping[str, Any] = field(default_factory=dict)  # flat, without seed, place and execution settings
    varied: Mapping[str, Any] = field(default_factory=dict)  # the settings that its study varies
    tags: tuple[str, ...] = ()
    record: Mapping[str, Any] = field(repr=False)  # run.json
    curve: Curve = field(repr=False)
    step: int  # step at which it ended; of a running one, that of the last row of its log
    updated: float | None = None  # Unix seconds of the last update of its files
    notes: tuple[str, ...] = ()  # problems found while reading

    @property
    def created(self) -> float | None:
        return _timestamp(self.record.get("created"))

    @property
    def seconds(self) -> float | None:
        """Training time so far, over all resumptions."""
        return finite(self.record.get("seconds"))

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Results of a run that is done; the record of a continued one still has those of its earlier end."""
        found = self.record.get("metrics") if self.status in DONE else None
        return found if isinstance(found, Mapping) else {}

    @property
    def members(self) -> int:
        """Size of the population that this run was trained in, 1 if it was trained alone."""
        population = self.record.get("population")
        names = population.get("members") if isinstance(population, Mapping) else None
        return len(names) if isinstance(names, list) and names else 1

    @property
    def dataset(self) -> Mapping[str, Any]:
        """Name, rows and fingerprint of the training data."""
        found = self.record.get("dataset")
        return found if isinstance(found, Mapping) else {}

    @property
    def last(self) -> float | None:
        """The last evaluation."""
        return float(self.curve.values[-1]) if len(self.curve) else None

    @property
    def best(self) -> float | None:
        """The best evaluation."""
        return float(self.curve.values.max()) if len(self.curve) else None


@dataclass(frozen=True, slots=True)
class Unread:
    """A run that is missing or cannot be read, and why."""

    place: str
    kind: Kind
    reason: str

    @classmethod
    def of(cls, place: str | Path, kind: Kind, reason: object) -> Unread:
        return cls(printable(str(place)), kind, printable(str(reason)))


@dataclass(frozen=True)
class Reading:
    """Everything found below some paths."""

    runs: tuple[Run, ...]
    unread: tuple[Unread, ...]
    metric: str = RETURN
    tags: frozenset[str] = frozenset()  # the metrics of the logs


def read_runs(paths: str | Path | Iterable[str | Path], metric: str = RETURN) -> Reading:
    """Read every run below `paths` once, with the evaluations of `metric` (a name of results or of the log)."""
    places = [paths] if isinstance(paths, str | Path) else list(paths)
    reader = _Reader(metric)
    for place in places:
        reader.read(Path(place))
    return Reading(completed(with_origins(reader.runs)), tuple(reader.unread), metric, frozenset(reader.tags))


@dataclass
class _Source:
    """Where a run is read from, and the facts that its study records about it."""

    place: str
    name: str
    read: ReadFile
    study: str | None = None
    settings: Mapping[str, Any] | None = None
    varied: Mapping[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    failure: Failure | None = None


class _Reader:
    """Collects `runs`, `unread` and the `tags` of logs from paths. Equal settings are stored once."""

    def __init__(self, metric: str) -> None:
        self.runs: list[Run] = []
        self.unread: list[Unread] = []
        self.tags: set[str] = set()
        self._metric = metric
        self._given = ""
        self._seen: set[tuple[int, int]] = set()
        self._again = 0  # number of paths that were found more than once
        self._settings: dict[str, tuple[Mapping[str, Any], tuple[str, ...]]] = {}

    def read(self, path: Path) -> None:
        """Read everything below a path given by the caller."""
        self._given = str(path)
        found = self._found
        if not path.exists():
            raise ConfigError(f"{path}: no such file or folder")
        if _inode(path) in self._seen:
            return
        if path.is_dir():
            self._folder(path)
        elif path.is_file() and zipfile.is_zipfile(path):
            self._packed(path)
        else:
            raise ConfigError(f"{path}: neither a folder nor a packed study")
        if self._found == found:
            raise ConfigError(f"{path}: no runs in it (no {RECORD} at any depth)")

    @property
    def _found(self) -> int:
        return len(self.runs) + len(self.unread) + self._again

    def _mark_seen(self, path: Path) -> bool:
        """Mark a path as read; return whether it was marked before."""
        known = _inode(path) in self._seen
        self._again += known
        self._seen.add(_inode(path))
        return known

    def _folder(self, folder: Path) -> None:
        """Read a run, a study, or a folder of either; links are followed, each folder is read once."""
        try:
            if self._mark_seen(folder):
                return
            names = {entry.name: entry.is_dir() for entry in os.scandir(folder)}
        except OSError as error:
            self.unread.append(Unread.of(folder, "broken", f"cannot be read: {error.strerror}"))
            return
        if RECORD in names:
            self._run(_Source(str(folder), folder.name, reader_of(folder)))
        elif PLAN in names:
            self._study(folder)
        elif METRICS in names or RESOLVED in names:
            self.unread.append(Unread.of(folder, "broken", f"a run folder without {RECORD}"))
        else:
            for name in sorted(name for name, is_folder in names.items() if is_folder and name[0] != "."):
                self._folder(folder / name)

    def _study(self, folder: Path) -> None:
        read = reader_of(folder)
        try:
            plan = parse_plan(read(PLAN) or b"", str(folder / PLAN))
        except (RLTrainingError, OSError) as error:
            self.unread.append(Unread.of(folder, "broken", f"its runs are read without its plan: {error}"))
        else:
            self._trials(plan, read, lambda trial: reader_of(folder / RUNS / trial), str(folder))
        if (folder / RUNS).is_dir():
            self._folder(folder / RUNS)

    def _packed(self, file: Path) -> None:
        try:
            if self._mark_seen(file):
                return
            with open_packed_study(file) as packed:
                self._trials(packed.plan, packed.read, lambda trial: _inside(packed.read, trial), str(file))
        except RLTrainingError as error:
            self.unread.append(Unread.of(file, "broken", error))
        except OSError as error:
            self.unread.append(Unread.of(file, "broken", f"cannot be read: {error.strerror or error}"))

    def _trials(self, plan: Plan, read: ReadFile, inside: Callable[[str], ReadFile], place: str) -> None:
        """Read the trials of a plan that were not read before; one without a run folder is failed or missing."""
        settings = [printable(identity(one.settings)) for one in plan.configurations]
        for trial in plan.trials:
            configuration = plan.configurations[trial.configuration]
            source = _Source(f"{place}/{RUNS}/{trial.name}", trial.name, inside(trial.name), plan.name)
            if (home := Path(source.place)).is_dir() and self._mark_seen(home):
                continue
            source.settings, source.varied = settings[trial.configuration], printable(configuration.changes)
            source.tags = tags_of(configuration.settings)
            data = read(name := failure_name(trial))
            source.failure = None if data is None else parse_failure(data, f"{place}/{name}")
            if source.read(RECORD) is not None:
                self._run(source)
            elif source.failure is not None:
                self.unread.append(Unread.of(source.place, "failed", source.failure.message))
            else:
                self.unread.append(Unread.of(source.place, "missing", "planned, not started"))

    def _run(self, source: _Source) -> None:
        try:
            record = parse_run_record(source.read(RECORD) or b"", f"{source.name}/{RECORD}")
            self.runs.append(self._parse(source, printable(record)))
        except RLTrainingError as error:
            self.unread.append(Unread.of(source.place, "broken", error))
        except OSError as error:
            self.unread.append(Unread.of(source.place, "broken", f"cannot be read: {error.strerror or error}"))

    def _parse(self, source: _Source, record: Mapping[str, Any]) -> Run:
        notes: list[str] = []
        settings, tags = self._settings_of(source, notes)
        log = self._log_of(source, record, notes)
        if origin := record.get("resumed_from"):
            notes.append(f"its log begins after {origin}, from which it resumed in a new folder")
        reasons = record.get("inexact")
        for one in map(str, reasons if isinstance(reasons, list) else ()):
            notes += [f"resumed at {one}"] if any(part in one for part in _CHANGED) else []
        status, cause = record["status"], record.get("stop_reason" if record["status"] in DONE else "cause")
        if status == "running" and _process_ended(record):
            status = "interrupted"
        if source.failure is not None and status not in ENDED:
            status, cause = "failed", source.failure.message
        ended = record.get("ended_at") if record["status"] != "running" else None
        updates = [log.time, _timestamp(record.get("updated"))]
        return Run(
            place=printable(source.place),
            name=printable(source.name),
            given=printable(self._given),
            study=source.study,
            algo=record["algo"],
            env_id=record["env_id"],
            seed=record["seed"],
            status=status,
            cause=None if cause is None else printable(str(cause)),
            settings=settings,
            varied=source.varied,
            tags=tags,
            record=record,
            curve=log.curve.after(_updates_before(log, record, settings)),
            step=max(log.step, ended if isinstance(ended, int) else 0),
            updated=max((time for time in updates if time is not None), default=None),
            notes=tuple(notes),
        )

    def _settings_of(self, source: _Source, notes: list[str]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        data = source.read(RESOLVED)
        if data is None:
            if source.settings is None:
                notes.append(f"it has no {RESOLVED}: its settings are unknown")
            return source.settings or {}, source.tags
        text = without_seed(data)
        found = self._settings.get(text) or parse_settings(text, notes)
        if found[0]:  # else each run of these settings gets its note
            self._settings[text] = found
        return found

    def _log_of(self, source: _Source, record: Mapping[str, Any], notes: list[str]) -> Log:
        resumed = [moment for text in record["resumed"] if (moment := _timestamp(text)) is not None]
        try:
            log = read_log(source.read(METRICS) or b"", self._metric, _timestamp(record.get("created")), resumed)
        except ValueError as error:
            notes.append(f"{METRICS} cannot be read: {error}")
            return Log(Curve())
        self.tags.update(log.tags)
        if log.bad:
            notes.append(f"{log.bad} of its evaluations are not finite numbers")
        first = record.get("scores_from")
        if isinstance(first, int):
            notes.append(f"its evaluations before step {first:,} are left out: they were in another environment")
            return replace(log, curve=log.curve.since(first))
        return log


def _updates_before(log: Log, record: Mapping[str, Any], settings: Mapping[str, Any]) -> int:
    """The updates before the first environment step: from the log, from the record of the end, or as planned."""
    if log.before is not None:
        return log.before
    metrics, ended = record.get("metrics"), record.get("ended_at")
    made = metrics.get("global_step") if isinstance(metrics, dict) else None
    if isinstance(made, int) and made > 0 and isinstance(ended, int):
        return ended - made
    planned = settings.get("algo_kwargs.offline_pretrain_updates")
    return planned if isinstance(planned, int) else 0


def _process_ended(record: Mapping[str, Any]) -> bool:
    """Whether the run's process was one of this machine and has ended, killed before it wrote a status."""
    pid = record.get("pid")
    return record.get("host") == platform.node() and isinstance(pid, int) and not process_exists(pid)


def _inode(path: Path) -> tuple[int, int]:
    of = path.stat()
    return of.st_dev, of.st_ino


def _inside(read: ReadFile, trial: str) -> ReadFile:
    return lambda name: read(f"{RUNS}/{trial}/{name}")


def _timestamp(text: Any) -> float | None:
    """Unix seconds of a time in run.json, or None if it is not a time."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError, OverflowError, OSError):
        return None
