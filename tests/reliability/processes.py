"""Processes that tests may kill, forked from this one because libraries take seconds to import."""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.cli import main
from rl_training.errors import RLTrainingError

UNEXPECTED = 99


class Child:
    """A forked process whose output goes to `output`; its exit code is that of the command line."""

    def __init__(self, action: Callable[[], object], output: Path) -> None:
        self.output = output
        self._code: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(_act(action, output))

    def send(self, number: int) -> None:
        """Send a signal to the process if it is still running."""
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def poll(self) -> int | None:
        """The exit code, or minus the number of the signal that ended the process; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, seconds: float = 120.0) -> int:
        deadline = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"still running after {seconds} s:\n{self.text()}")
            time.sleep(0.002)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            self.send(signal.SIGKILL)
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def text(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""


def usual_signals() -> None:
    """Handle Ctrl-C and a closed terminal as a foreground program does; a background job ignores both."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _act(action: Callable[[], object], output: Path) -> int:
    usual_signals()
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout = sys.stderr = os.fdopen(handle, "w", buffering=1)
    try:
        action()
    except RLTrainingError as error:
        print(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else UNEXPECTED
    except BaseException:
        traceback.print_exc()
        return UNEXPECTED
    return 0


def fork_for_spawn(
    program: str, words: list[str], environment: Mapping[str, str], *, file_actions: list[Any], **_: object
) -> int:
    """Replaces `os.posix_spawn` of `python -m rl_training …` by a fork of this process."""
    assert words[1:3] == ["-m", "rl_training"]
    if pid := os.fork():
        return pid
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.environ.update(environment)
    [log] = [action[2] for action in file_actions if action[:2] == (os.POSIX_SPAWN_OPEN, 1)]
    os._exit(_act(command(*words[3:]), Path(log)))


class Ended(NamedTuple):
    """Result of a program, with the attributes of `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


def forked_program(script: Path, *arguments: str, typed: str = "") -> Ended:
    """Run `python script arguments…` in a fork of this process."""
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("in", "out", "err")]
        streams[0].write_text(typed)

        def act() -> None:
            for number, (path, mode) in enumerate(zip(streams, "rww")):
                file = path.open(mode)
                os.dup2(file.fileno(), number)
            sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in enumerate("rww"))
            sys.argv, sys.path[:1] = [str(script), *arguments], [str(script.parent)]
            code: int | str | None = 0
            try:
                runpy.run_path(str(script), run_name="__main__")
            except SystemExit as end:
                code = end.code
            if isinstance(code, str):  # as the interpreter does
                print(code, file=sys.stderr)
                code = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code or 0)

        code = Child(act, Path(folder) / "unexpected").wait()
        return Ended(code, streams[1].read_text(), streams[2].read_text())


def command(*words: object) -> Callable[[], object]:
    """`rl-training` with these arguments, to be run in a child."""
    return lambda: main([str(word) for word in words])


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.002)


def is_there(pid: int) -> bool:
    """Whether a process exists that has not exited."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"
