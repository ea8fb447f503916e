"""Minari data sets: read straight from their HDF5 file and JSON metadata.

The `minari` package is imported only to download, because its loader can construct environments named in the
metadata. An episode of T steps has T + 1 observations: step t goes from observation t to observation t + 1. An
episode that neither terminated nor was truncated counts as cut after its last step.
"""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.columns import ACTION_PROBS, Columns
from rl_training.data.formats.files import existing_file, new_folder, require
from rl_training.data.formats.hdf5 import Hdf5Column, damage_at, open_hdf5, require_hard_link, stored_column
from rl_training.data.packing import Walk
from rl_training.data.validation import resolve_spaces
from rl_training.errors import DatasetError
from rl_training.spaces import SpaceSpec

_ID = re.compile(r"(?:[\w-]+/)*[\w-]+-v\d+", re.ASCII)
_MINARI_FORMAT = "0.5.3"  # the version of minari whose layout is written
_MAX_METADATA = 16 * 2**20
_FIELDS = ("observations", "actions", "rewards", "terminations", "truncations")


def minari_folder(dataset_id: str) -> Path:
    """The folder of a data set in `MINARI_DATASETS_PATH`, by default `~/.minari/datasets`."""
    if not _ID.fullmatch(dataset_id):
        if Path(dataset_id).is_file():
            raise DatasetError(
                f"{dataset_id}: neither .npz, .hdf5 nor .h5; read another format with a function of your own "
                "(dataset_kind or --kind, module:function), or use TransitionDataset.from_arrays"
            )
        if dataset_id and Path(dataset_id).is_dir():
            raise DatasetError(
                f"{dataset_id}: a folder, not a data set; "
                "`rl-training dataset from-run RUN -o FILE` writes that of a run"
            )
        raise DatasetError(
            f"{dataset_id!r} is not a Minari id; expected 'namespace/name-v0', for example 'D4RL/pen/human-v2', or "
            "a file name that ends in .npz, .hdf5 or .h5"
        )
    root = os.environ.get("MINARI_DATASETS_PATH")
    return (Path(root) if root else Path.home() / ".minari" / "datasets") / dataset_id / "data"


class Episodes:
    """One field of all episodes, with `extra` rows per episode; caches what was read last.

    Columns of the same field (observations and next observations) are thus read once.
    """

    def __init__(self, stored: list[Hdf5Column], ends: NDArray[np.int64], extra: int = 0) -> None:
        self.stored, self.ends, self.extra = stored, ends, extra
        self.dtype = np.result_type(*{episode.dtype for episode in stored})
        self._last: tuple[int, int, list[NDArray[Any]]] | None = None

    def read(self, start: int, stop: int) -> list[NDArray[Any]]:
        """The rows of steps `start` to `stop`, for each episode; read-only."""
        if self._last is None or self._last[:2] != (start, stop):
            self._last = start, stop, self._pieces(start, stop)
        return self._last[2]

    def _pieces(self, start: int, stop: int) -> list[NDArray[Any]]:
        found = []
        for index in range(int(np.searchsorted(self.ends, start, side="right")), len(self.ends)):
            first = int(self.ends[index - 1]) if index else 0
            if first >= stop:
                break
            low, high = max(start, first) - first, min(stop, int(self.ends[index])) - first
            found.append(self.stored[index].read(low, high + self.extra))
        return found


class EpisodeColumn:
    """A field of all episodes, concatenated, from row `shift` of each episode."""

    def __init__(self, episodes: Episodes, shift: int = 0) -> None:
        self.episodes, self.shift = episodes, shift
        self.ends, self.dtype = episodes.ends, episodes.dtype
        self.shape = (int(self.ends[-1]), *episodes.stored[0].shape[1:])

    def read(self, start: int, stop: int) -> NDArray[Any]:
        left = self.episodes.extra - self.shift
        pieces = [piece[self.shift : len(piece) - left] for piece in self.episodes.read(start, stop)]
        return np.concatenate(pieces).astype(self.dtype, copy=False)


class TimeoutColumn:
    """Truncations, and the end of every episode that did not terminate."""

    def __init__(self, truncations: EpisodeColumn, terminations: EpisodeColumn) -> None:
        self.truncations, self.terminations = truncations, terminations
        self.shape, self.dtype = truncations.shape, truncations.dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        flags = self.truncations.read(start, stop).copy()
        last = self.truncations.ends - 1
        last = last[(last >= start) & (last < stop)] - start
        flags[last] = flags[last].astype(np.bool_) | (self.terminations.read(start, stop)[last] == 0)
        return flags


def read_minari(dataset_id: str, download: bool = False) -> Columns:
    """The columns of a local data set; downloads it first if it is missing and `download` is true."""
    folder = minari_folder(dataset_id)
    if not folder.is_dir():
        if not download:
            raise DatasetError(
                f"{dataset_id}: not found in {folder}; set dataset_download: true (`rl-training dataset`: "
                "--download) to fetch it, or MINARI_DATASETS_PATH to the folder of your data sets"
            )
        _download(dataset_id)
    place = str(folder / "main_data.hdf5")
    space = _read_metadata(folder / "metadata.json")
    obs_dim = space.pop("obs_dim")
    file = open_hdf5(existing_file(place))
    try:
        with damage_at(place):
            fields, ends = _episodes(file, place, obs_dim)
        truncations, terminations, actions, rewards = (
            EpisodeColumn(Episodes(fields[name], ends))
            for name in ("truncations", "terminations", "actions", "rewards")
        )
        observations = Episodes(fields["observations"], ends, extra=1)
        return Columns(
            place,
            {
                "observations": EpisodeColumn(observations),
                "actions": actions,
                "rewards": rewards,
                "terminals": terminations,
                "timeouts": TimeoutColumn(truncations, terminations),
                "next_observations": EpisodeColumn(observations, shift=1),
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
    """The fields of `episode_0`, `episode_1`, … and the cumulative number of steps."""
    present = set(file)
    names = [f"episode_{index}" for index in range(max(1, len(present)))]
    missing = next((name for name in names if name not in present), None)
    if missing:
        raise DatasetError(f"{place}: group {missing!r} is missing; episodes are numbered from 0")
    fields: dict[str, list[Hdf5Column]] = {field: [] for field in _FIELDS}
    size = file.id.get_filesize()
    for name in names:
        require_hard_link(file.id, name, place)
        group, where = file[name], f"{place}: {name}"
        members = set(group) if hasattr(group, "keys") else set()
        for field in _FIELDS:
            if field not in members:
                raise DatasetError(f"{where}: column {field!r} is missing; needed: {', '.join(_FIELDS)}")
            column = stored_column(group, field, where, size)
            fields[field].append(column)
            inner = (obs_dim,) if field == "observations" else fields[field][0].shape[1:]
            if len(column.shape) == 0 or column.shape[1:] != inner:
                raise DatasetError(
                    f"{where}: column {field!r} has shape {list(column.shape)}, expected [steps"
                    f"{''.join(f', {size}' for size in inner)}]"
                )
        _check_lengths(where, {field: columns[-1] for field, columns in fields.items()})
    return fields, np.cumsum([column.shape[0] for column in fields["rewards"]])


def _check_lengths(where: str, columns: dict[str, Hdf5Column]) -> None:
    steps = columns["rewards"].shape[0]
    if steps == 0:
        raise DatasetError(f"{where}: column 'rewards' is empty; an episode has at least one step")
    for field, column in columns.items():
        wanted = steps + (field == "observations")
        if column.shape[0] != wanted:
            raise DatasetError(
                f"{where}: column {field!r} has {column.shape[0]} rows, expected {wanted}: an episode of "
                f"{steps} steps has {steps + 1} observations"
            )


def _read_metadata(path: Path) -> dict[str, Any]:
    """`obs_dim` and the arguments of `Columns` that describe the action space."""
    path = existing_file(path)
    if path.stat().st_size > _MAX_METADATA:
        raise DatasetError(f"{path}: is too large for Minari's metadata")
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise DatasetError(f"{path}: is not readable JSON: {error}") from None
    if not isinstance(metadata, dict):
        raise DatasetError(f"{path}: must hold a JSON object")
    if metadata.get("data_format", "hdf5") != "hdf5":
        raise DatasetError(
            f"{path}: data_format {metadata['data_format']!r} cannot be read; only Minari's hdf5 format can"
        )
    observation = _space(path, metadata, "observation_space")
    action = _space(path, metadata, "action_space")
    try:
        if observation["type"] != "Box" or len(observation["shape"]) != 1:
            raise DatasetError(
                f"{path}: observation_space {observation['type']} is not a flat Box; record the data with "
                "FlattenObservation"
            )
        found: dict[str, Any] = {"obs_dim": int(observation["shape"][0])}
        if action["type"] == "Discrete":
            found |= {"num_actions": int(action["n"]), "start": int(action["start"])}
        elif action["type"] == "Box" and len(action["shape"]) == 1:
            found["action_low"] = tuple(float(bound) for bound in action["low"])
            found["action_high"] = tuple(float(bound) for bound in action["high"])
        else:
            raise DatasetError(f"{path}: action_space {action['type']} is neither a flat Box nor Discrete")
        return found
    except (KeyError, TypeError, ValueError) as error:
        raise DatasetError(f"{path}: a space is incomplete: {error!r}") from None


def _space(path: Path, metadata: dict[str, Any], key: str) -> dict[str, Any]:
    """Minari stores a space as JSON inside the JSON."""
    try:
        space = json.loads(metadata[key])
    except (KeyError, TypeError, ValueError, RecursionError):
        space = None
    if not isinstance(space, dict) or not isinstance(space.get("type"), str):
        raise DatasetError(f"{path}: {key} is missing or not a serialized space")
    return space


def write_minari(dataset_id: str, columns: Columns) -> Path:
    """Write columns as a Minari data set below `MINARI_DATASETS_PATH`; an existing one is never replaced.

    Rows must form episodes. Minari stores one sequence of observations per episode, so next observations that
    differ from the following row by rounding become equal to it.
    """
    folder = minari_folder(dataset_id)
    if columns.ends_at_timeouts:
        raise DatasetError(f"{columns.name}: Minari ends an episode at its termination; write npz or HDF5")
    if ACTION_PROBS in columns.data:
        raise DatasetError(f"{columns.name}: Minari has no column {ACTION_PROBS!r}; write npz or HDF5")
    h5py = require("h5py", f"{dataset_id}: writing Minari")
    spaces = resolve_spaces(columns, None)
    walk = Walk(columns, spaces)
    for _ in walk:
        pass
    if not walk.chaining.ordered():
        raise DatasetError(f"{columns.name}: unordered transitions cannot be written as Minari episodes")
    steps = episodes = 0
    with new_folder(folder) as staged:
        with h5py.File(staged / "main_data.hdf5", "w", track_order=True) as file:
            start = 0
            for stop in np.flatnonzero(walk.ends) + 1:
                arrays = _episode(columns, start, int(stop), keep_last=bool(walk.kept[stop - 1]))
                start = int(stop)
                length = len(arrays["rewards"])
                if length == 0:
                    continue
                group = file.create_group(f"episode_{episodes}", track_order=True)
                group.attrs["id"], group.attrs["total_steps"] = episodes, length
                for name, array in arrays.items():
                    group.create_dataset(name, data=array, compression="gzip")
                group.create_group("infos")
                episodes += 1
                steps += length
        metadata = _metadata(dataset_id, columns, spaces, episodes, steps)
        (staged / "metadata.json").write_text(json.dumps(metadata), encoding="utf-8")
    return folder


def _episode(columns: Columns, start: int, stop: int, *, keep_last: bool) -> dict[str, NDArray[Any]]:
    """Write one episode in Minari's layout; without `keep_last` only the observation of its last row is used."""
    read = {name: column.read(start, stop) for name, column in columns.data.items()}
    observations = read["observations"]
    if observations.dtype.kind != "f":
        observations = observations.astype(np.float32)
    if keep_last:
        final = read.get("next_observations", observations)[-1:]
        observations = np.concatenate([observations, final.astype(observations.dtype)])
    length = len(observations) - 1
    terminations = read["terminals"][:length].astype(np.bool_)
    truncations = np.zeros(length, np.bool_)
    if "timeouts" in read:
        truncations[:] = read["timeouts"][:length].astype(np.bool_)
    if length and not terminations[-1]:
        truncations[-1] = True
    actions = read["actions"][:length]
    return {
        "observations": observations,
        "actions": actions.reshape(-1).astype(np.int64) if columns.num_actions else actions,
        "rewards": read["rewards"][:length],
        "terminations": terminations,
        "truncations": truncations,
    }


def _metadata(dataset_id: str, columns: Columns, spaces: SpaceSpec, episodes: int, steps: int) -> dict[str, Any]:
    obs_type = columns.data["observations"].dtype
    observation = {
        "type": "Box",
        "dtype": str(obs_type.newbyteorder("=")) if obs_type.kind == "f" else "float32",
        "shape": [spaces.obs_dim],
        "low": [-math.inf] * spaces.obs_dim,
        "high": [math.inf] * spaces.obs_dim,
    }
    action: dict[str, Any] = {
        "type": "Box",
        "dtype": str(columns.data["actions"].dtype.newbyteorder("=")),
        "shape": [spaces.action_dim],
        "low": list(spaces.low),
        "high": list(spaces.high),
    }
    if spaces.discrete:
        action = {"type": "Discrete", "dtype": "int64", "start": spaces.start, "n": spaces.num_actions}
    return {
        "dataset_id": dataset_id,
        "data_format": "hdf5",
        "minari_version": _MINARI_FORMAT,
        "total_episodes": episodes,
        "total_steps": steps,
        "observation_space": json.dumps(observation),
        "action_space": json.dumps(action),
    }
