"""An environment in a process of its own: it may raise, die or hang, and the run learns which and why.

Messages over the pipe are plain tuples of arrays and numbers made by this package's own child; nothing read from a
file passes through it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import traceback
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.environments.given import Given
from rl_training.environments.pool import LocalEnv, Transition
from rl_training.experiment.config import TrainConfig

# A fresh interpreter takes seconds to import its libraries before it can answer for the first time.
_START_SECONDS = 120.0
_GUARD = 'with env_processes a script needs `if __name__ == "__main__":` around its training call'


class EnvProcessDied(Exception):
    """The child ended without answering; the message says how."""


class EnvTimeout(Exception):
    """The child did not answer in time."""


class ChildError(Exception):
    """The environment raised inside its process; its own traceback is attached as a note."""


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Children started meanwhile never get these: Ctrl-C goes to the whole group, but the run decides what ends."""
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1}
    resource_tracker.ensure_running()  # otherwise started with the child; its start unblocks signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, config: TrainConfig, given: Given | None) -> None:
    """The child's loop: answer each request with ("ok", value) or ("error", traceback)."""
    env: LocalEnv | None = None
    while True:
        try:
            command, argument = connection.recv()
        except EOFError:
            return
        if command == "close":
            if env is not None:
                env.close()
            return
        try:
            if env is None:
                env = LocalEnv(config, given)
            if command == "reset":
                connection.send(("ok", env.reset(argument)))
            else:
                env.send(argument)
                result = env.receive()
                connection.send(("ok", (result.obs, result.reward, result.terminated, result.truncated)))
        except (Exception, SystemExit) as error:
            connection.send(("error", (f"{type(error).__name__}: {error}", traceback.format_exc())))


class ProcessEnv:
    """`LocalEnv` across a pipe; a child that does not answer within `env_timeout` is killed."""

    def __init__(self, config: TrainConfig, given: Given | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self._timeout = config.env_timeout
        self._connection, child = context.Pipe()
        self._process = context.Process(target=_serve, args=(child, config, given), daemon=True)
        with _signals_held():
            self._process.start()
        child.close()
        self._started = False

    def reset(self, seed: int) -> NDArray[np.float32]:
        self._request("reset", seed)
        obs: NDArray[np.float32] = self._answer()
        return obs

    def send(self, action: Any) -> None:
        self._request("step", action)

    def receive(self) -> Transition:
        return Transition(*self._answer())

    def _request(self, command: str, argument: Any) -> None:
        try:
            self._connection.send((command, argument))
        except (BrokenPipeError, OSError):
            raise EnvProcessDied(self._how_it_ended()) from None

    def _answer(self) -> Any:
        patience = self._timeout if self._started else max(self._timeout, _START_SECONDS)
        try:
            if not self._connection.poll(patience):
                self._process.kill()
                raise EnvTimeout(f"its process did not answer within {patience:g} s and was killed (env_timeout)")
            status, value = self._connection.recv()
        except (EOFError, ConnectionResetError):
            raise EnvProcessDied(self._how_it_ended()) from None
        self._started = True
        if status == "error":
            message, trace = value
            failure = ChildError(message)
            failure.add_note(trace)
            raise failure
        return value

    def _how_it_ended(self) -> str:
        self._process.join(1.0)
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"its process was killed by signal {-code}"
        # The child imports the main script again; one that trains while being imported ends it right there.
        hint = "" if self._started else f" before its first answer; {_GUARD}"
        return f"its process ended with exit code {code}{hint}"

    def close(self) -> None:
        if self._started:  # one that never answered has made no environment to close
            with contextlib.suppress(BrokenPipeError, OSError):
                self._connection.send(("close", None))
            self._process.join(1.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(1.0)
        self._connection.close()
