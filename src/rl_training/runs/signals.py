"""Signals end a run after its current step and a checkpoint; SIGUSR1 only saves; a second Ctrl-C aborts at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

from rl_training.errors import RLTrainingError
from rl_training.platforms import SAVING, STOPPING, restore_handlers

_ERASE_LINE = "\r\x1b[K"


class TrainingInterrupted(RLTrainingError):
    """A signal ended the run, and its state is saved."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signum


class SignalGuard:
    """Signal handlers that set flags, which the session reads after each step.

    For a single run `stops`, `saves` and `time` are always up to date. A population calls `renew` between two steps
    of all members; between two calls the values do not change, so that all members save or end at the same step.

    Outside the main thread Python does not allow handlers, and signals keep their default behaviour. A signal that
    is ignored when the run starts (SIGHUP under nohup) stays ignored.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.saves_requested = 0  # every run compares this count with the requests it has handled
        self._previous: dict[int, Any] = {}
        self._fixed: tuple[bool, int, float] | None = None

    def _now(self) -> tuple[bool, int, float]:
        return self._fixed or (self.received is not None, self.saves_requested, time.monotonic())

    def renew(self) -> None:
        """Set `stops`, `saves` and `time` to their current values until the next call."""
        self._fixed = None
        self._fixed = self._now()

    @property
    def stops(self) -> bool:
        """Whether runs must end after their current step."""
        return self._now()[0]

    @property
    def saves(self) -> int:
        """Number of requests to save."""
        return self._now()[1]

    @property
    def time(self) -> float:
        """Monotonic seconds."""
        return self._now()[2]

    def __enter__(self) -> SignalGuard:
        self.catch()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def catch(self) -> None:
        """Install the handlers if they are not installed."""
        if self._previous or threading.current_thread() is not threading.main_thread():
            return
        for signum in STOPPING:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                self._previous[signum] = signal.signal(signum, self._stop)
        if SAVING is not None:
            self._previous[SAVING] = signal.signal(SAVING, self._save)

    def release(self) -> None:
        """Restore the previous handlers."""
        restore_handlers(self._previous)

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        if self.received is not None and signum == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is None:
            again = "; again to abort" if signum == signal.SIGINT else ""
            _write_stderr(f"{signal.Signals(signum).name}: ending this step and saving{again}\n")
        self.received = signum

    def _save(self, signum: int, frame: FrameType | None) -> None:
        self.saves_requested += 1


def _write_stderr(text: str) -> None:
    """Write to standard error without Python's buffers, because a handler may run during a buffered write.

    On a terminal the text replaces the progress bar, which is redrawn below it.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        stream = sys.stderr.fileno()
        has_bar = os.isatty(stream) and os.environ.get("TERM", "dumb") != "dumb"
        os.write(stream, f"{_ERASE_LINE if has_bar else ''}{text}".encode())
