"""The workers of one sweep: start them, watch them, replace those that die, and stop them.

On one machine each worker is `rl-training work FOLDER` in a separate session, so that Ctrl-C reaches it once,
through this process. If this process is killed, the workers notice, save and exit. For workers on a cluster see
`ray_pool.py`.

A worker reads a request to stop between two steps, and in the middle of an evaluation. While it compiles it cannot,
for minutes. `WorkerProcess` therefore kills a worker that neither exits nor saves.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment import files
from rl_training.platforms import require_posix, stop_handler
from rl_training.runs.signals import TrainingInterrupted
from rl_training.study.claims import read_claim
from rl_training.study.plan import Plan, read_plan
from rl_training.study.trials import home_of

LOGS = "logs"
POLL = 0.2
# A worker that was requested to exit is killed if it writes nothing to its runs for this many seconds.
_PATIENCE = 10.0
# After this many errors, or lives of less than `_SHORT_LIFE` seconds in a row, a new worker would fail again.
_MOST_ERRORS, _MOST_SHORT_LIVES = 3, 20
_SHORT_LIFE = 10.0
_BY_SIGNAL = 128
# Exit code of a worker that lost its GPU. A new one can use it; a trial that loses the GPU again fails.
DEVICE_LOST = 6


class WorkerHandle(ABC):
    """A worker that was started, on this machine or as a task of a cluster."""

    longest_wait = math.inf  # seconds that it has to save after an error

    def __init__(self) -> None:
        self.started, self.ended = time.monotonic(), False

    @abstractmethod
    def exit_code(self) -> int | None:
        """The exit code, negative if it was killed; None while it is running. Call it regularly after `stop`."""

    @abstractmethod
    def stop(self, signum: int) -> None:
        """Request it to save and exit; safe in a signal handler."""

    def wait(self) -> None:
        """Wait until it has exited after `stop`."""
        deadline = time.monotonic() + self.longest_wait
        with contextlib.suppress(ChildProcessError, ConfigError):
            while self.exit_code() is None and time.monotonic() < deadline:
                time.sleep(POLL)
        self.ended = True


class WorkerPool(ABC):
    """`size` workers of one study; the subclass determines where they run."""

    def __init__(self, folder: Path, plan: Plan, size: int, *, allow_import: bool) -> None:
        self._folder, self._plan, self._allow_import = folder, plan, allow_import
        self._workers: list[WorkerHandle | None] = [None] * size
        self._errors = self._short_lives = 0
        self._stopped: int | None = None

    @abstractmethod
    def _start(self, index: int) -> WorkerHandle:
        """Start the worker with this index."""

    def _running(self) -> list[WorkerHandle]:
        return [worker for worker in self._workers if worker is not None and not worker.ended]

    def run(self, watch: Callable[[], None]) -> None:
        """Run until no worker finds anything left to claim; `watch` is called at each poll."""
        with stop_handler(self._forward):
            try:
                for index in range(len(self._workers)):
                    if self._stopped is None:
                        self._begin(index)
                while sum(self._keep_running(index) for index in range(len(self._workers))):
                    watch()
                    time.sleep(POLL)
            except BaseException:
                for worker in self._running():
                    worker.stop(signal.SIGTERM)
                for worker in self._running():
                    worker.wait()
                raise
        watch()
        if self._stopped is not None:
            raise TrainingInterrupted("interrupted; the same command continues", self._stopped)

    def _forward(self, signum: int, frame: FrameType | None) -> None:
        """Send a signal that this process received to the workers; `run` returns when they have exited."""
        self._stopped = self._stopped or signum
        for worker in self._running():
            worker.stop(signum)

    def _keep_running(self, index: int) -> bool:
        """Whether the worker with this index is running; a worker that died is replaced."""
        worker = self._workers[index]
        if worker is None or worker.ended:
            return False
        code = worker.exit_code()
        if code is None:
            return True
        worker.ended = True
        if code == 0 or code > _BY_SIGNAL or self._stopped is not None:
            return False
        self._errors += code > 0 and code != DEVICE_LOST
        self._short_lives = self._short_lives + 1 if time.monotonic() - worker.started < _SHORT_LIFE else 0
        if self._errors >= _MOST_ERRORS or self._short_lives >= _MOST_SHORT_LIVES:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise RLTrainingError(f"workers keep dying, the last by {how}; see {self._folder / LOGS}")
        self._begin(index)
        return True

    def _begin(self, index: int) -> None:
        worker = self._workers[index] = self._start(index)
        if self._stopped is not None:  # the signal came during the start
            worker.stop(signal.SIGTERM)


class LocalPool(WorkerPool):
    """Workers that are processes of this machine, on `gpus` in turn."""

    def __init__(
        self, folder: Path, plan: Plan, size: int, gpus: Sequence[str] = (), *, allow_import: bool = False
    ) -> None:
        super().__init__(folder, plan, size, allow_import=allow_import)
        self._gpus = list(gpus)

    def _start(self, index: int) -> WorkerHandle:
        variables = {"CUDA_VISIBLE_DEVICES": self._gpus[index % len(self._gpus)]} if self._gpus else {}
        return start_worker(self._folder, index, self._plan.threads, variables, allow_import=self._allow_import)


class WorkerProcess(WorkerHandle):
    """A worker of the study in `folder` that is a child of this process and leads a process group.

    `stop` requests it to save and exit. If it does not exit, and none of its runs is written to for `_PATIENCE`
    seconds, it and its children are killed; its runs then resume from their newest checkpoints.
    """

    def __init__(self, pid: int, folder: Path) -> None:
        super().__init__()
        self.pid, self._folder = pid, folder
        self._quiet_since: float | None = None  # monotonic seconds; None until it is requested to exit
        self._written = 0

    def stop(self, signum: int) -> None:
        self._quiet_since = self._quiet_since or time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signum)

    def exit_code(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if self._quiet_since is not None:
            if (written := self._last_write()) != self._written:
                self._written, self._quiet_since = written, time.monotonic()
            elif time.monotonic() - self._quiet_since > _PATIENCE:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
        return None

    def _last_write(self) -> int:
        """When something in a run that this worker trains was last changed, in nanoseconds of the disk's clock."""
        newest = 0
        for group in read_plan(self._folder).groups:
            claim = read_claim(self._folder, group.name)
            if claim is None or claim.released or claim.owner is None or not claim.owner.is_process(self.pid):
                continue
            for trial in group.trials:
                for folder, _, names in os.walk(home_of(self._folder, trial)):
                    for name in ("", *names):
                        with contextlib.suppress(OSError):
                            newest = max(newest, Path(folder, name).stat().st_mtime_ns)
        return newest


def start_worker(
    folder: Path, index: int, threads: int, variables: Mapping[str, str], *, allow_import: bool = False
) -> WorkerProcess:
    """Start a worker as a child of this process.

    Its output goes to a log in the study's folder. `variables` are added to this process's environment variables.
    Signals that are blocked in this process are not blocked in the worker.
    """
    require_posix("a worker of its own", "run what is in the study one by one")
    command = [sys.executable, "-m", "rl_training", "work", str(folder), "--parent", str(os.getpid())]
    command += ["--allow-import"] if allow_import else []
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **variables}
    log = folder / LOGS / f"worker-{index + 1}.log"
    with files.os_errors(f"{log}: a worker cannot be started"):
        log.parent.mkdir(exist_ok=True)
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        pid = os.posix_spawn(sys.executable, command, environment, file_actions=actions, setsid=True, setsigmask=())
    return WorkerProcess(pid, folder)


def parse_gpus(text: str | None) -> Sequence[str]:
    """Split `0,1` into a list of GPUs: numbers or UUIDs, as in CUDA_VISIBLE_DEVICES."""
    gpus = [part.strip() for part in (text or "").split(",")] if text else []
    if any(not re.fullmatch(r"[A-Za-z0-9-]+", gpu) for gpu in gpus):
        raise ConfigError(f"--gpus: write 0,1 or UUIDs separated by commas, got {text!r}")
    return gpus
