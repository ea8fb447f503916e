"""The run's end of the connection to an environment's process: messages have a deadline and a bounded length.

The other end is a `multiprocessing` connection: a message is preceded by its length in four bytes.
"""

from __future__ import annotations

import os
import select
import struct
import time
from multiprocessing.connection import Connection
from typing import Any

from rl_training.environments.frames import WrongMessage

_LENGTH = struct.Struct("!i")
_LONGEST = 1 << 28
_AT_ONCE = 1 << 16


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
