"""A worker: claim a group, train its trials, record what failed, and repeat until nothing is left to claim.

A trial is an ordinary run in the folder that the plan names. Its run.json records whether it is done. A failure,
which may have left no folder, is recorded in `failures/`. A worker that receives a signal saves its run, releases
its claim and exits. If a worker is killed, the next one takes over its claim and resumes the run exactly. A worker
whose GPU fails releases its claim and exits too, because each further trial would fail in the same process.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

from rl_training.display.output import program_name
from rl_training.errors import ClaimLost, ConfigError, DeviceLostError, RunInUse, device_error
from rl_training.experiment import files
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.retention import list_checkpoints, step_of
from rl_training.experiment.runs import RECORD, read_run_record
from rl_training.platforms import require_posix, stop_handler
from rl_training.runs.signals import TrainingInterrupted
from rl_training.runs.spec import RunOptions
from rl_training.runtime.resume import train_in_folders
from rl_training.study.claims import (
    WATCH_INTERVAL,
    Claim,
    ClaimRecord,
    DiskClock,
    Owner,
    is_ahead,
    read_claim,
    take,
)
from rl_training.study.plan import RUNS, Group, Plan, Trial, read_plan
from rl_training.study.trials import (
    FULL_DISK,
    Failure,
    failed_trials,
    failure_of,
    has_failed,
    home_of,
    is_done,
    is_open,
    note_failure,
    record_of,
    reopen,
)

# A trial is given up after this many workers in a row died in it without progress: the first number if the kernel's
# out-of-memory killer ended them, the second if the cause is unknown.
_MOST_OUT_OF_MEMORY, _MOST_DEATHS = 5, 25
# A trial fails if this many workers in a row lost their GPU in it without progress.
_MOST_DEVICE_ERRORS = 2


def _train_group(members: Sequence[tuple[TrainConfig, Path]], options: RunOptions) -> dict[str, Exception]:
    """Train a group as one population, each member from its newest checkpoint; returns errors by folder name."""
    options.fence()
    for _, home in members:
        if not _has_begun(home):
            _clear(home)
    errors = train_in_folders(members, options, begun=_has_begun)
    return {home.name: error for (_, home), error in zip(members, errors) if error is not None}


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
class WorkerResult:
    """Result of a worker: whether others still hold groups, and how many trials of the study have failed."""

    others_hold: bool
    failed: int


def work(
    folder: Path,
    *,
    quiet: bool = True,
    allow_import: bool = False,
    parent: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> WorkerResult:
    """Work on the study in `folder` until nothing is left to claim.

    The worker stops if the process `parent` exits. `say` receives a line for each trial that ends. Raises
    `DeviceLostError` if this process cannot use its GPU any more.
    """
    require_posix("a study", "train its configurations one by one")
    worker, received = _Worker(folder, quiet, allow_import, say), list[int]()

    def stop(signum: int, frame: FrameType | None) -> None:
        """Handle a signal between runs and while one is built; during a run its own handlers save it."""
        received.append(signum)
        raise KeyboardInterrupt  # which the construction of an environment does not take for a failure of its own

    try:
        with stop_handler(stop), _no_orphan(parent), _threads(read_plan(folder).threads):
            while (found := worker.next_claim()) is not None:
                worker.run(*found)
                if worker.lost is not None:
                    raise DeviceLostError(f"{worker.lost}; this process cannot use the GPU any more: run it again")
    except KeyboardInterrupt:
        if not received:  # a second Ctrl-C during a run
            raise
        raise TrainingInterrupted("the worker was asked to stop; sweep again to continue", received[0]) from None
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder}: the study cannot continue: {error.strerror or error}"
        ) from None
    return WorkerResult(worker.others_hold, sum(has_failed(folder, trial) for trial in read_plan(folder).trials))


class _Worker:
    def __init__(self, folder: Path, quiet: bool, allow_import: bool, say: Callable[[str], None]) -> None:
        self.folder, self.me = folder, Owner.me()
        self.others_hold = False
        self.lost: str | None = None  # the error after which this process cannot use its GPU
        self._quiet, self._allow_import, self._say = quiet, allow_import, say
        self._clock = DiskClock(folder)
        self._over: set[str] = set()

    def next_claim(self) -> tuple[Plan, Group, Claim] | None:
        """Claim the first group that is open and free. The plan is read again, as it may have been extended.

        A claim that is dated in the future is watched until it moves, or has not moved for `claim_timeout`.
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
        """Claim the first open and free group; append groups whose claim is dated in the future to `ahead`."""
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
                continue
            with contextlib.ExitStack() as releasing:  # also if a signal arrives
                releasing.enter_context(claim)
                if self._open_trials(group):  # the last owner may have finished them
                    releasing.pop_all()
                    return plan, group, claim
        return None

    def _open_trials(self, group: Group) -> list[Trial]:
        return [trial for trial in group.trials if is_open(self.folder, trial)]

    def run(self, plan: Plan, group: Group, claim: Claim) -> None:
        """Train the open trials of a claimed group, and record those that failed."""
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
            except RunInUse as error:  # a user trains or prunes it; it may be free later for another worker
                self._say(f"left: {error}")
                self._over.add(group.name)
                return
        for name, trial in trials.items():
            if name in failed:
                self._say(f"failed: {name}: {failed[name].message}")
            elif self.lost is not None and is_open(self.folder, trial):
                self._say(f"released: {name}: {self.lost}")
            else:
                self._say(f"done: {name}")

    def _failures(self, plan: Plan, group: Group, claim: Claim, trials: list[Trial]) -> dict[str, Failure]:
        if (message := _given_up(claim.record)) is not None:
            return {trial.name: Failure(1, message) for trial in trials}
        before = read_claim(self.folder, group.name, claim.record.generation - 1)
        for trial in trials:
            _take_over(home_of(self.folder, trial), None if before is None else before.owner)
        options = RunOptions(quiet=self._quiet, fence=claim.check)
        runs = self.folder / RUNS
        members = [
            (plan.config_of(trial, runs, allow_import=self._allow_import), home_of(self.folder, trial))
            for trial in trials
        ]
        try:
            failed = _train_group(members, options)
        except TrainingInterrupted as stopped:
            again = f"{program_name()} sweep {shlex.quote(str(self.folder))}{members[0][0].permission()}"
            raise TrainingInterrupted(f"interrupted; continue with: {again}", stopped.exit_code - 128) from None
        lost = {name: message for name, error in failed.items() if (message := device_error(error)) is not None}
        if lost:
            self.lost, count = next(iter(lost.values())), claim.record.device_errors + 1
            tried_again = count < _MOST_DEVICE_ERRORS
            claim.note_device_errors(count if tried_again else 0)
            failed = {name: error for name, error in failed.items() if not (tried_again and name in lost)}
        return {name: failure_of(error) for name, error in failed.items()}


def _given_up(claim: ClaimRecord) -> str | None:
    """The reason for which a group is given up; None if it is tried again."""
    if claim.by_memory >= _MOST_OUT_OF_MEMORY:
        return f"it ended {claim.by_memory} workers in a row without getting further: out of memory"
    if claim.deaths >= _MOST_DEATHS:
        return f"{claim.deaths} workers in a row died in it without getting further; see their logs"
    return None


def _progress(folder: Path, group: Group) -> int:
    """A number that grows with the progress of a group: the steps saved, plus the number of trials done."""
    total = 0
    for trial in group.trials:
        home = home_of(folder, trial)
        saved = list_checkpoints(home / "checkpoints")
        total += 1 + step_of(saved[-1]) if saved else 0
        total += is_done(record_of(home))
    return total


def _take_over(home: Path, before: Owner | None) -> None:
    """Make a run's folder usable if its previous owner `before` is stalled and still holds the lock of the run.

    The lock belongs to the lock file, so the file is removed and a new one has a new lock. A lock of any other
    process is left alone. Temporary files of the previous owner are removed.
    """
    lock = home / "lock"
    with contextlib.suppress(OSError, ValueError):
        if before is not None and int(lock.read_text(encoding="ascii")) == before.pid:
            lock.unlink()
    for leftover in home.glob(".tmp-*"):
        with contextlib.suppress(OSError):
            leftover.unlink()


def restart_unfinished(folder: Path, plan: Plan) -> list[Trial]:
    """Remove the folders of open trials that have no checkpoint, and return these trials; they start again.

    Packed studies have no checkpoints: if a study is packed before it is done and unpacked elsewhere, its
    unfinished trials start from the beginning, also those that ended because the disk was full.
    """
    reopen(folder, failed_trials(folder, plan, only=(FULL_DISK,)))
    again = []
    for trial in plan.trials:
        home = home_of(folder, trial)
        if home.is_dir() and is_open(folder, trial) and not list_checkpoints(home / "checkpoints"):
            _clear(home)
            again.append(trial)
    return again


@contextlib.contextmanager
def _no_orphan(parent: int | None) -> Iterator[None]:
    """While active, this process receives a SIGTERM if the parent process exits: it saves and exits too."""
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
    """While active, use the study's number of threads, on which the bits of a run depend."""
    before, variable = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    torch.set_num_threads(count)
    os.environ["OMP_NUM_THREADS"] = str(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        if variable is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = variable
