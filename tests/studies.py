"""Tiny studies, and functions that compare them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from rl_training.experiment.checkpointing import find_checkpoint
from rl_training.study import Study
from rl_training.study.plan import read_plan
from tests.runs import contents as checkpoint_contents
from tests.runs import fingerprint, logged, near, numbers

SETTINGS: dict[str, Any] = {
    "env_id": "CartPole-v1",
    "total_timesteps": 60,
    "device": "cpu",
    "eval_episodes": 1,
    "log_interval": 20,
    "checkpoint_interval": 20,
    "learning_starts": 10,
    "train_frequency": 4,
    "gradient_updates_per_step": 1,
    "hidden_sizes": [8],
    "batch_size": 8,
    "buffer_capacity": 200,
}


def tiny_study(**fields: Any) -> dict[str, Any]:
    """Two seeds of DQN, 60 steps each; `fields` are keys of the study, `set` is added to the tiny settings."""
    common = SETTINGS | fields.pop("set", {})
    return {"name": "tiny", "base": "dqn/cartpole", "set": common, "seeds": [0, 1], "threads": 1, **fields}


def study_in(folder: Path, **fields: Any) -> Study:
    return Study(tiny_study(**fields), output_dir=folder)


def results(folder: Path) -> dict[str, Any]:
    """All results of a study by trial: hashes of its last checkpoint, its log and its final metrics."""
    found: dict[str, Any] = {}
    for record in Study(folder).frame():
        home = folder / "runs" / record["trial"]
        prints = fingerprint(find_checkpoint(home))
        prints.pop("config/output_dir")
        found[record["trial"]] = (prints, logged(home), record["metrics"], record["status"])
    return found


def differing(one: Path, other: Path) -> list[str]:
    """The trials in which two studies differ."""
    a, b = results(one), results(other)
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


def unlike(one: Path, other: Path) -> list[str]:
    """The trials in which two studies differ by more than rounding."""

    def numbers_of(folder: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for record in Study(folder).frame():
            home = folder / "runs" / record["trial"]
            entries = checkpoint_contents(find_checkpoint(home))
            entries.pop("config/output_dir")
            found[record["trial"]] = [entries, numbers(logged(home)), record["metrics"], record["status"]]
        return found

    a, b = numbers_of(one), numbers_of(other)
    return sorted(name for name in a.keys() | b.keys() if not near(a.get(name), b.get(name)))


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder, by a hash of its bytes."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def homes(folder: Path) -> list[Path]:
    return [folder / "runs" / trial.name for trial in read_plan(folder).trials]
