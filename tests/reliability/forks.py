"""Processes that evaluate, forked from one that has their libraries: starting one anew takes seconds of importing.

They are processes like any other, with their own memory, signals and exit codes; only how they came to be differs.
The one they are forked from is itself a fork of the test's process, made before any thread.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import subprocess
import threading
import time
import traceback
import weakref
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe
from typing import Any, NoReturn

import torch

from rl_training.environments import child, player

_START, _COUNT = b"+", b"?"
_NUMBER = 8  # bytes of one
_GLANCE = 0.005  # seconds between two looks who has ended


class Forked:
    """What is used of `subprocess.Popen`; the exit code comes from whoever waits for the process."""

    def __init__(self, news: int) -> None:
        self._news, self._lock = news, threading.Lock()
        self.returncode: int | None = None
        self.pid = _read(news)
        weakref.finalize(self, os.close, news)

    def wait(self, timeout: float) -> int:
        """As a thread that waits for an answer and one that ends the process do at the same time: neither holds up
        the other."""
        if not select.select([self._news], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a forked process", timeout)
        with self._lock:
            if self.returncode is None:
                self.returncode = _read(self._news)
            return self.returncode


class ForkedEnv(Forked):
    """An environment's process, forked from this one."""

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
            time.sleep(_GLANCE / 5)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def start_env(module: str, settings: Mapping[str, str] | None = None) -> tuple[ForkedEnv, Connection[Any, Any]]:
    """In place of `processes.start_child`, for environments."""
    assert module == child.__name__
    here, there = Pipe()
    made = ForkedEnv(there.fileno())
    there.close()
    return made, here


class Nursery:
    """Forks players on request, and knows how many there are; ends with the process that made it."""

    def __init__(self) -> None:
        torch.nn.Linear(1, 1, device="meta").to_empty(device="cpu")  # imports SymPy, as every player else would
        self._socket, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid = os.fork()
        if self._pid == 0:
            self._socket.close()
            _serve(there)
        there.close()

    def start_child(
        self, module: str, settings: Mapping[str, str] | None = None, *, own_group: bool = False
    ) -> tuple[Forked, Connection[Any, Any]]:
        """In place of `processes.start_child`."""
        assert (module, settings, own_group) == (player.__name__, None, True)
        here, there = Pipe()
        news, writing = os.pipe()
        socket.send_fds(self._socket, [_START], [there.fileno(), writing])
        there.close()
        os.close(writing)
        return Forked(news), here

    def count(self) -> int:
        """How many of its players live."""
        self._socket.send(_COUNT)
        return int.from_bytes(self._socket.recv(_NUMBER))

    def close(self) -> None:
        self._socket.close()
        os.waitpid(self._pid, 0)


def _serve(requests: socket.socket) -> NoReturn:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1})
    gc.freeze()  # what is never collected is never copied
    news: dict[int, int] = {}  # where the exit code of each player that lives is told
    while True:
        arrived = select.select([requests], [], [], _GLANCE if news else None)[0]
        _tell_ends(news)
        if not arrived:
            continue
        request, handles, *_ = socket.recv_fds(requests, 1, 2)
        if not request:
            os._exit(len(news))
        if request == _COUNT:
            requests.send(len(news).to_bytes(_NUMBER))
        else:
            connection, telling = handles
            news[_start(connection, telling)] = telling
            os.close(connection)


def _tell_ends(news: dict[int, int]) -> None:
    for pid in list(news):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with contextlib.suppress(BrokenPipeError):  # nobody waits any more
                _write(news[pid], os.waitstatus_to_exitcode(status))
            os.close(news.pop(pid))


def _start(connection: int, telling: int) -> int:
    """Fork a player with a group of its own, and tell its number."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        try:
            player.main(connection)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)  # by whoever is first
    with contextlib.suppress(BrokenPipeError):  # who asked has given up already
        _write(telling, pid)
    return pid


def _write(handle: int, number: int) -> None:
    os.write(handle, number.to_bytes(_NUMBER, signed=True))


def _read(handle: int) -> int:
    return int.from_bytes(os.read(handle, _NUMBER), signed=True)
