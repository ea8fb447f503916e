"""Tiny tunings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rl_training.study.tuning import Tuning
from tests.studies import tiny_study


def tiny_tuning(**fields: Any) -> dict[str, Any]:
    """Three trials of two seeds of DQN, 60 steps each, the best and the base confirmed on two fresh seeds."""
    tuning = {
        "space": {"learning_rate": {"low": 1e-5, "high": 1e-2, "log": True}, "gamma": [0.9, 0.99]},
        "trials": 3,
        "confirm": {"best": 1, "seeds": [100, 101]},
    }
    return tiny_study(**{**tuning, **fields})


def tuning_in(folder: Path, **fields: Any) -> Tuning:
    return Tuning(tiny_tuning(**fields), output_dir=folder)
