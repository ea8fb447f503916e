"""Fork environment processes, because starting them anew takes seconds of imports.

They have their own memory, signals and exit codes like any other process; only the start differs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe
from typing import Any

from rl_training.environments import child

_GLANCE = 0.001  # seconds between two checks whether the process has ended


class ForkedEnv:
    """An environment process forked from this one, with the used part of the interface of `subprocess.Popen`."""

    def __init__(self, connection: int) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                child.main(connection)
            except BaseException:
                traceback.print_exc()
            os._exit(1)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            time.sleep(_GLANCE)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def start_env(module: str, settings: Mapping[str, str] | None = None) -> tuple[ForkedEnv, Connection[Any, Any]]:
    """Replaces `processes.start_child` for environments."""
    assert module == child.__name__
    here, there = Pipe()
    made = ForkedEnv(there.fileno())
    there.close()
    return made, here
