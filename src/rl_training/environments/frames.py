"""What passes between a run and an environment's process: pickles, and bytes for the two messages of every step.

Each side remembers the form of the last action or observation that came as a pickle; what has the same form is
sent as its bytes alone. A pickle never begins with the byte that these begin with.
"""

from __future__ import annotations

import struct
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MARK = b"\x00"
_ANSWER = struct.Struct("=xd??")  # the mark, reward, terminated, truncated

Answer = tuple[NDArray[np.float32], float, bool, bool]


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


def unpickled(message: bytes) -> Any:
    """As a connection does it that receives an object; the other end is a process of this package."""
    return ForkingPickler.loads(message)


def is_bare(message: bytes) -> bool:
    """Whether a message is bytes alone and no pickle."""
    return message[:1] == _MARK


def action_message(action: Any) -> bytes:
    return _MARK + bytes(action.tobytes())


def action_of(message: bytes, form: Form) -> Any:
    return form.read(message, 1)


def answer_message(answer: Answer) -> bytes:
    obs, reward, terminated, truncated = answer
    return _ANSWER.pack(reward, terminated, truncated) + obs.tobytes()


def answer_of(message: bytes, form: Form) -> Answer:
    reward, terminated, truncated = _ANSWER.unpack_from(message)
    return form.read(message, _ANSWER.size), reward, terminated, truncated
