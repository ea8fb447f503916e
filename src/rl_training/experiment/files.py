"""Files that are whole or absent: durable writes, strict JSON, and points at which a test can make them fail."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl_training.errors import ClaimLost
from rl_training.version import __version__

MAX_JSON_BYTES = 256 * 2**20
_MOST_DIGITS = 300
# Of run.json, metrics.csv and the records of a checkpoint; what earlier ones meant is in `history`.
SCHEMA = 2
# The numbers of an `OSError` that say that the disk has no room for a file.
NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})


def _go_on(name: str) -> None:
    return None


Fence = Callable[[], None]
"""raises `ClaimLost` once another process has taken over what is written to"""


def unfenced() -> None:
    """The fence of what nobody else can take over."""


failpoint: Callable[[str], None] = _go_on
"""Called with `before|after write|fsync|rename|link <name>`; tests replace it to fail at that point."""


def package_version() -> str:
    """The version of the code that runs, installed or in a source tree."""
    return __version__


def write_durably(path: Path, data: bytes) -> None:
    """Create `path` (which must not exist) and return once its bytes are on the disk."""
    failpoint(f"before write {path.name}")
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        failpoint(f"after write {path.name}")
        os.fsync(file.fileno())
    failpoint(f"after fsync {path.name}")


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable; where folders cannot be opened (Windows), that is left to the system."""
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
    """Write or overwrite `path`: a reader or a crash sees the old bytes or the new ones, never a mixture.

    One process writes a path at a time; what a killed one left is removed by the next. Where a second one may take
    over from one that only seemed dead, `fence` is asked last of all, and the two never share a temporary name.
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
    """Canonical JSON, keys sorted; what JSON would change (NaN, numpy scalars, int keys) is a ValueError."""
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
    """Integers may exceed 64 bits (states of random generators do), but not the range of a float."""
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits, at most {_MOST_DIGITS} are read")
    return int(text)


def _check_plain(value: Any, path: str) -> None:
    # Exact types: numpy's float64 is a float to isinstance, and would lose its type unnoticed.
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
