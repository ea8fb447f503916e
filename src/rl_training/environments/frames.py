"""Messages between a run and an environment's process: their format, and the run's end of the connection.

A request is a pickle or the raw bytes of an action: both sides store dtype and shape of the last pickled action,
and an action of the same form is sent as bytes. Raw bytes are preceded by a byte with which no pickle starts. An
answer is numbers or text and never a pickle, so that reading it cannot run code. It contains the number of its
request, so that an answer to an earlier request is detected.

The other end is a `multiprocessing` connection: a message is preceded by its length in four bytes.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MARK = b"\x00"
_OBSERVATION, _TRANSITION, _FAILURE = range(3)
# Kind, number of the request, reward, terminated, truncated, success (-1 if the environment does not report it).
_ANSWER = struct.Struct("=BId??b")
_NUMBERS = 1 << 32
_FLOAT = np.dtype(np.float32)
LONGEST_TRACE = 20_000
# Length of a message, its largest value, and the bytes that are read at a time.
_LENGTH = struct.Struct("!i")
_LONGEST = 1 << 28
_AT_ONCE = 1 << 16


class WrongMessage(Exception):
    """The other process sent a message that is not the answer to the last request."""


class Form:
    """Dtype and shape of the last pickled action."""

    def __init__(self) -> None:
        self._known: tuple[np.dtype[Any], tuple[int, ...]] | None = None

    def learn(self, value: Any) -> None:
        self._known = (value.dtype, value.shape) if isinstance(value, np.ndarray | np.generic) else None

    def fits(self, value: Any) -> bool:
        is_array = isinstance(value, np.ndarray | np.generic)
        return is_array and (value.dtype, value.shape) == self._known

    def read(self, message: bytes) -> Any:
        """The action of an `action_message`: a new array, or a scalar."""
        assert self._known is not None
        dtype, shape = self._known
        values = np.frombuffer(message, dtype, offset=len(_MARK))
        return values.reshape(shape).copy() if shape else values[0]


def pickled(message: Any) -> Any:
    return ForkingPickler.dumps(message)


def is_bare(message: bytes) -> bool:
    """Whether a request is the raw bytes of an action rather than a pickle."""
    return message[:1] == _MARK


def action_message(action: Any) -> bytes:
    return _MARK + bytes(action.tobytes())


def answer_message(number: int, status: str, value: Any) -> bytes:
    """Encode an answer of `child.EnvServer` to request `number`: an observation, a transition or an error."""
    if status == "error":
        return _ANSWER.pack(_FAILURE, number % _NUMBERS, 0.0, False, False, -1) + json.dumps(value).encode()
    if isinstance(value, tuple):
        obs, *numbers = value if len(value) == 5 else (*value, -1)
        return _ANSWER.pack(_TRANSITION, number % _NUMBERS, *numbers) + bytes(obs.tobytes())
    return _ANSWER.pack(_OBSERVATION, number % _NUMBERS, 0.0, False, False, -1) + bytes(value.tobytes())


def answer_of(message: bytes | bytearray, number: int, width: int | None) -> tuple[str, Any]:
    """Decode `answer_message`; `width`: the length of an observation, if known."""
    if len(message) < _ANSWER.size or message[0] > _FAILURE:
        raise WrongMessage(f"its process sent {len(message):,} bytes that are not an answer")
    kind, found, reward, terminated, truncated, success = _ANSWER.unpack_from(message)
    if found != number % _NUMBERS:
        raise WrongMessage(
            f"its process sent answer {found:,} instead of {number % _NUMBERS:,}: a process that the environment "
            "has forked must not return from reset or step"
        )
    if kind == _FAILURE:
        return "error", _failure(message[_ANSWER.size :])
    obs = _observation(message, width)
    if kind == _OBSERVATION:
        return "ok", obs
    return "ok", (obs, reward, terminated, truncated, *(() if success < 0 else (bool(success),)))


def _observation(message: bytes | bytearray, width: int | None) -> NDArray[np.float32]:
    count, rest = divmod(len(message) - _ANSWER.size, _FLOAT.itemsize)
    if rest or (width is not None and count != width):
        raise WrongMessage(f"its process sent an observation of {count} numbers, the first had {width}")
    return np.frombuffer(message, _FLOAT, offset=_ANSWER.size).copy()


def _failure(data: bytes | bytearray) -> tuple[str, str]:
    try:
        text, trace = json.loads(data)
    except (ValueError, TypeError, RecursionError):
        raise WrongMessage(f"its process sent {len(data):,} bytes that are not an error") from None
    return str(text), str(trace)


class Channel:
    """Sends and receives whole messages; raises `TimeoutError` after a deadline.

    After an error the connection may be in the middle of a message and must not be used any more.
    """

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._handle = connection.fileno()
        os.set_blocking(self._handle, False)
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._handle, select.POLLIN)
        self._writable.register(self._handle, select.POLLOUT)
        self._received = bytearray()

    def send(self, message: Any, seconds: float) -> None:
        """Send bytes or a buffer."""
        rest = memoryview(_LENGTH.pack(len(message)) + message)
        deadline: float | None = None
        while rest:
            try:
                rest = rest[os.write(self._handle, rest) :]
            except BlockingIOError:
                deadline = deadline or time.monotonic() + seconds
                _wait(self._writable, deadline)

    def receive(self, seconds: float) -> bytearray:
        """The next message; raises `EOFError` if the connection is closed."""
        deadline = time.monotonic() + seconds
        end = self._end()
        while len(self._received) < end:
            _wait(self._readable, deadline)
            data = os.read(self._handle, _AT_ONCE)
            if not data:
                raise EOFError
            self._received += data
            end = self._end()
        message = self._received[_LENGTH.size : end]
        del self._received[:end]
        return message

    def _end(self) -> int:
        """End of the first message in the received bytes; end of its header until that is complete."""
        if len(self._received) < _LENGTH.size:
            return _LENGTH.size
        (length,) = _LENGTH.unpack_from(self._received)
        if not 0 <= length <= _LONGEST:
            raise WrongMessage(f"its process announced a message of {length:,} bytes")
        return _LENGTH.size + int(length)


def _wait(ready: select.poll, deadline: float) -> None:
    if not ready.poll(1_000 * max(0.0, deadline - time.monotonic())):
        raise TimeoutError
