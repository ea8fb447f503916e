"""The program of an environment's own process: make the environment, and answer for it until told to end.

It imports Gymnasium and what makes an environment. torch and pydantic are not among it: they would cost every
process seconds and two hundred megabytes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from multiprocessing import spawn
from multiprocessing.connection import Connection
from typing import Any

from rl_training.environments import frames
from rl_training.environments.pool import LocalEnv
from rl_training.environments.recipe import EnvOrder
from rl_training.errors import cause_of

# The last word of such a process's command line.
MARK = "rl-training-environment"


def is_env_process() -> bool:
    """Whether this process is an environment's, in which the main script may be running for the second time."""
    return sys.orig_argv[-1:] == [MARK]


def be_env_process() -> None:
    """Mark a process that somebody else has started, and that is now an environment's."""
    sys.orig_argv.append(MARK)


def main(handle: int) -> None:
    """Serve the connection with this file descriptor; its other end closed means that nobody is there any more."""
    connection: Connection[Any, Any] = Connection(handle)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        spawn.prepare(connection.recv())
        _serve(connection, Served(connection.recv_bytes()))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # as multiprocessing ends its processes: threads that an environment left behind do not matter


class Served:
    """An environment made before it is asked for, so that several are made side by side; a failure waits too."""

    def __init__(self, order: bytes, prepare: Callable[[], None] = lambda: None) -> None:
        """`prepare` is what must be done before the order can be read."""
        self.env: LocalEnv | None = None
        self._failure: tuple[str, str] | None = None
        try:
            prepare()
            self.env = _made(pickle.loads(order))  # noqa: S301 - from the process that started this one
        except (Exception, SystemExit) as error:
            self._failure = _told(error)

    def answer(self, command: str, argument: Any) -> tuple[str, Any]:
        """("ok", value) or ("error", its line and its traceback)."""
        if self.env is None:
            return "error", self._failure
        try:
            if command == "reset":
                return "ok", self.env.reset(argument)
            self.env.send(argument)
            result = self.env.receive()
        except (Exception, SystemExit) as error:
            return "error", _told(error)
        return "ok", (result.obs, result.reward, result.terminated, result.truncated)

    def close(self) -> None:
        if self.env is not None:
            self.env.close()


def _made(order: EnvOrder) -> LocalEnv:
    order.prepare()
    return LocalEnv(order.recipe, order.given)


def _told(error: BaseException) -> tuple[str, str]:
    return cause_of(error), traceback.format_exc()[-frames.LONGEST_TRACE :]


def _serve(connection: Connection[Any, Any], served: Served) -> None:
    actions = frames.Form()
    for number in itertools.count(1):
        message = connection.recv_bytes()
        if frames.is_bare(message):
            command, argument = "step", frames.action_of(message, actions)
        else:
            command, argument = pickle.loads(message)  # noqa: S301 - from the process that started this one
        if command == "close":
            served.close()
            return
        if command == "step":
            actions.learn(argument)
        connection.send_bytes(frames.answer_message(number, *served.answer(command, argument)))
