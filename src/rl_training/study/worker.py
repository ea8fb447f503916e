"""A worker: claim a group, train its trials, write down what failed, take the next, until nothing is left to claim.

A trial is an ordinary run in the folder the plan names. Whether it is done is what its run.json says; a failure
that may have left no folder is kept in `failures/`. A worker that is asked to stop saves its run, releases its
claim and ends; one that is killed leaves both to the next, who resumes the run exactly.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch

from rl_training.display.output import one_line
from rl_training.errors import ClaimLost, ConfigError, DiskFullError, RLTrainingError, RunInUse
from rl_training.experiment import files
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.manager import ExperimentManager
from rl_training.experiment.retention import list_checkpoints
from rl_training.experiment.runs import RECORD, read_run_record
from rl_training.platforms import STOPPING, require_posix, restore_handlers
from rl_training.runs.signals import TrainingInterrupted
from rl_training.runs.training import RunOptions
from rl_training.runtime.populations import train_in_folders
from rl_training.runtime.workflows import resume_training
from rl_training.study.claims import (
    WATCH_INTERVAL,
    Claim,
    ClaimRecord,
    DiskClock,
    Owner,
    is_ahead,
    previous_owner,
    take,
)
from rl_training.study.plan import RUNS, Group, Plan, Trial, read_plan
from rl_training.study.trials import (
    FULL_DISK,
    Failure,
    forget_failure,
    home_of,
    is_done,
    note_failure,
    read_failure,
    record_of,
)

# A trial is given up after this many workers in a row died in it without progress: the first number if the kernel's
# out-of-memory killer ended them, the second if the cause is unknown.
_MOST_OUT_OF_MEMORY, _MOST_DEATHS = 5, 25
_USAGE = 2


@dataclass(frozen=True)
class Member:
    """One trial to be trained: its configuration and its folder, which may hold a run to go on with."""

    config: TrainConfig
    home: Path


class TrainGroup(Protocol):
    """Trains the members of a group, each to its end and in its own folder; returns what failed, by folder name.

    Members that are done are not among them. `launch` has the fence that every write must ask.
    """

    def __call__(self, members: Sequence[Member], launch: RunOptions) -> dict[str, Exception]: ...


def one_after_another(members: Sequence[Member], launch: RunOptions) -> dict[str, Exception]:
    """Each member as an ordinary run; one that fails does not keep the next from running."""
    failed: dict[str, Exception] = {}
    for member in members:
        try:
            train_member(member, launch)
        except (ClaimLost, RunInUse, TrainingInterrupted):
            raise
        except Exception as error:
            failed[member.home.name] = error
        except SystemExit as error:  # an environment's; it has no business ending a study
            failed[member.home.name] = RuntimeError(f"SystemExit: {error.code}")
    return failed


def together(members: Sequence[Member], launch: RunOptions) -> dict[str, Exception]:
    """The members of a group as one population, each from its newest checkpoint."""
    if len(members) == 1:
        return one_after_another(members, launch)
    launch.fence()
    for member in members:
        if not _has_begun(member.home):
            _clear(member.home)
    errors = train_in_folders([(member.config, member.home) for member in members], launch, begun=_has_begun)
    return {member.home.name: error for member, error in zip(members, errors) if error is not None}


def train_member(member: Member, launch: RunOptions) -> None:
    """Train a trial from its start, or from its newest checkpoint."""
    if _has_begun(member.home):
        changes = {"allow_import": True} if member.config.allow_import else None
        resume_training(member.home, changes=changes, quiet=launch.quiet, fence=launch.fence)
        return
    launch.fence()
    _clear(member.home)
    begun = RunOptions(quiet=launch.quiet, folder=member.home, fence=launch.fence)
    ExperimentManager().train(member.config, launch=begun)


def _has_begun(home: Path) -> bool:
    """Whether there is something to resume. What was killed before its first checkpoint is not: not even its best
    policy, which the same seed finds again."""
    if list_checkpoints(home / "checkpoints"):
        return True
    if not (home / RECORD).is_file():
        return False
    record = read_run_record(home)
    return is_done(record) or bool(record.get("saved") or record.get("pruned"))


def _clear(home: Path) -> None:
    """Remove what a run left that was killed before its first checkpoint."""
    if home.is_dir():
        files.rename(home, home.with_name(f".tmp-{home.name}-{secrets.token_hex(4)}"))
    for trash in home.parent.glob(f".tmp-{home.name}-*"):
        shutil.rmtree(trash, ignore_errors=True)


@dataclass(frozen=True)
class Worked:
    """What a worker leaves: whether others still hold groups, and how many trials of the study have failed."""

    others_hold: bool
    failed: int


def work(
    folder: Path,
    *,
    train_group: TrainGroup = together,
    quiet: bool = True,
    allow_import: bool = False,
    parent: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Worked:
    """Work on the study in `folder` until nothing can be claimed any more.

    `parent` is a process without which this one is to stop. `say` is told of each group that ends.
    """
    require_posix("a study", "train its configurations one by one")
    worker = _Worker(folder, train_group, quiet, allow_import, say)
    try:
        with _stopping_on_signals(), _no_orphan(parent), _threads(read_plan(folder).threads):
            while (found := worker.next_claim()) is not None:
                worker.run(*found)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder}: the study cannot go on: {error.strerror or error}"
        ) from None
    return Worked(worker.others_hold, len(failed_trials(folder, read_plan(folder))))


class _Worker:
    def __init__(
        self,
        folder: Path,
        train_group: TrainGroup,
        quiet: bool,
        allow_import: bool,
        say: Callable[[str], None],
    ) -> None:
        self.folder, self.me = folder, Owner.me()
        self.others_hold = False
        self._train_group, self._quiet, self._allow_import, self._say = train_group, quiet, allow_import, say
        self._clock = DiskClock(folder)
        self._over: set[str] = set()

    def next_claim(self) -> tuple[Plan, Group, Claim] | None:
        """The first group that is open and free, claimed. The plan is read again: it may have been extended.

        If a claim is dated in the future, it is watched until it moves or has not done so for `claim_timeout`.
        """
        announced = False
        while True:
            plan, ahead = read_plan(self.folder), list[str]()
            if (found := self._claim_first(plan, ahead)) is not None or not ahead:
                return found
            if not announced:
                self._say(
                    f"{ahead[0]}: its claim is dated in the future; waiting up to {plan.claim_timeout:g} s for a "
                    "sign of life"
                )
            announced = True
            time.sleep(WATCH_INTERVAL)

    def _claim_first(self, plan: Plan, ahead: list[str]) -> tuple[Plan, Group, Claim] | None:
        """The first group that is open and free, claimed; `ahead` receives groups whose claims are dated in the
        future."""
        self.others_hold = False
        for group in plan.groups:
            if group.name in self._over or not self._open_trials(group):
                self._over.add(group.name)
                continue
            progress = _progress(self.folder, group)
            claim = take(self.folder, group.name, self.me, plan.claim_timeout, progress=progress, clock=self._clock)
            if claim is None:
                self.others_hold = True
                ahead += [group.name] if is_ahead(self.folder, group.name, plan.claim_timeout, self._clock) else []
            elif self._is_open(group, claim):
                return plan, group, claim
        return None

    def _is_open(self, group: Group, claim: Claim) -> bool:
        """Whether a claimed group has trials left; its last owner may have ended them meanwhile. If not, or if a
        signal comes now, the claim is released."""
        try:
            is_open = bool(self._open_trials(group))
        except BaseException:
            claim.release()
            raise
        if not is_open:
            claim.release()
        return is_open

    def _open_trials(self, group: Group) -> list[Trial]:
        """The trials of a group that are neither done nor failed."""
        return [
            trial
            for trial in group.trials
            if not is_done(record_of(home_of(self.folder, trial))) and read_failure(self.folder, trial) is None
        ]

    def run(self, plan: Plan, group: Group, claim: Claim) -> None:
        """Train what is open in a claimed group, and write down what failed."""
        with claim:
            trials = {trial.name: trial for trial in self._open_trials(group)}
            try:
                failed = self._failures(plan, group, claim, list(trials.values()))
                for name, failure in failed.items():
                    claim.check()
                    note_failure(self.folder, trials[name], failure)
            except ClaimLost as error:
                self._say(f"lost: {error}")
                return
            except RunInUse as error:  # somebody trains or prunes it by hand; another worker may find it free later
                self._say(f"left: {error}")
                self._over.add(group.name)
                return
        for name in trials:
            self._say(f"failed: {name}: {failed[name].message}" if name in failed else f"done: {name}")

    def _failures(self, plan: Plan, group: Group, claim: Claim, trials: list[Trial]) -> dict[str, Failure]:
        if (message := _given_up(claim.record)) is not None:
            return {trial.name: Failure(1, message) for trial in trials}
        for trial in trials:
            _take_over(
                home_of(self.folder, trial), previous_owner(self.folder, group.name, claim.record.generation)
            )
        launch = RunOptions(quiet=self._quiet, fence=claim.check)
        runs = self.folder / RUNS
        members = [
            Member(plan.config_of(trial, runs, allow_import=self._allow_import), home_of(self.folder, trial))
            for trial in trials
        ]
        failed = self._train_group(members, launch)
        return {name: failure_of(error) for name, error in failed.items()}


def _given_up(claim: ClaimRecord) -> str | None:
    """Why a group is not tried again; None if it is."""
    if claim.by_memory >= _MOST_OUT_OF_MEMORY:
        return f"it ended {claim.by_memory} workers in a row without getting further: out of memory"
    if claim.deaths >= _MOST_DEATHS:
        return f"{claim.deaths} workers in a row died in it without getting further; see their logs"
    return None


def failure_of(error: Exception) -> Failure:
    """Exit code and message of what ended a trial, as on the command line; a full disk has its own code."""
    if _is_full_disk(error):
        return Failure(FULL_DISK, one_line(error))
    if isinstance(error, RLTrainingError):
        return Failure(error.exit_code, one_line(error))
    if isinstance(error, MemoryError):
        return Failure(_USAGE, f"out of memory: {one_line(error) or 'an allocation failed'}")
    return Failure(1, f"{type(error).__name__}: {one_line(error)}")


def _is_full_disk(error: BaseException | None) -> bool:
    """Whether an error, or one that it was raised for, is that the disk has no room."""
    while error is not None:
        if isinstance(error, DiskFullError) or (isinstance(error, OSError) and error.errno in files.NO_ROOM):
            return True
        error = error.__cause__ or error.__context__
    return False


def _progress(folder: Path, group: Group) -> int:
    """A number that grows while the trials of a group get on: what they have saved, and how many are done."""
    total = 0
    for trial in group.trials:
        home = home_of(folder, trial)
        steps = [path.name for path in list_checkpoints(home / "checkpoints")]
        total += 1 + int(steps[-1].removeprefix("step_").removesuffix(".old")) if steps else 0
        total += is_done(record_of(home))
    return total


def _take_over(home: Path, before: Owner | None) -> None:
    """Make a run's folder usable whose former owner may still be there, but stalled.

    Such a process holds the lock of the run. The lock is its file's, so a new file has a new lock; nothing is
    unlocked that belongs to anybody but the former owner. Temporary files it was writing are removed.
    """
    lock = home / "lock"
    with contextlib.suppress(OSError, ValueError):
        if before is not None and int(lock.read_text(encoding="ascii")) == before.pid:
            lock.unlink()
    for leftover in home.glob(".tmp-*"):
        with contextlib.suppress(OSError):
            leftover.unlink()


def failed_trials(folder: Path, plan: Plan) -> list[Trial]:
    """The trials that have failed and are not done."""
    return [
        trial
        for trial in plan.trials
        if read_failure(folder, trial) is not None and not is_done(record_of(home_of(folder, trial)))
    ]


def retry_failed(
    folder: Path, plan: Plan, never: Sequence[int] = (), only: Sequence[int] | None = None
) -> list[Trial]:
    """Open the failed trials again, except those of the codes `never`; with `only`, those of these codes alone."""
    again = []
    for trial in plan.trials:
        failure = read_failure(folder, trial)
        if failure is not None and failure.code not in never and (only is None or failure.code in only):
            forget_failure(folder, trial)
            again.append(trial)
    return again


def restart_unfinished(folder: Path, plan: Plan) -> list[Trial]:
    """Remove what trials left that are neither done nor failed and have no checkpoint.

    Checkpoints are not packed: a study that was packed before it was done, and unpacked elsewhere, keeps what is
    done and starts from the beginning what was under way.
    """
    begun = [trial for trial in plan.trials if home_of(folder, trial).is_dir()]
    again = [
        trial
        for trial in begun
        if not is_done(record_of(home_of(folder, trial)))
        and read_failure(folder, trial) is None
        and not list_checkpoints(home_of(folder, trial) / "checkpoints")
    ]
    for trial in again:
        _clear(home_of(folder, trial))
    return again


@contextlib.contextmanager
def _stopping_on_signals() -> Iterator[None]:
    """Between runs a signal ends the worker, which releases its claim; during a run the run's own handlers save."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise TrainingInterrupted("the worker was asked to stop; sweep again to go on", signum)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: Mapping[int, Any] = {
        signum: signal.signal(signum, stop) for signum in STOPPING if signal.getsignal(signum) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        restore_handlers(previous)


@contextlib.contextmanager
def _no_orphan(parent: int | None) -> Iterator[None]:
    """While active, the end of the parent process is a SIGTERM to this one: it saves, lets go and ends."""
    if parent is None:
        yield
        return
    end = threading.Event()

    def watch() -> None:
        while not end.wait(1.0):
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    thread = threading.Thread(target=watch, name="parent", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """The study's number of threads: the bits of a run depend on it."""
    before, said = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    torch.set_num_threads(count)
    os.environ["OMP_NUM_THREADS"] = str(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        if said is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = said
