"""Transitions in `.npz` archives, read as streams, without pickle and without loading whole columns.

Members are `observations actions rewards terminals` and optionally `timeouts next_observations action_probs`,
`action_low action_high`, `num_actions start`, `ends_at_timeouts`; others are ignored.
"""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from rl_training.data.columns import ACTION_PROBS, ENDS_AT_TIMEOUTS, OPTIONAL, REQUIRED, SPACE, Column, Columns
from rl_training.data.formats.files import SMALL, existing_file, hollow, metadata_of, new_file, space_of
from rl_training.errors import DatasetError
from rl_training.memory import available_memory

_MAX_EXPANSION = 1100  # deflate, which numpy uses, expands at most about 1032 times
_SKIPPED = 1 << 20  # bytes that are read at a time and not used
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError, RuntimeError)


class NpzColumn:
    """An array of an archive, read as a stream."""

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> None:
        self.path, self.column = path, info.filename.removesuffix(".npy")
        if info.flag_bits & 1:
            raise self._fail("is encrypted; save the data again without a password")
        if info.file_size > info.compress_size * _MAX_EXPANSION:
            raise hollow(str(path), self.column, info.file_size, info.compress_size)
        try:
            self._stream = archive.open(info)
            self.shape, fortran, self.dtype = self._header(self._stream)
            self._offset = self._stream.tell()
        except _DAMAGED as error:
            raise self._fail(f"is damaged: {error}") from None
        if self.dtype.hasobject:
            raise self._fail("holds Python objects, which could run code; save plain numbers")
        self._by_component = fortran and len(self.shape) > 1
        self._row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        declared = math.prod(self.shape) * self.dtype.itemsize
        held = info.file_size - self._offset
        if declared != held or any(size < 0 for size in self.shape):
            raise self._fail(f"declares shape {list(self.shape)}, {declared} bytes, but holds {held}")
        if self._by_component and declared > available_memory() // 2:
            raise self._fail("is stored in Fortran order and larger than memory; save it in C order")
        self._position = 0
        self._whole: NDArray[Any] | None = None

    def _fail(self, text: str) -> DatasetError:
        return DatasetError(f"{self.path}: column {self.column!r} {text}")

    @staticmethod
    def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        version = npy.read_magic(stream)
        readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"array format version {version} is not one of numbers")
        shape, fortran, dtype = readers[version](stream)
        return shape, fortran, dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        try:
            if self._by_component:
                if self._whole is None:
                    flat = np.frombuffer(self._stream.read(), dtype=self.dtype)
                    self._whole = flat.reshape(self.shape, order="F")
                return self._whole[start:stop]
            self._go_to(start)
            data = self._stream.read((stop - start) * self._row_bytes)
        except _DAMAGED as error:
            raise self._fail(f"is damaged between rows {start} and {stop}: {error}") from None
        self._position = stop
        return np.frombuffer(data, dtype=self.dtype).reshape(stop - start, *self.shape[1:])

    def _go_to(self, row: int) -> None:
        """Move the stream to a row: back to the first row if needed, then forward by reading.

        A forward `seek` would disable the check of the archive's checksum. After it, Python 3.12 before 3.12.9 and
        3.13 before 3.13.2 also read wrong bytes if several arrays are open (python/cpython#127847).
        """
        if row < self._position:
            self._stream.seek(self._offset)
            self._position = 0
        left = (row - self._position) * self._row_bytes
        while left > 0:
            skipped = len(self._stream.read(min(left, _SKIPPED)))
            if not skipped:
                raise EOFError("it ends too early")
            left -= skipped


def read_npz(path: str | os.PathLike[str]) -> Columns:
    """The columns of an archive; the file is open until `close()`."""
    file = existing_file(path)
    try:
        archive = zipfile.ZipFile(file)
    except _DAMAGED as error:
        raise DatasetError(f"{file}: is not an .npz archive: {error}; write it with numpy.savez") from None
    try:
        members = {info.filename: info for info in archive.infolist()}
        data: dict[str, Column] = {
            name: NpzColumn(archive, members[f"{name}.npy"], file)
            for name in (*REQUIRED, *OPTIONAL, ACTION_PROBS)
            if f"{name}.npy" in members
        }
        extra = {
            name: _numbers(NpzColumn(archive, members[f"{name}.npy"], file))
            for name in (*SPACE, ENDS_AT_TIMEOUTS)
            if f"{name}.npy" in members
        }
        ignored = [name for name in (member.removesuffix(".npy") for member in members) if name not in data | extra]
        return Columns(str(file), data, **space_of(str(file), extra), ignored=ignored, on_close=archive.close)
    except BaseException:
        archive.close()
        raise


def _numbers(column: NpzColumn) -> NDArray[Any]:
    if math.prod(column.shape) > SMALL:
        raise DatasetError(f"{column.path}: {column.column} must be a few numbers, got {list(column.shape)}")
    return column.read(0, column.shape[0] if column.shape else 1)


def write_npz(path: str | os.PathLike[str], columns: Columns) -> Path:
    """Write columns as a compressed archive, in chunks; an existing file is never replaced."""
    target = Path(path)
    if target.suffix != ".npz":
        raise DatasetError(f"{target}: the name of an npz file must end in .npz")
    with new_file(target) as staged, zipfile.ZipFile(staged, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, column in columns.data.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array_header_1_0(
                    member,
                    {
                        "descr": npy.dtype_to_descr(column.dtype),
                        "fortran_order": False,
                        "shape": tuple(column.shape),
                    },
                )
                for start, stop in columns.chunks():
                    member.write(np.ascontiguousarray(column.read(start, stop)).tobytes())
        for name, value in metadata_of(columns).items():
            with archive.open(f"{name}.npy", "w") as member:
                npy.write_array(member, value, allow_pickle=False)
    return target
