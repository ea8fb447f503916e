"""The workers of one sweep, each a process of its own: started, watched, replaced when they die, asked to stop.

Each is `rl-training work FOLDER` in a session of its own, so that Ctrl-C reaches them once, through this process.
If this process is killed they notice, save and end.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rl_training.errors import ConfigError, RLTrainingError
from rl_training.runtime.signals import TrainingInterrupted
from rl_training.study.plan import Plan

LOGS = "logs"
_POLL = 0.2
# Workers that end with an error of their own, or live for moments only, have a reason a new one does not change.
_MOST_ERRORS, _MOST_SHORT_LIVES = 3, 20
_SHORT_LIFE = 10.0
_BY_SIGNAL = 128


@dataclass
class _Process:
    pid: int
    started: float
    ended: bool = False


class Crew:
    """`size` workers on one study."""

    def __init__(
        self, folder: Path, plan: Plan, size: int, gpus: Sequence[str] = (), *, allow_import: bool = False
    ) -> None:
        self._folder, self._plan, self._gpus, self._allow_import = folder, plan, list(gpus), allow_import
        self._crew: list[_Process | None] = [None] * size
        self._errors = self._short_lives = 0
        self._stopped: int | None = None

    def run(self, watch: Callable[[], None]) -> None:
        """Until every worker has found nothing left to claim; `watch` is called every now and then."""
        with self._forwarding():
            try:
                for place in range(len(self._crew)):
                    self._crew[place] = self._start(place)
                while any(self._look_after(place) for place in range(len(self._crew))):
                    watch()
                    time.sleep(_POLL)
            except BaseException:
                self._send(signal.SIGTERM)
                self._wait()
                raise
        watch()
        if self._stopped is not None:
            raise TrainingInterrupted("interrupted; the same command goes on", self._stopped)

    def _start(self, place: int) -> _Process:
        """Start the worker of one place; what it prints goes to a log in the study's folder."""
        command = [sys.executable, "-m", "rl_training", "work", str(self._folder), "--parent", str(os.getpid())]
        command += ["--allow-import"] if self._allow_import else []
        environment = os.environ | {"OMP_NUM_THREADS": str(self._plan.threads)}
        if self._gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self._gpus[place % len(self._gpus)]
        log = self._folder / LOGS / f"worker-{place + 1}.log"
        try:
            log.parent.mkdir(exist_ok=True)
            actions = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ]
            pid = os.posix_spawn(sys.executable, command, environment, file_actions=actions, setsid=True)
        except OSError as error:
            raise ConfigError(f"{log}: a worker cannot be started: {error.strerror or error}") from None
        return _Process(pid, time.monotonic())

    def _look_after(self, place: int) -> bool:
        """Whether the worker of a place is at work; one that died is replaced."""
        process = self._crew[place]
        if process is None or process.ended:
            return False
        pid, status = os.waitpid(process.pid, os.WNOHANG)
        if not pid:
            return True
        process.ended = True
        code = os.waitstatus_to_exitcode(status)
        if code == 0 or code > _BY_SIGNAL or self._stopped is not None:
            return False
        self._errors += code > 0
        self._short_lives = self._short_lives + 1 if time.monotonic() - process.started < _SHORT_LIFE else 0
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
            self._send(signum)

        main = threading.current_thread() is threading.main_thread()  # Python allows handlers there only
        wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if main else ()
        previous = {
            signum: signal.signal(signum, forward)
            for signum in wanted
            if signal.getsignal(signum) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for signum, handler in previous.items():
                signal.signal(signum, handler)

    def _send(self, signum: int) -> None:
        for process in self._crew:
            if process is not None and not process.ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signum)

    def _wait(self) -> None:
        for process in self._crew:
            if process is not None and not process.ended:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, 0)
                process.ended = True


def parse_gpus(text: str | None) -> Sequence[str]:
    """`0,1` as a list; what CUDA_VISIBLE_DEVICES takes: numbers or UUIDs."""
    gpus = [part.strip() for part in (text or "").split(",")] if text else []
    if any(not re.fullmatch(r"[A-Za-z0-9-]+", gpu) for gpu in gpus):
        raise ConfigError(f"--gpus: write 0,1 or UUIDs separated by commas, got {text!r}")
    return gpus
