"""Run studies for a number of minutes, and write their results during training."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.evidence import keeping
from benchmarks.report import COMMIT, UNKNOWN, machine
from benchmarks.report import commit as present_commit
from rl_training.errors import ConfigError
from rl_training.experiment.runs import amend_record
from rl_training.runs.signals import TrainingInterrupted
from rl_training.study.claims import DiskClock, held_claim
from rl_training.study.packing import Policies, pack_study, unpack_study
from rl_training.study.plan import RUNS, Group, Plan, read_plan
from rl_training.study.status import StudyStatus
from rl_training.study.study import Study, TrialWatcher
from rl_training.study.trials import FULL_DISK, NEVER_RETRIED, failed_trials, home_of, record_of, reopen
from rl_training.study.worker import restart_unfinished
from rl_training.study.worker_pool import LocalPool

COMMITS = "commits"
"""the key of run.json with every commit that trained a run"""
_PERIOD = 2.0  # seconds between two checks of the runs' logs
_WORKING = "commit.txt"  # file in a study's folder with the commit that trains it, or trained it when it was killed


@dataclass(frozen=True)
class Order:
    """How to run studies: output folder, time limit and earlier results."""

    output_dir: Path
    data: Path | None = None
    device: str | None = None
    minutes: float | None = None
    earlier: Path | None = None  # folder with packed studies
    commit: str | None = None
    policies: Policies = "last"
    workers: int = 1  # processes that train groups of one study concurrently
    finish: bool = False  # stop the last groups if the first would not finish in time


def commit_of(order: Order) -> str:
    """The current commit: as given, from the environment variable, or of the repository."""
    return order.commit or present_commit()


def work_on(files: list[Path], order: Order) -> list[StudyStatus]:
    """Run the studies in turn until the time is over; return the status of those that were started."""
    end = None if order.minutes is None else time.monotonic() + 60 * order.minutes
    studies = [prepared(file, order) for file in files]  # raises before the first study starts
    commit, found = commit_of(order), []
    remedy = f"; set it with --commit or {COMMIT}" if commit == UNKNOWN else ""
    print(f"at commit {commit}{remedy}", flush=True)
    for study in studies:
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            break
        found.append(_worked(study, left, commit, order))
    return found


def prepared(file: Path, order: Order) -> Study:
    """The study of a file, with the results from another machine if there are any."""
    study = Study(file, output_dir=order.output_dir, data=order.data, device=order.device)
    packed = None if order.earlier is None else order.earlier / f"{study.folder.name}.zip"
    if packed is None or not packed.is_file():
        return study
    if study.folder.exists():
        print(f"{study.folder.name}: {packed} is not unpacked, because {study.folder} exists", flush=True)
    else:
        unpack_study(packed, study.folder)
        for result in (packed, packed.with_suffix(".json")):  # passed on if the time is over before this study
            if result.is_file() and not (new := order.output_dir / result.name).exists():
                shutil.copyfile(result, new)
        again = restart_unfinished(study.folder, read_plan(study.folder))
        print(f"{study.folder.name}: from {packed}, of which {len(again)} trials start again", flush=True)
    return study


def _worked(study: Study, seconds: float | None, commit: str, order: Order) -> StudyStatus:
    plan, note = study.plan(order.workers), study.folder / _WORKING
    killed = note.read_text(encoding="utf-8").strip() if note.is_file() else UNKNOWN
    _stamp(study.folder, plan, killed, unless_known=True)
    note.write_text(commit, encoding="utf-8")
    before = _moments(study.folder, plan)
    with stop_after(seconds) as stopped, contextlib.suppress(_OutOfTime):
        try:
            end = time.monotonic() + seconds if order.finish and seconds is not None else None
            _train(study, plan, order.workers, _Results(study.folder, order, before, commit), stopped, end)
        except TrainingInterrupted:
            if not stopped.is_set():
                raise
            raise _OutOfTime from None
        finally:
            _stamp(study.folder, plan, commit, before=before)
    status = study.status()
    counts = ", ".join(f"{count} {state}" for state, count in status.counts.items() if count)
    ended = "; the time is over, the same command continues" if stopped.is_set() else ""
    print(f"{status.name}: {counts}{ended}", flush=True)
    return status


class _OutOfTime(Exception):
    pass


def _train(
    study: Study, plan: Plan, workers: int, results: _Results, stopped: threading.Event, end: float | None
) -> None:
    """Train missing runs in separate processes, which can be stopped even while they compile.

    `end`: when the first group should be finished; None: all groups continue to the limit.
    """
    watched = threading.Event()
    pace = None if end is None else _Pace(study, plan, end)
    reopen(study.folder, failed_trials(study.folder, plan, NEVER_RETRIED, only=(FULL_DISK,)))
    print(f"{plan.name}: {len(plan.trials)} trials in {study.folder}", flush=True)
    with TrialWatcher(study.folder, lambda text: print(text, flush=True)) as ended:

        def watch() -> None:
            if stopped.is_set() and not watched.is_set():  # its signal may have come before the pool's handlers
                signal.raise_signal(signal.SIGTERM)
            watched.set()
            ended()
            results.update()
            if pace is not None:
                pace.update()

        if waiting := study.status().counts["waiting"]:
            LocalPool(study.folder, plan, min(workers, waiting)).run(watch)
    results.write()


class Speed:
    """Steps of a group over time, to predict its end.

    The first interval is left out, because updates are compiled in it.
    """

    def __init__(self) -> None:
        self._points: list[tuple[float, int]] = []

    def add(self, now: float, step: int) -> None:
        if not self._points or step > self._points[-1][1]:
            self._points.append((now, step))

    def end(self, total: int) -> float | None:
        """When `total` steps are reached at the speed of the last two intervals; None before there are three."""
        if len(self._points) < 4:
            return None
        (before, first), (now, last) = self._points[-3], self._points[-1]
        return now + (total - last) * (now - before) / (last - first)


class _Pace:
    """Stops the last running group of a study if the first would not finish in time."""

    def __init__(self, study: Study, plan: Plan, end: float) -> None:
        self._study, self._plan, self._end = study, plan, end
        self._speeds: dict[str, Speed] = defaultdict(Speed)
        self._next = 0.0

    def update(self) -> None:
        """Measure the groups, at most every `_PERIOD` seconds."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _PERIOD
        trials = {one.trial.name: one for one in self._study.status().trials}
        running = []
        for group in self._plan.groups:
            members = [trials[trial.name] for trial in group.trials]
            if any(one.state == "running" for one in members):
                running.append((group, max(one.total for one in members)))
                self._speeds[group.name].add(time.monotonic(), min(one.step for one in members))
        if len(running) < 2:
            return
        (first, total), (last, _) = running[0], running[-1]
        predicted = self._speeds[first.name].end(total)
        if predicted is not None and predicted > self._end and self._stop(last):
            late = (predicted - self._end) / 60
            print(
                f"stopped {last.trials[0].name}: {first.trials[0].name} would be {late:.1f} minutes late",
                flush=True,
            )
            self._speeds.clear()  # the others become faster

    def _stop(self, group: Group) -> bool:
        """Stop the worker that trains a group, if it is a process of this machine; it saves its runs."""
        folder = self._study.folder
        claim = held_claim(folder, group.name, self._plan.claim_timeout, DiskClock(folder))
        if claim is None or claim.owner is None or not claim.owner.is_process(claim.owner.pid):
            return False
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(claim.owner.pid, signal.SIGTERM)
        return True


class _Results:
    """Results file of a study during training, rewritten when runs have logged or been evaluated.

    If the command is killed, only the last seconds are lost.
    """

    def __init__(self, folder: Path, order: Order, before: Mapping[str, object], commit: str) -> None:
        """`before`: when each run was started and resumed before this command, which runs at `commit`."""
        self._folder, self._file = folder, folder.with_name(f"{folder.name}.json")
        self._earlier, self._before, self._commit = order.earlier, before, commit
        self._logs: dict[Path, int] = {}
        self._next = time.monotonic() + _PERIOD

    def update(self) -> None:
        """Write the file if a log has changed, at most every `_PERIOD` seconds."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _PERIOD
        logs = dict[Path, int]()
        for log in (self._folder / RUNS).glob("*/metrics.csv"):
            with contextlib.suppress(FileNotFoundError):  # the run has restarted
                logs[log] = log.stat().st_mtime_ns
        if logs != self._logs:
            self._logs = logs
            self.write()

    def write(self) -> None:
        kept = keeping.collect(self._folder, files_of(self._file, self._earlier))
        for name, run in kept["runs"].items():
            record = run["record"]
            if self._before.get(name) != _moment(record):
                record |= _origin(record, self._commit)
        keeping.store(self._file, kept)


def files_of(file: Path, earlier: Path | None) -> list[Path]:
    """Files that may contain results for the study of `file`, from another machine and from this one."""
    return [file] if earlier is None else [earlier / file.name, file]


def _moments(folder: Path, plan: Plan) -> dict[str, object]:
    """When each run was started and resumed."""
    records = {trial.name: record_of(home_of(folder, trial)) for trial in plan.trials}
    return {name: _moment(record) for name, record in records.items() if record}


def _moment(record: Mapping[str, Any]) -> object:
    return record.get("created"), record.get("resumed")


def _origin(record: Mapping[str, Any], commit: str) -> dict[str, Any]:
    """Fields of run.json: the commits that trained a run, including `commit`, and this machine."""
    commits = list(dict.fromkeys([*record.get(COMMITS, []), commit]))
    return {COMMITS: commits, "machine": machine(str(record.get("device")))}


def _stamp(
    folder: Path, plan: Plan, commit: str, *, before: dict[str, object] | None = None, unless_known: bool = False
) -> None:
    """Write the training commit and the machine into run.json of every run that was trained since `before`."""
    now = _moments(folder, plan)
    for name in [name for name in now if before is None or before.get(name) != now[name]]:
        home = folder / RUNS / name
        record = record_of(home)
        known = record.get(COMMITS, [])
        if commit not in known and not (unless_known and known):
            amend_record(home, **_origin(record, commit))


@contextlib.contextmanager
def stop_after(seconds: float | None) -> Iterator[threading.Event]:
    """Set the event and send this process a SIGTERM after this many seconds, so that runs save and end."""
    over = threading.Event()
    if seconds is None:
        yield over
        return

    def stop() -> None:
        over.set()
        os.kill(os.getpid(), signal.SIGTERM)

    def outside(signum: int, frame: FrameType | None) -> None:
        # Training has just ended; while it runs it installs its own handlers.
        if not over.is_set():
            raise TrainingInterrupted("asked to stop; the same command continues", signum)

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    previous = signal.signal(signal.SIGTERM, outside)
    timer.start()
    try:
        yield over
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGTERM, previous)


def packed(folder: Path, policies: Policies) -> Path:
    """Pack the study into a file next to its folder, replacing an existing one."""
    target = folder.with_name(f"{folder.name}.zip")
    fresh = folder.with_name(f".{folder.name}.zip")
    fresh.unlink(missing_ok=True)
    pack_study(folder, fresh, policies=policies)
    try:
        fresh.replace(target)
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written: {error.strerror}") from None
    return target
