"""The workers of one sweep: started, watched, replaced when they die, asked to stop.

On one machine each is `rl-training work FOLDER` in a session of its own, so that Ctrl-C reaches them once, through
this process. If this process is killed they notice, save and end. On a cluster they are children of somebody else's
processes (`ray_crew.py`).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from rl_training.errors import ConfigError, RLTrainingError
from rl_training.platforms import STOPPING, require_posix, restore_handlers
from rl_training.runs.signals import TrainingInterrupted
from rl_training.study.plan import Plan

LOGS = "logs"
_POLL = 0.2
# Workers that end with an error of their own, or live for moments only, have a reason a new one does not change.
_MOST_ERRORS, _MOST_SHORT_LIVES = 3, 20
_SHORT_LIFE = 10.0
_BY_SIGNAL = 128


@dataclass
class Worker:
    """One worker at its place; `handle` is how its crew knows it."""

    handle: Any
    started: float = field(default_factory=time.monotonic)
    ended: bool = False


class Workers(ABC):
    """`size` workers on one study, wherever they run."""

    def __init__(self, folder: Path, plan: Plan, size: int, *, allow_import: bool = False) -> None:
        self._folder, self._plan, self._allow_import = folder, plan, allow_import
        self._crew: list[Worker | None] = [None] * size
        self._errors = self._short_lives = 0
        self._stopped: int | None = None

    @abstractmethod
    def _start(self, place: int) -> Worker:
        """Start the worker of one place."""

    @abstractmethod
    def _ended(self, worker: Worker) -> int | None:
        """A worker's exit code, below 0 for one that was killed; None while it is at work."""

    @abstractmethod
    def _send(self, worker: Worker, signum: int) -> None:
        """Ask a worker to save and end."""

    @abstractmethod
    def _wait(self, worker: Worker) -> None:
        """Until a worker that was asked to end has ended."""

    def _at_work(self) -> list[Worker]:
        return [worker for worker in self._crew if worker is not None and not worker.ended]

    def run(self, watch: Callable[[], None]) -> None:
        """Until every worker has found nothing left to claim; `watch` is called every now and then."""
        with self._forwarding():
            try:
                for place in range(len(self._crew)):
                    self._crew[place] = self._start(place) if self._stopped is None else None
                while any(self._look_after(place) for place in range(len(self._crew))):
                    watch()
                    time.sleep(_POLL)
            except BaseException:
                for worker in self._at_work():
                    self._send(worker, signal.SIGTERM)
                for worker in self._at_work():
                    self._wait(worker)
                raise
        watch()
        if self._stopped is not None:
            raise TrainingInterrupted("interrupted; the same command goes on", self._stopped)

    def _look_after(self, place: int) -> bool:
        """Whether the worker of a place is at work; one that died is replaced."""
        worker = self._crew[place]
        if worker is None or worker.ended:
            return False
        code = self._ended(worker)
        if code is None:
            return True
        worker.ended = True
        if code == 0 or code > _BY_SIGNAL or self._stopped is not None:
            return False
        self._errors += code > 0
        self._short_lives = self._short_lives + 1 if time.monotonic() - worker.started < _SHORT_LIFE else 0
        if self._errors >= _MOST_ERRORS or self._short_lives >= _MOST_SHORT_LIVES:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise RLTrainingError(f"workers keep dying, the last by {how}; see {self._folder / LOGS}")
        self._crew[place] = self._start(place)
        return True

    @contextlib.contextmanager
    def _forwarding(self) -> Iterator[None]:
        """Signals to this process go to the workers, and the loop ends when they have."""

        def forward(signum: int, frame: FrameType | None) -> None:
            self._stopped = self._stopped or signum
            for worker in self._at_work():
                self._send(worker, signum)

        main = threading.current_thread() is threading.main_thread()  # Python allows handlers there only
        wanted = STOPPING if main else ()
        previous = {
            signum: signal.signal(signum, forward)
            for signum in wanted
            if signal.getsignal(signum) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            restore_handlers(previous)


class Crew(Workers):
    """Workers that are processes of this machine."""

    def __init__(
        self, folder: Path, plan: Plan, size: int, gpus: Sequence[str] = (), *, allow_import: bool = False
    ) -> None:
        super().__init__(folder, plan, size, allow_import=allow_import)
        self._gpus = list(gpus)

    def _start(self, place: int) -> Worker:
        variables = {"CUDA_VISIBLE_DEVICES": self._gpus[place % len(self._gpus)]} if self._gpus else {}
        return Worker(
            start_worker(self._folder, place, self._plan.threads, variables, allow_import=self._allow_import)
        )

    def _ended(self, worker: Worker) -> int | None:
        pid, status = os.waitpid(worker.handle, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def _send(self, worker: Worker, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.handle, signum)

    def _wait(self, worker: Worker) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(worker.handle, 0)
        worker.ended = True


def start_worker(
    folder: Path, place: int, threads: int, variables: Mapping[str, str], *, allow_import: bool = False
) -> int:
    """Start a worker as a child of this process; what it prints goes to a log in the study's folder.

    `variables` are its own beside those of this process. Signals that are blocked here are not blocked there.
    """
    require_posix("a worker of its own", "run what is in the study one by one")
    command = [sys.executable, "-m", "rl_training", "work", str(folder), "--parent", str(os.getpid())]
    command += ["--allow-import"] if allow_import else []
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **variables}
    log = folder / LOGS / f"worker-{place + 1}.log"
    try:
        log.parent.mkdir(exist_ok=True)
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        return os.posix_spawn(
            sys.executable, command, environment, file_actions=actions, setsid=True, setsigmask=()
        )
    except OSError as error:
        raise ConfigError(f"{log}: a worker cannot be started: {error.strerror or error}") from None


def parse_gpus(text: str | None) -> Sequence[str]:
    """`0,1` as a list; what CUDA_VISIBLE_DEVICES takes: numbers or UUIDs."""
    gpus = [part.strip() for part in (text or "").split(",")] if text else []
    if any(not re.fullmatch(r"[A-Za-z0-9-]+", gpu) for gpu in gpus):
        raise ConfigError(f"--gpus: write 0,1 or UUIDs separated by commas, got {text!r}")
    return gpus
