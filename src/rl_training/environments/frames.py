"""What passes between a run and an environment's process.

A request is a pickle, or the bytes of an action: each side remembers the form of the last action that came as a
pickle, and what has the same form is sent as its bytes alone. A pickle never begins with the byte that these begin
with. An answer is numbers or text and never a pickle: whatever an environment's process writes, reading it cannot
run code. It carries the number of the request it answers, so that an answer to an earlier one is noticed.
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
_ANSWER = struct.Struct("=BId??")  # kind, number of the request, reward, terminated, truncated
_NUMBERS = 1 << 32
_FLOAT = np.dtype(np.float32)
LONGEST_TRACE = 20_000


class WrongMessage(Exception):
    """The other process sent something that is not the answer to the last request."""


class Form:
    """Dtype and shape of one kind of array."""

    def __init__(self) -> None:
        self._known: tuple[np.dtype[Any], tuple[int, ...]] | None = None

    def learn(self, value: Any) -> None:
        self._known = (value.dtype, value.shape) if isinstance(value, np.ndarray | np.generic) else None

    def fits(self, value: Any) -> bool:
        is_array = isinstance(value, np.ndarray | np.generic)
        return is_array and (value.dtype, value.shape) == self._known

    def read(self, data: bytes, offset: int) -> Any:
        """An array of its own, or a scalar."""
        assert self._known is not None
        dtype, shape = self._known
        values = np.frombuffer(data, dtype, offset=offset)
        return values.reshape(shape).copy() if shape else values[0]


def pickled(message: Any) -> Any:
    return ForkingPickler.dumps(message)


def is_bare(message: bytes) -> bool:
    """Whether a request is bytes alone and no pickle."""
    return message[:1] == _MARK


def action_message(action: Any) -> bytes:
    return _MARK + bytes(action.tobytes())


def action_of(message: bytes, form: Form) -> Any:
    return form.read(message, 1)


def answer_message(number: int, status: str, value: Any) -> bytes:
    """An answer of `child.Served` to request `number`: an observation, a transition or an error with its trace."""
    if status == "error":
        return _ANSWER.pack(_FAILURE, number % _NUMBERS, 0.0, False, False) + json.dumps(value).encode()
    if isinstance(value, tuple):
        obs, reward, terminated, truncated = value
        return _ANSWER.pack(_TRANSITION, number % _NUMBERS, reward, terminated, truncated) + bytes(obs.tobytes())
    return _ANSWER.pack(_OBSERVATION, number % _NUMBERS, 0.0, False, False) + bytes(value.tobytes())


def answer_of(message: bytes | bytearray, number: int, width: int | None) -> tuple[str, Any]:
    """The reverse; `width`: the numbers of an observation, where they are known."""
    if len(message) < _ANSWER.size or message[0] > _FAILURE:
        raise WrongMessage(f"its process sent {len(message):,} bytes that are not an answer")
    kind, found, reward, terminated, truncated = _ANSWER.unpack_from(message)
    if found != number % _NUMBERS:
        raise WrongMessage(
            f"its process sent answer {found:,} instead of {number % _NUMBERS:,}: a process that the environment "
            "has forked must not return from reset or step"
        )
    if kind == _FAILURE:
        return "error", _failure(message[_ANSWER.size :])
    obs = _observation(message, width)
    return "ok", obs if kind == _OBSERVATION else (obs, reward, terminated, truncated)


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
