"""What not every system has, in one place: locks of files, flags of `open`, signals, users.

Ordinary training, checkpoints and resuming need nothing that Windows lacks. What does (processes of its own,
studies, packed files of rows) asks `require_posix` and is refused there in one line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

from rl_training.errors import ConfigError

fcntl: Any = None
resource: Any = None
try:
    import fcntl as _fcntl
    import resource as _resource
except ModuleNotFoundError:  # Windows
    pass
else:
    fcntl, resource = _fcntl, _resource

POSIX = fcntl is not None

STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""signals that end a run after saving it"""

SAVING: int | None = getattr(signal, "SIGUSR1", None)
"""the signal that saves a run, which then goes on"""


def restore_handlers(before: Mapping[Any, Any]) -> None:
    """Set the handlers that `signal.signal` returned.

    It returns None for a handler that C code installed, which Python cannot install again: the signal gets its
    default handler.
    """
    for signum, handler in before.items():
        usual = signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL
        signal.signal(signum, usual if handler is None else handler)


@contextlib.contextmanager
def stop_handler(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """While active, `handler` receives the signals of `STOPPING`. Signals that were ignored stay ignored.

    Python allows handlers in the main thread only; in other threads this does nothing.
    """
    handled = STOPPING if threading.current_thread() is threading.main_thread() else ()
    before = {
        signum: signal.signal(signum, handler)
        for signum in handled
        if signal.getsignal(signum) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        restore_handlers(before)


# A byte no file reaches: Windows keeps readers away from what is locked.
_LOCKED_BYTE = 1 << 30


def flags(*names: str) -> int:
    """The flags of `os.open` of these names, as far as there are such; on Windows bytes stay as they are."""
    return sum(getattr(os, name, 0) for name in {*names, "O_BINARY"})


def require_posix(what: str, remedy: str) -> None:
    """Refuse what cannot work on this system."""
    if not POSIX:
        raise ConfigError(f"{what} needs a POSIX system (Linux, macOS); {remedy}")


def lock(handle: int, *, wait: bool = False) -> None:
    """Lock an open file, until it is closed or this process ends; BlockingIOError where another one has it."""
    if POSIX:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return
    import msvcrt

    windows: Any = msvcrt  # type checkers know its names on Windows only
    os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
    try:
        windows.locking(handle, windows.LK_NBLCK, 1)
    except PermissionError as error:
        raise BlockingIOError(error.errno, error.strerror) from None
    finally:
        os.lseek(handle, 0, os.SEEK_SET)


def unlock(handle: int) -> None:
    """Let go of a lock while the file stays open, here or in a mapping."""
    if POSIX:
        fcntl.flock(handle, fcntl.LOCK_UN)


def duplicate(handle: int, least: int) -> int:
    """A second number of an open file, `least` or more, which programs started from here do not inherit."""
    number: int = fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, least)
    return number


def user_id() -> int:
    """Who owns the files made here, in the words of `os.stat`; 0 where files have no such owner."""
    return os.getuid() if hasattr(os, "getuid") else 0
