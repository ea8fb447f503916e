"""Reads, writes and converts data files of all kinds."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from rl_training.data.columns import Columns
from rl_training.data.formats.hdf5 import read_hdf5, write_hdf5
from rl_training.data.formats.minari import read_minari, write_minari
from rl_training.data.formats.npz import read_npz, write_npz
from rl_training.data.formats.ogbench import read_ogbench
from rl_training.data.formats.own import Reader, read_own
from rl_training.data.validation import declared_spaces, resolve_spaces
from rl_training.errors import ConfigError, nearest
from rl_training.ogbench import PREFIX
from rl_training.spaces import SpaceSpec

FileKind = Literal["npz", "hdf5", "minari"]
_SUFFIXES: dict[str, FileKind] = {".npz": "npz", ".hdf5": "hdf5", ".h5": "hdf5"}


def kind_of(place: str | os.PathLike[str]) -> FileKind:
    """The kind of a file by its suffix; anything else is a Minari id."""
    return _SUFFIXES.get(Path(place).suffix, "minari")


def read_columns(
    place: str | os.PathLike[str], kind: str | Reader | None = None, *, download: bool = False
) -> Columns:
    """The raw columns of a file or Minari data set; the caller must close them.

    `kind`: a `FileKind`, `ogbench/` and a task, or a function that reads a file of another format, or its name.
    """
    kind = kind or kind_of(place)
    if download and kind != "minari":
        raise ConfigError(f"{place}: only Minari data sets can be downloaded; leave download out")
    match kind:
        case "npz":
            return read_npz(place)
        case "hdf5":
            return read_hdf5(place)
        case "minari":
            return read_minari(os.fspath(place), download)
        case str(task) if task.startswith(PREFIX):
            return read_ogbench(place, task)
        case own:
            return read_own(place, own)


def write_columns(place: str | os.PathLike[str], columns: Columns, kind: FileKind | None = None) -> Path:
    """Write columns to a new file or Minari data set; returns its path."""
    match kind or kind_of(place):
        case "npz":
            return write_npz(place, columns)
        case "hdf5":
            return write_hdf5(place, columns)
        case "minari":
            return write_minari(os.fspath(place), columns)


def convert_dataset(
    source: str | os.PathLike[str],
    kind: FileKind,
    target: str | os.PathLike[str],
    *,
    spaces: SpaceSpec | None = None,
    download: bool = False,
    source_kind: str | Reader | None = None,
) -> Path:
    """Copy raw columns into another format, number types and flags unchanged.

    `spaces` must match the data. They are stored if the source has no action bounds; Minari requires them.
    """
    if kind not in get_args(FileKind):
        known = get_args(FileKind)
        raise ConfigError(f"kind must be one of {', '.join(known)}, got {kind!r}{nearest(kind, known)}")
    with read_columns(source, source_kind, download=download) as columns:
        if spaces is not None:
            spaces = resolve_spaces(columns, spaces)
            if declared_spaces(columns) is None:
                columns = replace(
                    columns,
                    action_low=spaces.low or None,
                    action_high=spaces.high or None,
                    num_actions=spaces.num_actions,
                    start=spaces.start,
                )
        return write_columns(target, columns, kind)
