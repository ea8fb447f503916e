"""Transitions in HDF5 files of D4RL's layout, read in chunks by h5py.

An HDF5 file can link to other files and declare data that it does not contain. Only hard links to stored numbers
are followed, and all declared data must be present.
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

from rl_training.data.columns import ACTION_PROBS, ENDS_AT_TIMEOUTS, OPTIONAL, REQUIRED, SPACE, Column, Columns
from rl_training.data.formats.files import existing_file, hollow, metadata_of, new_file, require, space_of
from rl_training.errors import DatasetError
from rl_training.memory import human_bytes

_CACHE = 64 * 2**20
_MAX_CHUNK = 2**30  # h5py decompresses a whole chunk of the file to read any of its rows

# Exceptions of h5py for damaged or malicious files.
DAMAGED = (OSError, KeyError, ValueError, RuntimeError, TypeError, NotImplementedError, OverflowError)


class Hdf5Column:
    """A stored array, by its low-level identifier, because a file of many episodes has thousands of arrays."""

    def __init__(self, identifier: Any, place: str, column: str, dtype: np.dtype[Any]) -> None:
        self.identifier, self.place, self.column = identifier, place, column
        self.shape: tuple[int, ...] = identifier.shape
        self.dtype = dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        h5py = require("h5py", f"{self.place}: reading HDF5")
        shape = (stop - start, *self.shape[1:])
        rows = np.empty(shape, self.dtype)
        try:
            stored = self.identifier.get_space()
            stored.select_hyperslab((start, *(0 for _ in shape[1:])), shape)
            self.identifier.read(h5py.h5s.create_simple(shape), stored, rows)
        except DAMAGED as error:
            raise DatasetError(
                f"{self.place}: column {self.column!r} is damaged between rows {start} and {stop}: "
                f"{one_line(error)}"
            ) from None
        return rows


def open_hdf5(file: Path, cache: int | None = None) -> Any:
    """Open an `h5py.File` for reading; `cache`: bytes of decompressed chunks cached for each array."""
    h5py = require("h5py", f"{file}: reading HDF5")
    try:
        return h5py.File(file, "r", rdcc_nbytes=cache)
    except DAMAGED as error:
        raise DatasetError(f"{file}: is not a readable HDF5 file: {one_line(error)}") from None


def stored_column(group: Any, name: str, place: str, file_size: int) -> Hdf5Column:
    """The column `name` of an open group; raises unless it is an array of numbers in this file."""
    h5py = require("h5py", f"{place}: reading HDF5")
    require_hard_link(group.id, name, place)
    found = h5py.h5o.open(group.id, name.encode())
    if not isinstance(found, h5py.h5d.DatasetID):
        raise DatasetError(f"{place}: column {name!r} is a group, not an array")
    made = found.get_create_plist()
    layout = made.get_layout()
    if layout == h5py.h5d.VIRTUAL or made.get_external_count():
        raise DatasetError(f"{place}: column {name!r} is stored in another file; copy the data into this one")
    dtype = found.dtype
    if found.get_space().get_simple_extent_type() == h5py.h5s.NULL or dtype.kind not in "fiub":
        raise DatasetError(f"{place}: column {name!r} holds {dtype}, not numbers")
    column = Hdf5Column(found, place, name, dtype)
    declared, stored = math.prod(column.shape) * dtype.itemsize, found.get_storage_size()
    chunks = made.get_chunk() if layout == h5py.h5d.CHUNKED else None
    if stored > file_size or (chunks is None and stored < declared):
        raise hollow(place, name, declared, min(stored, file_size))
    if chunks is not None:
        _require_chunks(column, chunks, declared)
    return column


def _require_chunks(column: Hdf5Column, chunks: tuple[int, ...], declared: int) -> None:
    """Raise if chunks of a column are missing or too large to read."""
    expected = math.prod(-(-size // chunk) for size, chunk in zip(column.shape, chunks))
    present = column.identifier.get_num_chunks()
    if present < expected:
        raise DatasetError(
            f"{column.place}: column {column.column!r} declares {human_bytes(declared)} but only {present} of its "
            f"{expected} pieces are in the file"
        )
    size = math.prod(chunks) * column.dtype.itemsize
    if size > _MAX_CHUNK:
        raise DatasetError(
            f"{column.place}: column {column.column!r} is stored in pieces of {human_bytes(size)}; write it in "
            "smaller chunks"
        )


def require_hard_link(group: Any, name: str, place: str) -> None:
    """Raise if a member of a group, given by its identifier, is a link."""
    h5py = require("h5py", f"{place}: reading HDF5")
    if group.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
        raise DatasetError(f"{place}: {name!r} is a link to another place or file; copy the data into this place")


def read_hdf5(path: str | os.PathLike[str]) -> Columns:
    """The columns of a D4RL file; it stays open until `close()`."""
    path = existing_file(path)
    file = open_hdf5(path, _CACHE)
    try:
        with damage_at(str(path)):
            present = set(file)  # names only: accessing a member would follow links
            data: dict[str, Column] = {
                name: stored_column(file, name, str(path), file.id.get_filesize())
                for name in (*REQUIRED, *OPTIONAL, ACTION_PROBS)
                if name in present
            }
            extra = {
                name: np.asarray(file.attrs[name]) for name in (*SPACE, ENDS_AT_TIMEOUTS) if name in file.attrs
            }
        ignored = sorted(present - set(data))
        return Columns(str(path), data, **space_of(str(path), extra), ignored=ignored, on_close=file.close)
    except BaseException:
        file.close()
        raise


@contextmanager
def damage_at(place: str) -> Iterator[None]:
    """Convert exceptions of h5py for damaged files to one-line errors."""
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
        file.attrs.update(metadata_of(columns))
    return target
