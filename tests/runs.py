"""Tiny real runs of every algorithm, and functions that compare them."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.experiment.checkpointing import Checkpoint, read_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session, TrainResult
from rl_training.runs.spec import RunOptions
from rl_training.runtime.offline_to_online import FineTuning
from rl_training.runtime.workflows import resume_training
from tests import worlds  # noqa: F401 - registers the environments

ONLINE = [spec.name for spec in list_algorithm_specs() if spec.regime == "online"]
OFFLINE = [spec.name for spec in list_algorithm_specs() if spec.regime == "offline"]
ALL = [*ONLINE, *OFFLINE, "rlpd"]
FINE_TUNED = [spec.name for spec in list_algorithm_specs() if FineTuning in spec.regimes]


def mostly_slow(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Mark all parameters except the `kept` ones as slow, so that only `make test-all` runs them.

    A tuple contains the values of several parameters.
    """
    slow = pytest.mark.slow
    return [
        value if value in kept else pytest.param(*(value if isinstance(value, tuple) else [value]), marks=slow)
        for value in values
    ]


# Small enough for milliseconds, large enough that a hundred steps pass through every phase.
TINY: dict[str, Any] = {
    "hidden_sizes": [16, 16],
    "critic_hidden_sizes": None,
    "batch_size": 16,
    "learning_starts": 20,
    "train_frequency": 2,
    "gradient_updates_per_step": 1,
    "buffer_capacity": 500,
    "dataset_kind": "random",
    "dataset_size": 100,
    "num_critics": 3,
    "n_quantiles": 5,
    "policy_delay": 2,
    "target_update_interval": 4,
    "n_actions": 2,
    "n_action_samples": 2,
    "flow_steps": 2,
    "offline_pretrain_updates": 30,
}
EVERY_STEP = {"train_frequency": 1}  # for tests that count updates; every second step is enough for the others


def owned(algo: str, settings: dict[str, Any], regime: str | None = None) -> dict[str, Any]:
    """The items of `settings` that `algo` accepts."""
    owners = get_algorithm_spec(algo).chosen(regime)[1].owners()
    return {key: value for key, value in settings.items() if key in owners}


def tiny(algo: str, folder: Path, *, kwargs: dict[str, Any] | None = None, **fields: Any) -> TrainConfig:
    """A run of 60 steps, with evaluation episodes of at most 20 steps.

    `kwargs` are added to the tiny `algo_kwargs`, `fields` to the fields of the configuration.
    """
    defaults: dict[str, Any] = {
        "env_id": "CartPole-v1" if algo == "dqn" else "Pendulum-v1",
        "seed": 3,
        "total_timesteps": 60,
        "output_dir": folder,
        "device": "cpu",
        "eval_episodes": 1,
        "eval_max_steps": 20,
        "log_interval": 20,
        "checkpoint_interval": 30,
    }
    known = owned(algo, TINY, fields.get("regime"))
    return TrainConfig(algo=algo, algo_kwargs=known | (kwargs or {}), **defaults | fields)


QUIET = RunOptions(quiet=True)


def train(config: TrainConfig, callbacks: Sequence[Callback] = (), **options: Any) -> TrainResult:
    return get_algorithm_spec(config.algo).train(config, callbacks=list(callbacks), **{"options": QUIET} | options)


def resume(path: Path, callbacks: Sequence[Callback] = (), **options: Any) -> TrainResult:
    return resume_training(path, callbacks=list(callbacks), quiet=True, **options)


class Killed(Exception):
    """Raised in place of the end of a process."""


class KillAt(Callback):
    """Raises right after the first checkpoint at or beyond a tick; None never raises."""

    def __init__(self, tick: int | None = None) -> None:
        self.tick = tick

    def on_checkpoint(self, session: Session, path: Path) -> None:
        if self.tick is not None and session.clock.ticks >= self.tick:
            self.kill(session.run.path)

    def kill(self, run: Path) -> None:
        raise Killed(run)


def interrupted(config: TrainConfig, tick: int, **options: Any) -> Path:
    """Train until the first checkpoint at or beyond `tick`, then stop; returns the run folder."""
    try:
        train(config, [KillAt(tick)], **options)
    except Killed as killed:
        return Path(killed.args[0])
    raise AssertionError(f"no checkpoint at or beyond {tick}")


def digest(tensor: Tensor) -> str:
    array = tensor.detach().cpu().contiguous().numpy()
    return hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).hexdigest()[:16]


def fingerprint(path: Path) -> dict[str, str]:
    """Every entry of a checkpoint, by name: a hash of each tensor and of the replay rows, each record as text."""
    checkpoint = read_checkpoint(path)
    prints = {
        f"{group}/{name}": digest(tensor)
        for group, tensors in checkpoint.tensors.items()
        for name, tensor in tensors.items()
    }
    for group, record in checkpoint.records.items():
        prints |= {f"{group}/{key}": json.dumps(value, sort_keys=True) for key, value in record.items()}
    if checkpoint.rows is not None:
        prints["replay/rows"] = digest(replay_rows(checkpoint))
        prints["replay/added"] = str(checkpoint.rows.added)
    return prints


def replay_rows(checkpoint: Checkpoint) -> Tensor:
    """The filled rows of a checkpoint's replay buffer, in slot order."""
    info = checkpoint.rows
    assert info is not None
    rows = torch.empty((info.filled, info.width))
    checkpoint.read_rows(rows)
    return rows


def logged(run_dir: Path) -> list[dict[str, str]]:
    """The rows of metrics.csv without columns that depend on wall time."""
    with (run_dir / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if k not in ("time", "time/fps") and v != ""} for row in rows]


def trainer_state(checkpoint: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((checkpoint / "trainer.json").read_text())
    return state


def run_record(run_dir: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run_dir / "run.json").read_text())
    return record


def checkpoint_names(run_dir: Path) -> list[str]:
    return sorted(f"{path.parent.name}/{path.name}" for path in run_dir.glob("*/step_*"))


def differences(one: TrainResult, other: TrainResult) -> list[str]:
    """Names of entries that differ between the last checkpoints, logs and metrics of two runs."""
    a, b = fingerprint(one.checkpoint_path), fingerprint(other.checkpoint_path)
    found = sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))
    if logged(one.run_dir) != logged(other.run_dir):
        found.append("metrics.csv")
    if one.metrics != other.metrics:
        found.append("metrics")
    if checkpoint_names(one.run_dir) != checkpoint_names(other.run_dir):
        found.append("checkpoints")
    return found


# Tolerance for two runs that differ in rounding only: float32 has seven digits, and the tens of updates of these
# runs lose two of them.
ROUNDING = {"rel": 1e-4, "abs": 1e-5}


def near(one: Any, other: Any) -> bool:
    """Whether plain data are equal: floats up to rounding, everything else exactly."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(near(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(near, one, other))
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or not one.is_floating_point():
            return torch.equal(one, other)
        return torch.allclose(one, other, rtol=ROUNDING["rel"], atol=ROUNDING["abs"])
    if isinstance(one, float) and isinstance(other, float):
        return bool(one == pytest.approx(other, **ROUNDING, nan_ok=True))
    return type(one) is type(other) and bool(one == other)


def contents(path: Path) -> dict[str, Any]:
    """Every entry of a checkpoint, by name."""
    checkpoint = read_checkpoint(path)
    groups = {**checkpoint.tensors, **checkpoint.records}
    found = {f"{group}/{key}": value for group, entries in groups.items() for key, value in entries.items()}
    if checkpoint.rows is not None:
        found |= {"replay/rows": replay_rows(checkpoint), "replay/added": checkpoint.rows.added}
    return found


def numbers(rows: list[dict[str, str]]) -> list[dict[str, float]]:
    return [{key: float(value) for key, value in row.items()} for row in rows]


def unlike(one: TrainResult, other: TrainResult) -> list[str]:
    """Names of entries that differ by more than rounding between last checkpoints, logs and metrics of two runs."""
    a, b = contents(one.checkpoint_path), contents(other.checkpoint_path)
    found = sorted(name for name in a.keys() | b.keys() if not near(a.get(name), b.get(name)))
    if not near(numbers(logged(one.run_dir)), numbers(logged(other.run_dir))):
        found.append("metrics.csv")
    if not near(one.metrics, other.metrics):
        found.append("metrics")
    if checkpoint_names(one.run_dir) != checkpoint_names(other.run_dir):
        found.append("checkpoints")
    return found


@dataclass
class ShortRun:
    """A finished tiny run and the networks it started from."""

    algo: str
    result: TrainResult
    initial: dict[str, Tensor]

    def unmoved(self) -> list[str]:
        """Parameters, including targets, that training did not change."""
        networks = read_checkpoint(self.result.checkpoint_path).tensors["networks"]
        fixed = ("model.normalizer.", "temperature.fixed")
        return [
            name
            for name, tensor in networks.items()
            if not name.startswith(fixed) and torch.equal(tensor, self.initial[name])
        ]

    def actions(self, deterministic: bool = True) -> np.ndarray[Any, Any]:
        """Predictions for 64 observations of all magnitudes, by a freshly loaded policy."""
        from rl_training.runtime.workflows import predict_checkpoint

        width = 4 if self.algo == "dqn" else 3
        obs = np.random.default_rng(0).standard_normal((64, width)) * np.logspace(-2, 4, 64)[:, None]
        return predict_checkpoint(self.result.checkpoint_path, obs, deterministic=deterministic)


def short_run(algo: str, folder: Path, **kwargs: Any) -> ShortRun:
    """Train `algo` for 60 steps, keeping a copy of its networks before the first."""
    initial: dict[str, Tensor] = {}

    class Keep(Callback):
        def on_training_start(self, session: Session) -> None:
            networks = session.learner.state_dict()["networks"]
            initial.update({name: tensor.clone() for name, tensor in networks.items()})

    return ShortRun(algo, train(tiny(algo, folder, kwargs=owned(algo, EVERY_STEP) | kwargs), [Keep()]), initial)
