"""Minari data sets: read straight from their HDF5 file and JSON metadata.

The `minari` package is imported only to download: its loader can build environments named in the metadata, and
nothing here needs one. An episode of T steps holds T + 1 observations, so that step t goes from observation t to
observation t + 1 of its own episode. The last step of an episode that neither terminated nor was truncated counts
as cut off there.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.columns import Columns
from rl_training.data.files import existing_file, new_folder, require
from rl_training.data.hdf5_files import Hdf5Column, damage_at, hard_linked, open_hdf5, stored_column
from rl_training.data.validation import resolve_spaces
from rl_training.errors import DatasetError

_ID = re.compile(r"(?:[\w-]+/)*[\w-]+-v\d+", re.ASCII)
_MAX_METADATA = 16 * 2**20
_FIELDS = ("observations", "actions", "rewards", "terminations", "truncations")


def minari_folder(dataset_id: str) -> Path:
    """Where a data set lives: below `MINARI_DATASETS_PATH`, by default `~/.minari/datasets`."""
    if not _ID.fullmatch(dataset_id):
        raise DatasetError(
            f"dataset_id {dataset_id!r} is not a Minari id; expected 'namespace/name-v0', for example "
            "'D4RL/pen/human-v2'"
        )
    root = os.environ.get("MINARI_DATASETS_PATH")
    return (Path(root) if root else Path.home() / ".minari" / "datasets") / dataset_id / "data"


class EpisodeColumn:
    """The same field of all episodes, one after another, `shift` rows into each."""

    def __init__(self, episodes: list[Hdf5Column], ends: NDArray[np.int64], shift: int = 0) -> None:
        self.episodes, self.ends, self.shift = episodes, ends, shift
        self.shape = (int(ends[-1]), *episodes[0].shape[1:])
        self.dtype = np.result_type(*{episode.dtype for episode in episodes})

    def read(self, start: int, stop: int) -> NDArray[Any]:
        pieces = []
        for index in range(int(np.searchsorted(self.ends, start, side="right")), len(self.ends)):
            first = int(self.ends[index - 1]) if index else 0
            if first >= stop:
                break
            low, high = max(start, first) - first, min(stop, int(self.ends[index])) - first
            pieces.append(self.episodes[index].read(low + self.shift, high + self.shift))
        return np.concatenate(pieces).astype(self.dtype, copy=False)


class TimeoutColumn:
    """Truncations, and the end of every episode that did not terminate."""

    dtype = np.dtype(np.bool_)

    def __init__(self, truncations: EpisodeColumn, terminations: EpisodeColumn) -> None:
        self.truncations, self.terminations = truncations, terminations
        self.shape = truncations.shape

    def read(self, start: int, stop: int) -> NDArray[Any]:
        flags = self.truncations.read(start, stop).copy()
        last = self.truncations.ends - 1
        last = last[(last >= start) & (last < stop)] - start
        flags[last] = flags[last].astype(np.bool_) | (self.terminations.read(start, stop)[last] == 0)
        return flags


def read_minari(dataset_id: str, download: bool = False) -> Columns:
    """The columns of a local data set; fetched first if it is absent and `download` is true."""
    folder = minari_folder(dataset_id)
    if not folder.is_dir():
        if not download:
            raise DatasetError(
                f"{dataset_id}: not found in {folder}; set dataset_download: true to fetch it, or "
                "MINARI_DATASETS_PATH to the folder of your data sets"
            )
        _download(dataset_id)
    place = str(folder / "main_data.hdf5")
    space = _read_metadata(folder / "metadata.json")
    obs_dim = space.pop("obs_dim")
    file = open_hdf5(existing_file(place))
    try:
        with damage_at(place):
            fields, ends = _episodes(file, place, obs_dim)
        truncations = EpisodeColumn(fields["truncations"], ends)
        terminations = EpisodeColumn(fields["terminations"], ends)
        return Columns(
            place,
            {
                "observations": EpisodeColumn(fields["observations"], ends),
                "actions": EpisodeColumn(fields["actions"], ends),
                "rewards": EpisodeColumn(fields["rewards"], ends),
                "terminals": terminations,
                "timeouts": TimeoutColumn(truncations, terminations),
                "next_observations": EpisodeColumn(fields["observations"], ends, shift=1),
            },
            **space,
            separated=True,
            on_close=file.close,
        )
    except BaseException:
        file.close()
        raise


def _download(dataset_id: str) -> None:
    minari = require("minari", f"downloading {dataset_id}")
    try:
        minari.download_dataset(dataset_id)
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise DatasetError(f"{dataset_id}: cannot be downloaded: {text}") from None
    if not minari_folder(dataset_id).is_dir():
        raise DatasetError(f"{dataset_id}: was downloaded but {minari_folder(dataset_id)} does not exist")


def _episodes(file: Any, place: str, obs_dim: int) -> tuple[dict[str, list[Hdf5Column]], NDArray[np.int64]]:
    """The fields of `episode_0`, `episode_1`, … and the number of steps up to the end of each."""
    names = [f"episode_{index}" for index in range(len(file.keys()))]
    missing = next((name for name in names if name not in file.keys()), None)
    if missing or not names:
        raise DatasetError(f"{place}: group {missing or 'episode_0'!r} is missing; episodes are numbered from 0")
    fields: dict[str, list[Hdf5Column]] = {field: [] for field in _FIELDS}
    lengths = []
    for name in names:
        group, where = hard_linked(file, name, place), f"{place}: {name}"
        if not hasattr(group, "keys"):
            raise DatasetError(f"{where} is an array, not a group")
        for field in _FIELDS:
            if field not in group.keys():
                raise DatasetError(f"{where}: column {field!r} is missing; needed: {', '.join(_FIELDS)}")
            if field in ("observations", "actions") and hasattr(group[field], "keys"):
                raise DatasetError(f"{where}: column {field!r} is structured; flatten it to one Box first")
            fields[field].append(stored_column(group, field, where))
        _check_episode(where, {field: columns[-1] for field, columns in fields.items()}, obs_dim)
        lengths.append(fields["rewards"][-1].shape[0])
    return fields, np.cumsum(lengths)


def _check_episode(where: str, columns: dict[str, Hdf5Column], obs_dim: int) -> None:
    for field, column in columns.items():
        if len(column.shape) == 0:
            raise DatasetError(f"{where}: column {field!r} is a single value, not a row per step")
    steps = columns["rewards"].shape[0]
    if steps == 0:
        raise DatasetError(f"{where}: column 'rewards' is empty; an episode has at least one step")
    for field, column in columns.items():
        wanted = steps + (field == "observations")
        if column.shape[0] != wanted:
            raise DatasetError(
                f"{where}: column {field!r} has {column.shape[0]} rows, expected {wanted}: an episode of {steps} "
                f"steps has {steps + 1} observations"
            )
        if column.shape[1:] != columns_like(field, column, obs_dim):
            raise DatasetError(f"{where}: column {field!r} has shape {list(column.shape)}")
