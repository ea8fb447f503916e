"""Run folders as a run writes them, without training anything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.experiment.files import SCHEMA, encode_json
from rl_training.experiment.strict_yaml import dump_yaml

CREATED = 1_800_000_000
RNG = np.random.default_rng(1)


def settings_of(algo: str = "sac", env_id: str | None = "Pendulum-v1", **algo_kwargs: Any) -> dict[str, Any]:
    """A resolved configuration; keys that are not its fields belong to the algorithm."""
    return {
        "algo": algo,
        "env_id": env_id,
        "seed": 0,
        "total_timesteps": 1000,
        "output_dir": "runs",
        "device": "cpu",
        "eval_episodes": 10,
        "log_interval": 100,
        "tags": [],
        "algo_kwargs": {"learning_rate": 3e-4, "gamma": 0.99, "hidden_sizes": [32, 32], **algo_kwargs},
        "env_kwargs": {},
        "allow_import": False,
    }


def log_of(values: Sequence[float], every: int = 100, seconds: float = 2.0) -> str:
    """A metrics.csv with an evaluation at regular intervals, each after a row of training metrics."""
    lines = ["step,time,schema,train/n_updates,time/fps,eval/mean_reward,eval/mean_ep_length"]
    for number, value in enumerate(values, start=1):
        step, time = number * every, CREATED + number * seconds
        lines.append(f"{step - every // 2},{time - seconds / 2:.3f},{SCHEMA},{float(step - every // 2)},50.0,,")
        lines.append(f"{step},{time:.3f},{SCHEMA},,,{value!r},200.0")
    return "\n".join(lines) + "\n"


def write_run(
    folder: Path,
    values: Sequence[float] = (1.0, 2.0),
    *,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    every: int = 100,
    **record: Any,
) -> Path:
    """A run folder with these evaluations; `record` are fields of run.json."""
    settings = {**(settings or settings_of()), "seed": seed}
    folder.mkdir(parents=True)
    created = datetime.fromtimestamp(CREATED, UTC).isoformat(timespec="seconds")
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "algo": settings["algo"],
        "env_id": settings["env_id"],
        "seed": seed,
        "device": "cpu",
        "status": "finished",
        "created": created,
        "updated": created,
        "resumed": [],
        "seconds": 10.0,
        "versions": {"rl_training": "0.2.0", "torch": "2.13.0", "python": "3.11.7"},
        "metrics": {"update_count": 1000, "eval_return_std": 1.0, "eval_episodes": 10.0},
    }
    (folder / "run.json").write_bytes(encode_json({**fields, **record}))
    (folder / "config.resolved.yaml").write_text(dump_yaml(settings))
    (folder / "metrics.csv").write_text(log_of(values, every))
    return folder


def record_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


def curve_to(final: float, points: int = 4) -> list[float]:
    """Evaluations that increase up to the given last one."""
    return [float(value) for value in np.linspace(0, final, points)]


def two_methods(folder: Path, tasks: tuple[str, ...] = ("Pendulum-v1",), seeds: int = 5) -> Path:
    """SAC is far better than TD3 everywhere."""
    for task in tasks:
        for seed in range(seeds):
            for algo, level in (("sac", 100.0), ("td3", 10.0)):
                values = curve_to(level + RNG.normal())
                write_run(folder / f"{task}-{algo}-{seed}", values, seed=seed, settings=settings_of(algo, task))
    return folder
