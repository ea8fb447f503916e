"""Platform-dependent functions: file locks, flags of `open`, space on disk, signals, user ids.

Training, checkpoints and resuming work on Windows. Features that do not (environments in other processes, studies,
packed files of rows) call `require_posix`, which raises there.
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
"""signals that end a run after a checkpoint"""

SAVING: int | None = getattr(signal, "SIGUSR1", None)
"""signal that makes a run write a checkpoint and continue"""


def restore_handlers(before: Mapping[Any, Any]) -> None:
    """Restore the handlers that `signal.signal` returned.

    It returns None for a handler that was installed by C code. Python cannot restore such a handler, so the signal
    gets its default one.
    """
    for signum, handler in before.items():
        default = signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL
        signal.signal(signum, default if handler is None else handler)


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


# A byte beyond the end of any file: on Windows a locked byte cannot be read.
_LOCKED_BYTE = 1 << 30


def after_fork(action: Callable[[], object]) -> None:
    """Call `action` in each process that is forked from this one."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=action)


def flags(*names: str) -> int:
    """The flags of `os.open` with these names that this system has, and `O_BINARY` on Windows."""
    return sum(getattr(os, name, 0) for name in {*names, "O_BINARY"})


def space_on_disk(of: os.stat_result) -> int:
    """Bytes that a file uses on disk; its size if the system does not report blocks."""
    return of.st_blocks * 512 if hasattr(of, "st_blocks") else of.st_size


def require_posix(what: str, remedy: str) -> None:
    """Raise `ConfigError` on a system that is not POSIX."""
    if not POSIX:
        raise ConfigError(f"{what} needs a POSIX system (Linux, macOS); {remedy}")


def lock(handle: int, *, wait: bool = False) -> None:
    """Lock an open file until it is closed or this process ends; BlockingIOError if another process has it."""
    if POSIX:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return
    import msvcrt

    windows: Any = msvcrt  # its names are declared for type checkers on Windows only
    os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
    try:
        windows.locking(handle, windows.LK_NBLCK, 1)
    except PermissionError as error:
        raise BlockingIOError(error.errno, error.strerror) from None
    finally:
        os.lseek(handle, 0, os.SEEK_SET)


def unlock(handle: int) -> None:
    """Release a lock while the file stays open, here or in a mapping."""
    if POSIX:
        fcntl.flock(handle, fcntl.LOCK_UN)


def duplicate(handle: int, least: int) -> int:
    """Duplicate a file descriptor to a number >= `least` that child processes do not inherit."""
    return fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, least)


def process_exists(pid: int) -> bool:
    """Whether this machine has a process `pid`; always true on Windows, which has no signal 0."""
    try:
        if POSIX:
            os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        pass
    return True
