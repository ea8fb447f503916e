"""An environment in a separate process, whose errors, death and timeouts are reported to the run.

Answers are numbers and text (`frames.py`), so reading them runs no code. The child runs its own program
(`child.py`), because multiprocessing would import the caller's main script, and with it torch, in every child.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping
from multiprocessing import spawn
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl_training.environments import frames
from rl_training.environments.child import MARK, is_env_process
from rl_training.environments.pool import CLOSING_SECONDS, Transition
from rl_training.environments.recipe import EnvOrder
from rl_training.environments.user_environments import UserEnvironments
from rl_training.errors import LONGEST_CAUSE, escaped, one_line
from rl_training.platforms import STOPPING, duplicate, require_posix

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig

Process = subprocess.Popen[bytes]
# A new interpreter may take long to import its libraries before its first answer.
START_SECONDS = 120.0
# Environments run in parallel already; the user's own values take precedence.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def guard(value: str) -> str:
    """The advice for a main script without the `__main__` guard; `value` of the setting `environments`."""
    return (
        f"with environments: {value} a script that defines its environment needs "
        '`if __name__ == "__main__":` around its training call'
    )


class EnvProcessDied(Exception):
    """The child ended without an answer."""


class EnvTimeout(Exception):
    """The child did not answer in time."""


class ChildError(Exception):
    """The environment raised in its process; its traceback is attached as a note."""


def value_of(status: str, value: Any) -> Any:
    """The value of an answer; raises `ChildError` if it is an error."""
    if status == "error":
        message, trace = value
        failure = ChildError(one_line(message, LONGEST_CAUSE))
        failure.add_note(escaped(trace[-frames.LONGEST_TRACE :]))
        raise failure
    return value


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals in new children: Ctrl-C reaches the whole process group, but the run ends its children."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*STOPPING, signal.SIGUSR1})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def import_path() -> list[str]:
    """`sys.path` with the current folder in place of the empty string."""
    return [os.getcwd() if place == "" else str(place) for place in sys.path]  # noqa: PTH109


def start_child(module: str, settings: Mapping[str, str] | None = None) -> tuple[Process, Connection[Any, Any]]:
    """Start a child that runs `module.main`, and return it with its connection.

    It has the interpreter, flags, path and environment variables of this process; `settings` adds missing ones.
    """
    require_posix("environments: processes", "set environments to local")
    here, child = Pipe()
    path = f"import sys; sys.path[:] = {import_path()!a}"
    interpreter = spawn.get_command_line()[:-3]  # without multiprocessing's own program
    # Not the number of a standard stream, which may be closed here and which the child replaces.
    handle = duplicate(child.fileno(), 3)
    try:
        with _signals_blocked():
            process = subprocess.Popen(  # noqa: S603
                [*interpreter, "-c", f"{path}; from {module} import main; main({handle})", MARK],
                stdin=subprocess.DEVNULL,
                pass_fds=(handle,),
                env={**(settings or {}), **os.environ},
            )
    finally:
        os.close(handle)
        child.close()
    return process, here


def how_it_ended(process: Process, *, answered: bool, advice: str) -> str:
    """Describe how a child with a closed connection ended; `advice` is added if it never answered."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
    code = process.returncode
    if code is None:
        return "its process closed the connection without ending"
    if code < 0:
        return f"its process was killed by signal {-code}"
    hint = "" if answered else " before its first answer"
    # A main script without the guard trains again when it is imported, which ends the child.
    return f"its process ended with exit code {code}{hint}{f'; {advice}' if hint and advice else ''}"


def preparation(main: bool) -> dict[str, Any]:
    """The argument of `spawn.prepare` in the child: sets `sys.argv` and, if `main`, imports the main script."""
    data = spawn.get_preparation_data("environment")
    keys = ("name", "sys_argv", "init_main_from_name", "init_main_from_path")
    return {key: data[key] for key in (keys if main else keys[:2]) if key in data}


def _end(owner: int, process: Process, connection: Connection[Any, Any]) -> None:
    if os.getpid() != owner:  # called in a fork of this process
        return
    connection.close()
    if process.poll() is None:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)


class ProcessEnv:
    """An environment in a child process; the child is killed if it does not answer within `env_timeout`."""

    def __init__(self, config: TrainConfig, given: UserEnvironments | None = None) -> None:
        if is_env_process():
            raise RuntimeError(guard("processes"))
        order, self._imports_main = EnvOrder.of(config, given).packed()
        self._timeout = config.env_timeout
        self._started = False
        self._process, self._connection = start_child("rl_training.environments.child", _ONE_THREAD)
        self._finalizer = weakref.finalize(self, _end, os.getpid(), self._process, self._connection)
        self._channel = frames.Channel(self._connection)
        self._requests = 0
        self._width: int | None = None  # length of an observation
        with contextlib.suppress(OSError):  # the first request reports a dead child
            self._channel.send(frames.pickled(preparation(self._imports_main)), START_SECONDS)
            self._channel.send(order, START_SECONDS)
        self._actions = frames.Form()

    def reset(self, seed: int) -> NDArray[np.float32]:
        self._request(frames.pickled(("reset", seed)))
        obs: NDArray[np.float32] = self._answer()
        self._width = len(obs)
        return obs

    def send(self, action: Any) -> None:
        if self._actions.fits(action):
            self._request(frames.action_message(action))
        else:
            self._request(frames.pickled(("step", action)))
            self._actions.learn(action)

    def receive(self) -> Transition:
        return Transition(*self._answer())

    @property
    def _patience(self) -> float:
        return self._timeout if self._started else max(self._timeout, START_SECONDS)

    def _request(self, message: Any) -> None:
        self._requests += 1
        try:
            self._channel.send(message, self._patience)
        except OSError as error:
            raise self._failure(error) from None

    def _answer(self) -> Any:
        try:
            message = self._channel.receive(self._patience)
            status, value = frames.answer_of(message, self._requests, self._width)
        except (EOFError, OSError, frames.WrongMessage) as error:
            raise self._failure(error) from None
        self._started = True
        return value_of(status, value)

    def _failure(self, error: Exception) -> Exception:
        """The exception for a failed message; kills a child that timed out or sent a wrong message."""
        if isinstance(error, TimeoutError):
            self._process.kill()
            return EnvTimeout(
                f"its process did not answer within {self._patience:g} s and was killed (env_timeout)"
            )
        if isinstance(error, frames.WrongMessage):
            self._process.kill()
            return error
        advice = guard("processes") if self._imports_main else ""
        return EnvProcessDied(how_it_ended(self._process, answered=self._started, advice=advice))

    def ask_to_close(self) -> None:
        if self._started:  # otherwise it may still be creating its environment
            with contextlib.suppress(OSError):
                self._channel.send(frames.pickled(("close", None)), 0.0)

    def close(self, seconds: float = CLOSING_SECONDS) -> None:
        if self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        self._finalizer()
