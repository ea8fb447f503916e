"""The program of a process that evaluates: make the environments, and play with each policy it is sent.

It plays as the run itself would: the same episodes and, with as many threads, the same arithmetic. Its replies are
JSON, because reading them must not run what an environment may have written there.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import sys
import traceback
from dataclasses import asdict, dataclass
from multiprocessing import spawn
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from rl_training import errors
from rl_training.environments.frames import LONGEST_TRACE, WrongMessage
from rl_training.environments.playing import Evaluator, Played, PlayInterrupted
from rl_training.environments.recipe import EnvOrder
from rl_training.errors import LONGEST_CAUSE, EnvironmentFailure, RLTrainingError, cause_of, escaped, one_line
from rl_training.experiment.config import TrainConfig
from rl_training.models.arrays import on_arrays, settled_in
from rl_training.models.policies import Policy
from rl_training.spaces import SpaceSpec


@dataclass(frozen=True)
class Setting:
    """What is the same for every evaluation of a run: the environments are in the order that comes with it."""

    config: dict[str, Any]
    spaces: SpaceSpec
    threads: int


@dataclass(frozen=True)
class Hand:
    """A policy to be played: its modules without their numbers, these numbers `[N]`, and how it computes."""

    policy: Policy
    weights: Any  # a numpy array: a tensor would be sent as a file descriptor
    on_arrays: bool
    episodes: int

    def dealt(self) -> Policy:
        """The policy with its weights, on the CPU."""
        policy = settled_in(self.policy.to_empty(device="cpu"), torch.from_numpy(self.weights))
        return on_arrays(policy) if self.on_arrays else policy


@dataclass(frozen=True)
class Trouble:
    """What an evaluation raised, in words: an exception itself need not survive the way to another process."""

    kind: str
    message: str
    fields: dict[str, Any]
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> Trouble:
        known = isinstance(error, RLTrainingError) and getattr(errors, type(error).__name__, None) is type(error)
        return cls(
            type(error).__name__ if known else "",
            str(error) if known else f"the evaluation failed: {cause_of(error)}",
            dict(vars(error)) if known else {},
            traceback.format_exc()[-LONGEST_TRACE:],
        )

    def raised(self) -> RLTrainingError:
        """The error again, with the traceback it had there as a note."""
        known: Any = getattr(errors, self.kind, None)
        is_ours = isinstance(known, type) and issubclass(known, RLTrainingError)
        kind: type[RLTrainingError] = known if is_ours else EnvironmentFailure
        error = kind.__new__(kind, one_line(self.message, 2 * LONGEST_CAUSE))
        vars(error).update(self.fields)
        error.add_note(escaped(self.trace))
        return error


def reply_message(number: int, reply: Played | Trouble) -> bytes:
    """The reply to hand `number`."""
    if isinstance(reply, Trouble):
        return json.dumps({"number": number, "trouble": asdict(reply)}, default=str).encode()
    return json.dumps({"number": number, "played": {**reply.episodes(), "cut": reply.cut}}).encode()


def reply_of(message: bytes, number: int) -> Played | Trouble:
    """The reverse; raises `WrongMessage` for anything else."""
    try:
        reply = json.loads(message)
        if reply["number"] != number:
            raise WrongMessage(
                f"its process sent reply {reply['number']!r:.20} instead of {number}: a process that the "
                "environment has forked must not return from reset or step"
            )
        if "trouble" in reply:
            trouble = Trouble(**reply["trouble"])
            if not all(isinstance(text, str) for text in (trouble.kind, trouble.message, trouble.trace)):
                raise TypeError
            return Trouble(trouble.kind, trouble.message, dict(trouble.fields), trouble.trace)
        played = reply["played"]
        returns, lengths = np.array(played["returns"], np.float64), np.array(played["lengths"], np.int64)
        return Played(returns, lengths, int(played["cut"]))
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError):
        raise WrongMessage(f"its process sent {len(message):,} bytes that are not a reply") from None


def main(handle: int) -> None:
    """Serve the connection with this file descriptor until its other end is closed, which also ends a game."""
    connection: Connection[Any, Any] = Connection(handle)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError, PlayInterrupted):
        spawn.prepare(connection.recv())
        sys.orig_argv.pop()  # the mark, which the import of a main script had to see; environments may follow
        table = _Table(connection)
        try:
            for number in itertools.count(1):
                connection.send_bytes(reply_message(number, table.play(connection.recv())))
        finally:
            table.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads that an environment left behind do not matter


class _Table:
    """An evaluator made before it is asked for; what fails then is told with the first answer."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._evaluator: Evaluator | None = None
        self._trouble: Trouble | None = None
        self._closed = select.poll()
        self._closed.register(connection.fileno(), select.POLLIN)
        try:
            order: EnvOrder = connection.recv()
            setting: Setting = connection.recv()
            torch.set_num_threads(setting.threads)
            order.prepare()
            self._evaluator = Evaluator(TrainConfig(**setting.config), setting.spaces, order.given)
        except EOFError:
            raise
        except (Exception, SystemExit) as error:
            self._trouble = Trouble.of(error)

    def play(self, hand: Hand) -> Played | Trouble:
        if self._evaluator is None:
            assert self._trouble is not None
            return self._trouble
        try:
            return self._evaluator.play(hand.dealt(), hand.episodes, lambda: bool(self._closed.poll(0)))
        except PlayInterrupted:
            raise
        except (Exception, SystemExit) as error:
            return Trouble.of(error)

    def close(self) -> None:
        if self._evaluator is not None:
            self._evaluator.close()
