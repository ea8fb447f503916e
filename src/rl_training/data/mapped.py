"""Packed rows in a memory-mapped file, which is made once and stored next to the data.

A file contains a page of JSON, the rows, the last row of each episode, and JSON about them. The first page has the
`identity` of the data and settings, the sizes, and the time of modification; a truncated or modified file is
rejected and rebuilt. The file is renamed to its final name when it is complete. The process that writes it locks
the unfinished file; a second process waits for the lock, and reuses the file of a killed process.
"""

from __future__ import annotations

import contextlib
import glob
import json
import mmap
import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.experiment.files import decode_json, encode_json, failpoint, os_errors, sync_folder
from rl_training.platforms import POSIX, flags, lock, unlock

_FORMAT = "rl-training rows 1"
_HEADER = 4096  # rows begin at a page boundary
_SAFELY = flags("O_NOFOLLOW", "O_CLOEXEC")


class Contents(NamedTuple):
    """Contents of a packed file: rows `[n, width]`, the last row of each episode, and plain data about them."""

    rows: NDArray[np.float32]
    episode_ends: NDArray[np.int64]
    about: dict[str, Any]


class UnusableFolder(Exception):
    """A packed file cannot be written to this folder."""


def open_packed(path: Path, identity: str) -> Contents | None:
    """The contents of a packed file, or None if it is missing, incomplete, or has another identity."""
    try:
        with path.open("rb") as file:
            header = decode_json(file.read(_HEADER).rstrip(b"\0"))
            stat = os.fstat(file.fileno())
            if (header["format"], header["identity"]) != (_FORMAT, identity):
                return None
            count, width, episodes, about = (
                int(header[key]) for key in ("rows", "width", "episodes", "about_bytes")
            )
            ends_at = _HEADER + count * width * 4
            whole = min(count, width) > 0 and stat.st_size == ends_at + episodes * 8 + about
            if not whole or stat.st_mtime_ns != header["modified"] * 10**9:
                return None
            rows = np.memmap(file, np.float32, "r", _HEADER, (count, width))
            file.seek(ends_at)
            ends = np.frombuffer(file.read(episodes * 8), np.int64)
            return Contents(rows, ends, decode_json(file.read(about)))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def make_packed(
    path: Path,
    identity: str,
    shape: tuple[int, int],
    fill: Callable[[NDArray[np.float32]], Contents],
    wait: Callable[[str], None] = lambda text: None,
) -> Contents:
    """Make a packed file with room for `shape` rows; `fill` writes them and may use only the first ones.

    If another process is making the same file, this one calls `wait` with a message and then uses that file.
    """
    if not POSIX:
        raise UnusableFolder(f"{path.parent}: packed files of rows need a POSIX system (Linux, macOS)")
    temporary = path.with_name(f".tmp-{path.name}")
    with _claimed(temporary, wait) as handle:
        made = open_packed(path, identity)
        if made is not None:
            temporary.unlink()
            return made
        _remove_abandoned(path)
        try:
            with os_errors(str(path.parent), UnusableFolder):
                rows = _room(handle, shape)
            contents = fill(rows)  # an error in the data is not a problem of the folder
            with os_errors(str(path.parent), UnusableFolder):
                _complete(handle, identity, contents)
                failpoint(f"before rename {path.name}")
                temporary.replace(path)
                sync_folder(path.parent)
        except BaseException:
            _remove(temporary)
            raise
    made = open_packed(path, identity)
    if made is None:
        raise UnusableFolder(f"{path}: what was written there cannot be read back")
    return made


@contextmanager
def _claimed(temporary: Path, wait: Callable[[str], None]) -> Iterator[int]:
    """Open and lock the unfinished file; reuses that of a killed process."""
    with os_errors(str(temporary.parent), UnusableFolder):
        handle = _lock(temporary, wait)
    try:
        yield handle
    finally:
        unlock(handle)  # a mapping of the file keeps its own handle
        os.close(handle)


def _lock(temporary: Path, wait: Callable[[str], None]) -> int:
    waited = False
    temporary.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | _SAFELY, 0o644)
        try:
            try:
                lock(handle)
            except BlockingIOError:
                if not waited:
                    wait(f"{temporary.parent}: another process is packing the same rows; waiting for it")
                waited = True
                lock(handle, wait=True)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), temporary.stat()):
                    return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # the process with the lock has renamed or removed the file


def _room(handle: int, shape: tuple[int, int]) -> NDArray[np.float32]:
    """Rows in the file, with disk space reserved: writing to a hole of a mapped file on a full disk is fatal."""
    size = _HEADER + shape[0] * shape[1] * 4
    os.ftruncate(handle, 0)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size)
    else:
        os.ftruncate(handle, size)
    with os.fdopen(os.dup(handle), "r+b") as file:
        return np.memmap(file, np.float32, "r+", _HEADER, shape)


def _complete(handle: int, identity: str, contents: Contents) -> None:
    """Write everything except the rows; the header, without which the file is invalid, is written last."""
    rows, ends, about = contents
    if isinstance(rows, np.memmap):
        rows.flush()
    tail = ends.astype(np.int64).tobytes() + (extra := encode_json(about))
    place = _HEADER + rows.nbytes
    os.ftruncate(handle, place)
    while tail:
        written = os.pwrite(handle, tail, place)
        tail, place = tail[written:], place + written
    modified = int(time.time()) // 2 * 2  # even seconds, which every file system can store
    header = {
        "format": _FORMAT,
        "identity": identity,
        "rows": len(rows),
        "width": rows.shape[1],
        "episodes": len(ends),
        "about_bytes": len(extra),
        "modified": modified,
    }
    os.fsync(handle)
    os.pwrite(handle, json.dumps(header).encode().ljust(_HEADER, b"\0"), 0)
    os.fsync(handle)
    os.utime(handle, (modified, modified))


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _remove_abandoned(path: Path) -> None:
    """Remove unlocked, unfinished files of the same data with other settings, left by killed processes."""
    data = path.name.rsplit(".", 2)[0]  # a name ends in a hash of the settings and .rows
    for left in path.parent.glob(f".tmp-{glob.escape(data)}.??????????.rows"):
        with contextlib.suppress(OSError):
            handle = os.open(left, os.O_RDWR | _SAFELY)
            try:
                lock(handle)
                left.unlink()
            finally:
                os.close(handle)


def as_tensor(rows: NDArray[np.float32]) -> Tensor:
    """A tensor that shares the memory of `rows`; callers must not write to it if they are mapped for reading."""
    if rows.flags.writeable:
        return torch.from_numpy(rows)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(rows)


class ReadAhead:
    """Asks the system to load rows of a mapped file into memory, without waiting."""

    def __init__(self, rows: np.memmap[Any, Any]) -> None:
        assert rows.filename is not None
        self._handle = os.open(rows.filename, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._handle)
        self._offset, self._row_bytes = rows.offset, rows.shape[1] * rows.itemsize

    def __call__(self, index: NDArray[np.int64]) -> None:
        for place in (np.unique(index) * self._row_bytes + self._offset).tolist():
            os.posix_fadvise(self._handle, place, self._row_bytes, os.POSIX_FADV_WILLNEED)


def read_ahead(rows: NDArray[np.float32]) -> ReadAhead | None:
    """A `ReadAhead` for rows of a named mapped file if the system supports it; advises random access."""
    if not isinstance(rows, np.memmap) or not rows.filename or not hasattr(os, "posix_fadvise"):
        return None
    mapping = rows._mmap  # type: ignore[attr-defined]
    if hasattr(mapping, "madvise"):
        mapping.madvise(mmap.MADV_RANDOM)  # a page fault should not read neighbouring pages
    with contextlib.suppress(OSError):  # the file was replaced or removed; the mapping is still valid
        return ReadAhead(rows)
    return None
