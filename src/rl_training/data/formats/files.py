"""Shared code of the formats: opening files safely, writing them atomically, and reading metadata."""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.columns import ENDS_AT_TIMEOUTS, Columns
from rl_training.errors import DatasetError, MissingDependencyError, RLTrainingError
from rl_training.experiment.files import os_errors
from rl_training.memory import human_bytes

SMALL = 4096  # more than the components of any action space
_EXISTS = "{}: already exists and is not overwritten; choose another name or remove it"


def require(module: str, purpose: str) -> Any:
    """Import a package of the `offline` extra."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingDependencyError(
            f"{purpose} needs {module}, which is not installed; pip install h5py 'minari[hdf5]' pillow"
        ) from None


def existing_file(path: str | os.PathLike[str]) -> Path:
    """`path`; raises if it is not a readable file."""
    file = Path(path).expanduser()
    if not file.is_file():
        problem = "is a folder, not a file" if file.is_dir() else "does not exist"
        raise DatasetError(f"{file}: {problem}; check dataset_path")
    if not os.access(file, os.R_OK):
        raise DatasetError(f"{file}: permission to read it is missing")
    return file


def hollow(name: str, column: str, declared: int, held: int) -> DatasetError:
    """The error for a column that declares more bytes than the file contains."""
    return DatasetError(
        f"{name}: column {column!r} declares {human_bytes(declared)} but the file holds {human_bytes(held)} "
        "of it; the file is damaged or not to be trusted"
    )


def space_of(name: str, values: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Arguments of `Columns` from the metadata of a file."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if value.dtype.kind not in "fiub" or value.size > SMALL or value.size == 0:
            raise DatasetError(f"{name}: {key} must be a few numbers, got {value.size} of type {value.dtype}")
        if key == ENDS_AT_TIMEOUTS:
            found[key] = bool(value.reshape(-1)[0])
        elif key.startswith("action_"):
            found[key] = tuple(float(x) for x in value.reshape(-1))
        elif value.size != 1 or value.dtype.kind not in "iu" or (key == "num_actions" and value.item() < 1):
            raise DatasetError(f"{name}: {key} must be one whole number, got {value.reshape(-1)[:3].tolist()}")
        else:
            found[key] = int(value.item())
    return found


def metadata_of(columns: Columns) -> dict[str, NDArray[Any]]:
    """The metadata of a file from which `space_of` reads the action space and the ends of episodes of `columns`."""
    values = {
        "action_low": columns.action_low,
        "action_high": columns.action_high,
        "num_actions": columns.num_actions or None,
        "start": columns.start if columns.num_actions else None,
        ENDS_AT_TIMEOUTS: columns.ends_at_timeouts or None,
    }
    return {name: np.asarray(value) for name, value in values.items() if value is not None}


@contextmanager
def new_file(target: Path, problem: type[RLTrainingError] = DatasetError) -> Iterator[Path]:
    """A temporary path that is renamed to `target` if the block succeeds; an existing file is never replaced.

    Raises `problem` if it cannot be written.
    """
    with _staged(target, problem) as folder:
        staged = folder / target.name
        yield staged
        _sync(staged)
        try:
            os.link(staged, target)
        except FileExistsError:
            raise problem(_EXISTS.format(target)) from None
        except OSError:  # a file system without hard links
            staged.rename(target)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """`new_file` for a folder."""
    with _staged(target) as parent:
        staged = parent / target.name
        staged.mkdir()
        yield staged
        for file in staged.iterdir():
            _sync(file)
        _sync(staged)
        staged.rename(target)


@contextmanager
def _staged(target: Path, problem: type[RLTrainingError] = DatasetError) -> Iterator[Path]:
    require_new(target, problem)
    with os_errors(f"{target}: cannot be written", problem):
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".tmp-", dir=target.parent))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        _sync(target.parent)


def require_new(target: Path, problem: type[RLTrainingError] = DatasetError) -> None:
    """Raise `problem` if `target` exists or its folder is not writable."""
    if target.exists() or target.is_symlink():
        raise problem(_EXISTS.format(target))
    place = next(folder for folder in target.absolute().parents if folder.exists())
    if not place.is_dir() or not os.access(place, os.W_OK):
        reason = "is not writable" if place.is_dir() else "is a file, not a folder"
        raise problem(f"{target}: cannot be written: {place} {reason}")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
