"""Message format between a run and an environment's process.

A request is a pickle or the raw bytes of an action: both sides store dtype and shape of the last pickled action,
and an action of the same form is sent as bytes. Raw bytes are preceded by a byte with which no pickle starts. An
answer is numbers or text and never a pickle, so that reading it cannot run code. It contains the number of its
request, so that an answer to an earlier request is detected.
"""

from __future__ import annotations

import json
import struct
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
