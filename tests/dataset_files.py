"""Small data sets with a known history, and the files that hold them."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np

LOW, HIGH = (-2.0, -1.0), (2.0, 3.0)


def episodes(lengths=(4, 3, 5), terminal=(True, False, False), seed=0) -> dict[str, np.ndarray]:
    """Columns in D4RL's layout: random walks in three dimensions, each from its own start."""
    rng = np.random.default_rng(seed)
    columns: dict[str, list] = {
        name: [] for name in ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
    }
    for length, ends in zip(lengths, terminal):
        start = rng.normal(size=3) * 10
        walk = np.cumsum(np.vstack([start, rng.normal(size=(length, 3))]), axis=0).astype(np.float32)
        last = np.arange(length) == length - 1
        columns["observations"].append(walk[:-1])
        columns["next_observations"].append(walk[1:])
        columns["actions"].append(rng.uniform(LOW, HIGH, size=(length, 2)).astype(np.float32))
        columns["rewards"].append(rng.normal(size=length).astype(np.float32))
        columns["terminals"].append(last & ends)
        columns["timeouts"].append(last & (not ends))
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def save_npz(path: Path, columns: dict[str, np.ndarray], **extra) -> Path:
    np.savez(path, **columns, **extra)
    return path


def save_hdf5(path: Path, columns: dict[str, np.ndarray], **attributes) -> Path:
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            file[name] = column
        file.attrs.update(attributes)
    return path


def save_minari(root: Path, dataset_id: str, columns: dict[str, np.ndarray], metadata: dict | None = None) -> Path:
    """Write a Minari data set by hand from the format's description, not with the package's writer."""
    folder = root / dataset_id / "data"
    folder.mkdir(parents=True)
    ends = np.flatnonzero(columns["terminals"] | columns["timeouts"]) + 1
    with h5py.File(folder / "main_data.hdf5", "w") as file:
        start = 0
        for index, stop in enumerate(ends):
            group = file.create_group(f"episode_{index}")
            span = slice(start, stop)
            group["observations"] = np.concatenate(
                [columns["observations"][span], columns["next_observations"][stop - 1 : stop]]
            )
            group["actions"] = columns["actions"][span]
            group["rewards"] = columns["rewards"][span]
            group["terminations"] = columns["terminals"][span]
            group["truncations"] = columns["timeouts"][span]
            start = stop
    space = {"type": "Box", "dtype": "float32", "shape": [2], "low": list(LOW), "high": list(HIGH)}
    obs = {"type": "Box", "dtype": "float32", "shape": [3], "low": [-99.0] * 3, "high": [99.0] * 3}
    content = {
        "data_format": "hdf5",
        "observation_space": json.dumps(obs),
        "action_space": json.dumps(space),
        **(metadata or {}),
    }
    (folder / "metadata.json").write_text(json.dumps(content))
    return folder
