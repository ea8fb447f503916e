"""The program of an environment's process: creates the environment and serves requests until it is closed.

It does not import torch and pydantic, which would cost every process seconds and two hundred megabytes.
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

# The last argument of such a process's command line.
MARK = "rl-training-environment"


def is_env_process() -> bool:
    """Whether this is an environment's process, which may be importing the main script again."""
    return sys.orig_argv[-1:] == [MARK]


def mark_env_process() -> None:
    """Mark a process that was not started by `processes.py` as an environment's process."""
    sys.orig_argv.append(MARK)


def main(handle: int) -> None:
    """Serve the connection with this file descriptor; exits when the parent closes it."""
    connection: Connection[Any, Any] = Connection(handle)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        spawn.prepare(connection.recv())
        _serve(connection, EnvServer(connection.recv_bytes()))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # as in multiprocessing; does not wait for threads of the environment


class EnvServer:
    """Creates the environment at once, so that several start in parallel; the first answer reports an error."""

    def __init__(self, order: bytes, prepare: Callable[[], None] = lambda: None) -> None:
        """`prepare` is called before `order` is unpickled."""
        self.env: LocalEnv | None = None
        self._failure: tuple[str, str] | None = None
        try:
            prepare()
            unpacked: EnvOrder = pickle.loads(order)  # noqa: S301 - from the process that started this one
            unpacked.prepare()
            self.env = LocalEnv(unpacked.recipe, unpacked.given)
        except (Exception, SystemExit) as error:
            self._failure = _error_texts(error)

    def answer(self, command: str, argument: Any) -> tuple[str, Any]:
        """("ok", value) or ("error", (message, traceback))."""
        if self.env is None:
            return "error", self._failure
        try:
            if command == "reset":
                return "ok", self.env.reset(argument)
            self.env.send(argument)
            result = self.env.receive()
        except (Exception, SystemExit) as error:
            return "error", _error_texts(error)
        success = () if result.success is None else (result.success,)
        return "ok", (result.obs, result.reward, result.terminated, result.truncated, *success)

    def close(self) -> None:
        if self.env is not None:
            self.env.close()


def _error_texts(error: BaseException) -> tuple[str, str]:
    return cause_of(error), traceback.format_exc()[-frames.LONGEST_TRACE :]


def _serve(connection: Connection[Any, Any], server: EnvServer) -> None:
    actions = frames.Form()
    for number in itertools.count(1):
        message = connection.recv_bytes()
        if frames.is_bare(message):
            command, argument = "step", actions.read(message)
        else:
            command, argument = pickle.loads(message)  # noqa: S301 - from the process that started this one
        if command == "close":
            server.close()
            return
        if command == "step":
            actions.learn(argument)
        connection.send_bytes(frames.answer_message(number, *server.answer(command, argument)))
