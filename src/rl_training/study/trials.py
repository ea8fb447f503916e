"""What became of a trial, read from its folder alone; nothing here imports torch."""

from __future__ import annotations

import contextlib
import csv
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.errors import RLTrainingError
from rl_training.experiment import files
from rl_training.experiment.runs import read_run_record
from rl_training.study.plan import RUNS, Trial

FAILURES = "failures"
_DONE = ("finished", "stopped")
# Usage and configuration, checkpoint and data, divergence: trying again would give the same.
NEVER_RETRIED = (2, 3, 4)
# The code of a trial for which the disk had no room, whatever the command line returns then: it is tried again.
FULL_DISK = 5


@dataclass(frozen=True)
class Failure:
    """Why a trial failed: the exit code the command line would have had, or `FULL_DISK`, and one line."""

    code: int
    message: str


def home_of(study: Path, trial: Trial) -> Path:
    return study / RUNS / trial.name


def record_of(home: Path) -> dict[str, Any]:
    """run.json, or nothing where there is none that can be read."""
    with contextlib.suppress(RLTrainingError):
        return read_run_record(home)
    return {}


def is_done(record: Mapping[str, Any]) -> bool:
    return record.get("status") in _DONE


def read_failure(study: Path, trial: Trial) -> Failure | None:
    file = _failure_file(study, trial)
    try:
        return parse_failure(file.read_bytes(), str(file))
    except FileNotFoundError:
        return None
    except OSError as error:
        return Failure(1, f"{file}: cannot be read: {error}")


def parse_failure(data: bytes, place: str) -> Failure:
    """The contents of a failure's file, or that they cannot be read."""
    try:
        record = files.decode_json(data)
        return Failure(int(record["code"]), str(record["message"]))
    except (ValueError, TypeError, KeyError) as error:
        return Failure(1, f"{place}: cannot be read: {error}")


def note_failure(study: Path, trial: Trial, failure: Failure) -> None:
    path = _failure_file(study, trial)
    path.parent.mkdir(exist_ok=True)
    record = {"code": failure.code, "message": failure.message, "time": round(time.time(), 3)}
    files.replace_atomically(path, files.encode_json(record))


def forget_failure(study: Path, trial: Trial) -> None:
    _failure_file(study, trial).unlink(missing_ok=True)


def failure_name(trial: Trial) -> str:
    """Where the study keeps why a trial failed."""
    return f"{FAILURES}/{trial.name}.json"


def _failure_file(study: Path, trial: Trial) -> Path:
    return study / failure_name(trial)


@dataclass(frozen=True)
class Progress:
    """How far a run has come by its log: the last step in it, and the newest evaluation."""

    step: int = 0
    eval_return: float | None = None


def progress_of(home: Path) -> Progress:
    """Read metrics.csv, which may be written to at this moment."""
    step, newest = 0, None
    with contextlib.suppress(OSError, csv.Error), (home / "metrics.csv").open(newline="", errors="replace") as file:
        for row in csv.DictReader(file):
            with contextlib.suppress(ValueError, TypeError):
                step = max(step, int(row.get("step") or 0))
                newest = float(row.get("eval/mean_reward") or "")
    return Progress(step, newest)
