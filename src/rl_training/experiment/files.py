"""Files that are complete or absent: durable writes, strict JSON, and failpoints for tests."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rl_training.errors import ClaimLost, ConfigError

MAX_JSON_BYTES = 256 * 2**20
_MOST_DIGITS = 300
# Schema of run.json, metrics.csv and the records of a checkpoint; see `compat` for earlier ones.
SCHEMA = 2
# `errno` values for a full disk.
NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})


def _no_failure(name: str) -> None:
    return None


Fence = Callable[[], None]
"""raises `ClaimLost` if another process has taken over the run"""


def unfenced() -> None:
    """The fence of a run that no other process can take over."""


failpoint: Callable[[str], None] = _no_failure
"""Called with `before|after write|fsync|rename|link <name>`; tests replace it to fail at that point."""


@contextlib.contextmanager
def os_errors(problem: str, kind: Callable[[str], Exception] = ConfigError) -> Iterator[None]:
    """Raise an `OSError` of the block as an error of `kind`, in one line that begins with `problem`."""
    try:
        yield
    except OSError as error:
        raise kind(f"{problem}: {error.strerror or error}") from None


def write_durably(path: Path, data: bytes) -> None:
    """Create `path`, which must not exist, and flush it to the disk."""
    failpoint(f"before write {path.name}")
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        failpoint(f"after write {path.name}")
        os.fsync(file.fileno())
    failpoint(f"after fsync {path.name}")


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to the disk; no effect on Windows, which cannot open folders."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    failpoint(f"after fsync {path.name}")


def rename(source: Path, target: Path) -> None:
    failpoint(f"before rename {target.name}")
    source.replace(target)
    failpoint(f"after rename {target.name}")


def replace_atomically(path: Path, data: bytes, fence: Fence = unfenced) -> None:
    """Write or overwrite `path`: after a crash it has the old bytes or the new ones, never a mixture.

    Only one process may write a path at a time; leftovers of a killed one are removed. If another process may take
    over, pass `fence`: it is called right before the rename, and every call has its own temporary name.
    """
    staging = path.with_name(f".tmp-{path.name}" + ("" if fence is unfenced else f"-{secrets.token_hex(4)}"))
    staging.unlink(missing_ok=True)
    try:
        write_durably(staging, data)
        fence()
        rename(staging, path)
    except (OSError, ClaimLost):
        with contextlib.suppress(OSError):
            staging.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def encode_json(value: Any) -> bytes:
    """Canonical JSON, keys sorted; ValueError for values that JSON would change (NaN, numpy scalars, int keys)."""
    _check_plain(value, "")
    return (json.dumps(value, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def decode_json(data: bytes) -> Any:
    """The inverse of `encode_json`; ValueError for anything that is not strict JSON."""
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"{len(data)} bytes of JSON, at most {MAX_JSON_BYTES} are read")
    try:
        return json.loads(data, parse_constant=_refuse_constant, parse_float=_finite_float, parse_int=_moderate_int)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite_float(text: str) -> float:
    if math.isfinite(value := float(text)):
        return value
    raise ValueError(f"{text} is larger than any float")


def _moderate_int(text: str) -> int:
    """Parse an integer of more than 64 bits (as in states of random generators), but of bounded length."""
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits, at most {_MOST_DIGITS} are read")
    return int(text)


def _check_plain(value: Any, path: str) -> None:
    # Exact types: numpy's float64 is an instance of float and would silently lose its type.
    kind = type(value)
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise ValueError(f"{path or 'record'}: keys must be strings, got {key!r}")
            _check_plain(item, f"{path}.{key}" if path else key)
    elif kind in (list, tuple):
        for i, item in enumerate(value):
            _check_plain(item, f"{path}[{i}]")
    elif kind is float:
        if not math.isfinite(value):
            raise ValueError(f"{path or 'record'} must be finite to be stored, got {value!r}; store null instead")
    elif value is not None and kind not in (bool, int, str):
        raise ValueError(f"{path or 'record'} must be plain data, got {kind.__module__}.{kind.__name__}")
