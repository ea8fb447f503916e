"""Evaluations in processes of their own, so that a run goes on while its policies are played.

Not in a thread: an environment in Python holds the interpreter's lock, for which every call that a training loop
makes on its device would wait milliseconds. The processes have torch, because a policy must act there as it acts
here; the run waits for none of them before it asks for a result.
"""

from __future__ import annotations

import contextlib
import copy
import os
import queue
import socket
import threading
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from rl_training.environments.child import is_env_process
from rl_training.environments.frames import WrongMessage
from rl_training.environments.player import Hand, Setting, Trouble, reply_of
from rl_training.environments.playing import Evaluator, Played, PlayInterrupted
from rl_training.environments.processes import (
    Process,
    end_group,
    guard,
    how_it_ended,
    preparation,
    start_child,
)
from rl_training.environments.recipe import EnvOrder
from rl_training.errors import EnvironmentFailure
from rl_training.memory import available_cores
from rl_training.models.policies import Policy

_MOST = 8
# Seconds between two looks whether a signal has come, and those that a process has to end by itself.
_GLANCE, _PATIENCE = 0.05, 2.0
# Seconds until one that is ending has unloaded its libraries and can be asked how.
_LONGEST_END = 10.0
_LONGEST_REPLY = 1 << 28  # bytes


class Game:
    """An evaluation that was asked for."""

    def __init__(self, hand: Hand) -> None:
        self.hand = hand
        self.over = threading.Event()
        self.wanted = True
        self.played: Played | None = None
        self.error: BaseException | None = None

    def result(self, interrupted: Callable[[], bool]) -> Played:
        """Wait for the end; raises what was raised there, or `PlayInterrupted` as soon as `interrupted()`."""
        while not self.over.wait(_GLANCE):
            if interrupted():
                raise PlayInterrupted
        if self.error is not None:
            raise self.error
        assert self.played is not None
        return self.played


class Players:
    """Processes that play for one run, or for the members of a population, so many at a time.

    Whoever uses them says `open` and `close`; the last one to leave ends the processes.
    """

    def __init__(self, evaluator: Evaluator, most: int | None = None) -> None:
        """Raises a `ConfigError` where another process cannot make the environments of `evaluator`."""
        if is_env_process():
            raise RuntimeError(guard("true", "evaluate_beside"))
        order, main = EnvOrder.of(evaluator.config, evaluator.given).packed()
        setting = Setting(evaluator.config.to_dict(), evaluator.spaces, torch.get_num_threads())
        self._start = lambda: _Process(order, main, setting)
        self._most = most or max(1, min(_MOST, available_cores() - 1))
        self._players: list[_Player] = []
        self._games: list[Game] = []  # those that are not over
        self._queue: queue.SimpleQueue[Game | None] = queue.SimpleQueue()
        self._users = 0

    def open(self) -> None:
        self._users += 1

    def prepare(self) -> None:
        """Start the first process: that takes seconds, which training can use."""
        if not self._players:
            self._add()

    def _add(self) -> None:
        self._players.append(_Player(self._queue, self._start))

    def play(self, policy: Policy, weights: torch.Tensor, episodes: int, *, on_arrays: bool) -> Game:
        """Have `policy` played with these weights `[N]`, whatever it has itself, as soon as a process is free."""
        modules = copy.deepcopy(policy).to("meta").requires_grad_(False)
        game = Game(Hand(modules, weights.numpy(), on_arrays, episodes))
        self._games = [one for one in self._games if not one.over.is_set()] + [game]
        if len(self._players) < min(len(self._games), self._most):
            self._add()
        self._queue.put(game)
        return game

    def close(self) -> None:
        self._users -= 1
        if self._users > 0:
            return
        players, self._players = self._players, []
        for game in self._games:
            game.wanted = False
        for _ in players:
            self._queue.put(None)
        self._queue = queue.SimpleQueue()  # for those who open it again
        for player in players:
            player.close()


class _Player:
    """A thread that hands games to its process and waits for them; it holds nothing but the pipe meanwhile."""

    def __init__(self, games: queue.SimpleQueue[Game | None], start: Callable[[], _Process]) -> None:
        self._games, self._start = games, start
        self._process: _Process | None = None
        self._closed, self._lock = False, threading.Lock()
        self._thread = threading.Thread(target=self._work, name="evaluations", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        with contextlib.suppress(Exception):  # it is tried again with the first game
            self._present()
        while (game := self._games.get()) is not None:
            try:
                if game.wanted:
                    game.played = self._present().play(game.hand)
            except BaseException as error:
                game.error = error
            game.over.set()
            if game.error is not None:
                self._dismiss()

    def _present(self) -> _Process:
        with self._lock:
            if self._closed:
                raise EnvironmentFailure("the evaluation was ended")
            if self._process is None:
                self._process = self._start()
            return self._process

    def _dismiss(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.end()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._dismiss()
        self._thread.join(_PATIENCE)


class _Process:
    """A player's process. It ends when the connection does, or is killed with all that it has started."""

    def __init__(self, order: bytes, main: bool, setting: Setting) -> None:
        self._advice, self._answered = guard("true", "evaluate_beside") if main else "", False
        self._hands = 0
        self._process, self._connection = start_child("rl_training.environments.player", own_group=True)
        self._finalizer = weakref.finalize(self, _end, os.getpid(), self._process, self._connection)
        with contextlib.suppress(OSError):  # one that is dead already is reported when it is asked
            self._connection.send(preparation(main))
            self._connection.send_bytes(order)
            self._connection.send(setting)

    def play(self, hand: Hand) -> Played:
        try:
            self._hands += 1
            self._connection.send(hand)
            answer = reply_of(self._connection.recv_bytes(_LONGEST_REPLY), self._hands)
        except WrongMessage as error:
            raise EnvironmentFailure(f"the evaluation failed: {error}") from None
        except (EOFError, OSError):
            ended = how_it_ended(self._process, answered=self._answered, advice=self._advice, patience=_LONGEST_END)
            raise EnvironmentFailure(f"the evaluation failed: {ended}") from None
        self._answered = True
        if isinstance(answer, Trouble):
            raise answer.raised()
        return answer

    def end(self) -> None:
        self._finalizer()


def _end(owner: int, process: Process, connection: Connection[Any, Any]) -> None:
    if os.getpid() != owner:  # a fork of this process ends
        return
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)  # not closed at once: a thread may be waiting at it
    end_group(process, _PATIENCE)
    connection.close()
