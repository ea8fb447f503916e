"""Training runs for measurements: configuration, data and records."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.timing import wait
from rl_training.data.datasets import TransitionDataset
from rl_training.data.formats import read_columns
from rl_training.experiment.config import TrainConfig, load_config, packaged_configs
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session, TrainResult
from rl_training.runs.spec import RunOptions
from rl_training.spaces import SpaceSpec


def train(config: TrainConfig, folder: str | Path, *callbacks: Callback) -> TrainResult:
    """Train as the command line does, but without output."""
    spec = get_algorithm_spec(config.algo)
    return spec.train(
        config.replace(output_dir=str(folder)), callbacks=list(callbacks), options=RunOptions(quiet=True)
    )


def seconds_of_run(config: TrainConfig, *callbacks: Callback, parent: Path | None = None) -> float:
    """Seconds of the whole call: set-up, compilation, training and the last checkpoint. Its files are removed."""
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        started = time.perf_counter()
        train(config, folder, *callbacks)
        wait()
        return time.perf_counter() - started


class Watch(Callback):
    """Callback that records the learning curve and the time; stops the run at the deadline (seconds since the
    epoch)."""

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline
        self.started = time.perf_counter()
        self.curve: list[tuple[int, float, float]] = []  # ticks of the clock, mean return, seconds since the start

    def on_evaluation(self, session: Session, metrics: Mapping[str, float]) -> None:
        seconds = time.perf_counter() - self.started
        self.curve.append((session.clock.global_step, metrics["eval_return_mean"], seconds))

    def on_step(self, session: Session) -> None:
        if self.deadline is not None and time.time() > self.deadline:
            session.stop("the time given to this benchmark was up")


def configure(source: str, algo: str, overrides: Sequence[str], **fields: Any) -> TrainConfig:
    """A configuration by name or path, with `key=value` overrides and replaced `fields`."""
    if not (Path(source).is_file() or source in packaged_configs()):
        raise SystemExit(f"{algo}: no config {source!r}; give one with --config")
    config = load_config(source, overrides).config
    extra = fields.pop("algo_kwargs", {})
    return config.replace(**fields, algo_kwargs={**config.algo_kwargs, **extra})


def dataset_settings(files: list[Path]) -> dict[str, Any]:
    """The keys of `algo_kwargs` for these files; all other settings of data are reset."""
    nothing = {"dataset_kind": "random", "dataset_path": None, "dataset_id": None, "dataset_download": False}
    if len(files) == 1:
        return nothing | {"dataset_kind": "npz", "dataset_path": str(files[0]), "datasets": []}
    choices = []
    for path in files:
        with np.load(path) as data:
            rows = len(data["rewards"])
        choices.append({"dataset_kind": "npz", "dataset_path": str(path), "weight": float(rows)})
    return nothing | {"datasets": choices}


def data_returns(files: Iterable[Path], spaces: SpaceSpec, kind: str = "npz") -> list[float]:
    """The return of every episode in the files."""
    found: list[float] = []
    for path in files:
        with read_columns(str(path), kind) as columns:
            found += TransitionDataset.from_columns(columns, spaces=spaces).episode_returns().tolist()
    return found
