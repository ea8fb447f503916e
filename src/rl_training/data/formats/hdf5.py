"""Transitions in HDF5 files of D4RL's layout, read in chunks by h5py.

An HDF5 file can point into other files and declare data it does not have. Only hard links to plain stored
numbers are followed; what is declared must be there.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.columns import ACTION_PROBS, OPTIONAL, REQUIRED, Column, Columns
from rl_training.data.formats.files import existing_file, hollow, new_file, require, space_of
from rl_training.errors import DatasetError
from rl_training.memory import human_bytes

_MAX_CHUNK = 2**30  # h5py unpacks a compressed chunk of the file whole, however few of its rows are read

# What h5py raises on files that are damaged or were made to look like HDF5.
DAMAGED = (OSError, KeyError, ValueError, RuntimeError, TypeError, NotImplementedError, OverflowError)


class Hdf5Column:
    """One stored array of a file."""

    def __init__(self, dataset: Any, place: str, column: str) -> None:
        self.dataset, self.place, self.column = dataset, place, column
        self.shape: tuple[int, ...] = dataset.shape
        self.dtype: np.dtype[Any] = dataset.dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        try:
            rows: NDArray[Any] = self.dataset[start:stop]
        except DAMAGED as error:
            raise DatasetError(
                f"{self.place}: column {self.column!r} is damaged between rows {start} and {stop}: "
                f"{one_line(error)}"
            ) from None
        return rows


def open_hdf5(file: Path) -> Any:
    """An open `h5py.File` for reading."""
    h5py = require("h5py", f"{file}: reading HDF5")
    try:
        return h5py.File(file, "r")
    except DAMAGED as error:
        raise DatasetError(f"{file}: is not a readable HDF5 file: {one_line(error)}") from None


def stored_column(group: Any, name: str, place: str) -> Hdf5Column:
    """The column `name` of an open group, if it is an array of numbers that lies in this very file."""
    dataset = hard_linked(group, name, place)
    h5py = require("h5py", f"{place}: reading HDF5")
    if not isinstance(dataset, h5py.Dataset):
        raise DatasetError(f"{place}: column {name!r} is a group, not an array")
    if dataset.is_virtual or dataset.external:
        raise DatasetError(f"{place}: column {name!r} is stored in another file; copy the data into this one")
    if dataset.shape is None or dataset.dtype.kind not in "fiub":
        raise DatasetError(f"{place}: column {name!r} holds {dataset.dtype}, not numbers")
    declared = math.prod(dataset.shape) * dataset.dtype.itemsize
    stored, size = dataset.id.get_storage_size(), group.file.id.get_filesize()
    if stored > size or (dataset.chunks is None and stored < declared):
        raise hollow(place, name, declared, min(stored, size))
    if dataset.chunks is None:
        return Hdf5Column(dataset, place, name)
    expected = math.prod(-(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks))
    present = dataset.id.get_num_chunks()
    if present < expected:
        raise DatasetError(
            f"{place}: column {name!r} declares {human_bytes(declared)} but only {present} of its {expected} "
            "pieces are in the file"
        )
    chunk_size = math.prod(dataset.chunks) * dataset.dtype.itemsize
    if chunk_size > _MAX_CHUNK:
        raise DatasetError(
            f"{place}: column {name!r} is stored in pieces of {human_bytes(chunk_size)}; write it in smaller chunks"
        )
    return Hdf5Column(dataset, place, name)


def hard_linked(group: Any, name: str, place: str) -> Any:
    """The member `name` of a group, refused if it is a link to somewhere else."""
    h5py = require("h5py", f"{place}: reading HDF5")
    if group.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
        raise DatasetError(f"{place}: {name!r} is a link to another place or file; copy the data into this place")
    return group[name]


def read_hdf5(path: str | os.PathLike[str]) -> Columns:
    """The columns of a D4RL file; it stays open until `close()`."""
    path = existing_file(path)
    file = open_hdf5(path)
    try:
        with damage_at(str(path)):
            present = set(file)  # names only: asking the file for a member would follow links
            data: dict[str, Column] = {
                name: stored_column(file, name, str(path))
                for name in (*REQUIRED, *OPTIONAL, ACTION_PROBS)
                if name in present
            }
            extra = {
                name: np.asarray(file.attrs[name])
                for name in ("action_low", "action_high", "num_actions", "start")
                if name in file.attrs
            }
        return Columns(str(path), data, **space_of(str(path), extra), on_close=file.close)
    except BaseException:
        file.close()
        raise


@contextmanager
def damage_at(place: str) -> Iterator[None]:
    """Turns what h5py raises on damaged structures into one line."""
    try:
        yield
    except DAMAGED as error:
        raise DatasetError(f"{place}: the HDF5 structure is damaged: {one_line(error)}") from None


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def write_hdf5(path: str | os.PathLike[str], columns: Columns) -> Path:
    """Write columns in D4RL's layout, compressed, in chunks; an existing file is never replaced."""
    target = Path(path)
    if target.suffix not in (".hdf5", ".h5"):
        raise DatasetError(f"{target}: the name of an HDF5 file must end in .hdf5 or .h5")
    h5py = require("h5py", f"{target}: writing HDF5")
    with new_file(target) as staged, h5py.File(staged, "w") as file:
        for name, column in columns.data.items():
            dataset = file.create_dataset(
                name, shape=column.shape, dtype=column.dtype, chunks=True, compression="gzip"
            )
            for start, stop in columns.chunks():
                dataset[start:stop] = column.read(start, stop)
        if columns.action_low is not None and columns.action_high is not None:
            file.attrs["action_low"] = np.asarray(columns.action_low)
            file.attrs["action_high"] = np.asarray(columns.action_high)
        if columns.num_actions:
            file.attrs["num_actions"] = columns.num_actions
            file.attrs["start"] = columns.start
    return target
