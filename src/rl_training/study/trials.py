"""Whether a trial is done, failed or open, read from the study's folder. Does not import torch."""

from __future__ import annotations

import contextlib
import csv
import re
import time
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.errors import (
    CheckpointError,
    ConfigError,
    DatasetError,
    DiskFullError,
    RLTrainingError,
    device_error,
    one_line,
    with_causes,
)
from rl_training.experiment import files
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.metric_names import tag_of
from rl_training.experiment.retention import find_checkpoint, list_checkpoints, origin_path
from rl_training.experiment.runs import DONE, read_run_record
from rl_training.importing import NotKnown, installed_algorithms, known_elsewhere, would_import
from rl_training.settings import at_home
from rl_training.study.plan import RUNS, Plan, Trial, data_files

FAILURES = "failures"
_USAGE = 2
# Usage and configuration, checkpoint and data, divergence: a second attempt would fail in the same way.
NEVER_RETRIED = (_USAGE, 3, 4)
# A trial for which the disk had no room; it is tried again. The command line's own exit code differs.
FULL_DISK = 5
_STEPS_MADE = tag_of("global_step")
# In the text of settings: the name of an object, as in `module:Name`.
_NAMED = re.compile(r"\w:\w")


@dataclass(frozen=True)
class Failure:
    """Why a trial failed: the exit code of the command line, or `FULL_DISK`, and a message of one line."""

    code: int
    message: str


def failure_of(error: Exception) -> Failure:
    """The failure of a trial that was ended by an exception."""
    numbers = {one.errno for one in with_causes(error) if isinstance(one, OSError)}
    if numbers & files.NO_ROOM or any(isinstance(one, DiskFullError) for one in with_causes(error)):
        return Failure(FULL_DISK, one_line(error))
    if (message := device_error(error)) is not None:
        return Failure(1, message)
    if isinstance(error, RLTrainingError):
        return Failure(error.exit_code, one_line(error))
    if isinstance(error, MemoryError):
        return Failure(_USAGE, f"out of memory: {one_line(error) or 'an allocation failed'}")
    return Failure(1, f"{type(error).__name__}: {one_line(error)}")


def home_of(study: Path, trial: Trial) -> Path:
    return study / RUNS / trial.name


def record_of(home: Path) -> dict[str, Any]:
    """The contents of run.json; empty if it is missing or cannot be read."""
    with contextlib.suppress(RLTrainingError):
        return read_run_record(home)
    return {}


def is_done(record: Mapping[str, Any]) -> bool:
    return record.get("status") in DONE


def is_open(study: Path, trial: Trial) -> bool:
    """Whether a trial is neither done nor failed."""
    return not is_done(record_of(home_of(study, trial))) and read_failure(study, trial) is None


def has_failed(study: Path, trial: Trial) -> bool:
    """Whether a trial has failed and is not done."""
    return not is_done(record_of(home_of(study, trial))) and read_failure(study, trial) is not None


def require_data(study: Path, plan: Plan) -> None:
    """Raise if data files of open trials do not exist, neither here nor in the folder where a trial was started.

    Also raise if the runs that they start from do not exist. Warn of files whose contents are not those planned.
    """
    from rl_training.study.planning import Checksums  # imports torch

    missing, changed, checksums = dict[str, None](), dict[str, None](), Checksums()
    for trial in plan.trials:
        configuration = plan.configurations[trial.configuration]
        places, planned = data_files(configuration.settings), configuration.data
        lost = [path for path in places.values() if not Path(at_home(path)).is_file()]
        other = [
            path
            for place, path in places.items()
            if place in planned and checksums.of(path) not in (None, planned[place])
        ]
        if (lost or other) and is_open(study, trial):
            changed |= dict.fromkeys(other)
            started_in = record_of(home_of(study, trial)).get("dataset", {}).get("folder", "")
            missing |= dict.fromkeys(path for path in lost if not Path(started_in, path).is_file())
    if missing:
        raise DatasetError(
            f"{', '.join(missing)}: no such file, which trials of {study} need; no trial was started: restore it, "
            "or pass the study's file and --data DIR to sweep"
        )
    if changed:
        warnings.warn(
            f"{', '.join(changed)}: changed since {study} was planned, so its open trials learn from other data "
            "than those that are done",
            stacklevel=2,
        )
    _require_origins(study, plan)


def _require_origins(study: Path, plan: Plan) -> None:
    """Raise if a run of `init_from` does not exist; trials that have a checkpoint do not need theirs any more."""
    origins: dict[Path, None] = {}  # each once, in the order of the trials
    for trial in plan.trials:
        origin = plan.configurations[trial.configuration].settings.get("init_from")
        if origin and is_open(study, trial) and not list_checkpoints(home_of(study, trial) / "checkpoints"):
            origins[origin_path(origin, trial.seed)] = None
    for origin in origins:
        try:
            find_checkpoint(origin)
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}; trials of {study} start from it; no trial was started: restore it, or continue in "
                "the folder where the study began"
            ) from None


def require_checkpoints(study: Path, plan: Plan, again: Collection[Trial] = ()) -> None:
    """Raise if open trials, or those of `again`, have lost their checkpoints.

    All unfinished trials of an unpacked study have.
    """
    lost = []
    for trial in plan.trials:
        home = home_of(study, trial)
        record = record_of(home)
        has_saved = record.get("saved") or record.get("pruned")
        waits = not is_done(record) and (trial in again or read_failure(study, trial) is None)
        if has_saved and waits and not list_checkpoints(home / "checkpoints"):
            lost.append(home)
    if lost:
        others = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise CheckpointError(
            f"{lost[0]}{others}: unfinished and without checkpoints, which a packed study does not contain; no "
            "trial was started: remove such folders to start their trials again, as restart_unfinished of "
            "rl_training.study.worker does"
        )


def require_permission(study: Path, plan: Plan, *, allow_import: bool, elsewhere: bool = False) -> None:
    """Raise if open trials need permission to import a module; without it every one would fail.

    `elsewhere`: they run in other processes, which do not know what this one has registered or imported.
    """
    for trial in () if allow_import else plan.trials:
        settings = plan.configurations[trial.configuration].settings
        if _NAMED.search(str(settings)) and is_open(study, trial):
            _require_permission(plan.config_of(trial, study / RUNS), elsewhere)


def _require_permission(config: TrainConfig, elsewhere: bool) -> None:
    """Raise if a run of `config` would import a module that is not known in this process, or `elsewhere`."""
    from rl_training.environments.wrapping import parts_of
    from rl_training.experiment.loggers import require_installed
    from rl_training.experiment.registry import resolve, spec_of

    names = [("env_id", config.env_id), ("eval_env", config.eval_env)]
    for key, name in [*names, *(("wrappers", parts_of(entry)[0]) for entry in config.wrappers)]:
        if ":" in (name or ""):
            raise would_import(str(name), key, effect="no trial was started: ")
    if elsewhere and config.plugin is not None and config.algo not in installed_algorithms():
        raise _unknown_to_workers(config.plugin, "algo")
    try:
        kept = spec_of(config).sections.defaults.values()
        with known_elsewhere(kept) if elsewhere else contextlib.nullcontext():
            require_installed(config.loggers, allow_import=False)
            for part in resolve(config).parts:
                part.import_own(allow_import=False)
    except ConfigError as error:
        if elsewhere and isinstance(error, NotKnown):
            raise _unknown_to_workers(error.place, error.key) from None
        raise ConfigError(f"{error}; no trial was started", key=error.key) from None


def _unknown_to_workers(place: str, key: str | None) -> ConfigError:
    importable = not place.startswith("__main__:") and "<" not in place
    remedy = "allow it with --allow-import" if importable else "define it in a module"
    return ConfigError(f"{key}: workers would import {place!r}; no trial was started: {remedy}", key=key)


def failed_trials(
    study: Path, plan: Plan, never: Sequence[int] = (), only: Sequence[int] | None = None
) -> list[Trial]:
    """The failed trials, except those with codes of `never`; if `only` is given, just those with its codes."""
    codes = ((trial, failure.code) for trial in plan.trials if (failure := read_failure(study, trial)) is not None)
    return [trial for trial, code in codes if code not in never and (only is None or code in only)]


def reopen(study: Path, failed: Iterable[Trial]) -> None:
    """Delete the failures of trials, so that they are open again."""
    for trial in failed:
        (study / failure_name(trial)).unlink(missing_ok=True)


def read_failure(study: Path, trial: Trial) -> Failure | None:
    file = study / failure_name(trial)
    try:
        return parse_failure(file.read_bytes(), str(file))
    except FileNotFoundError:
        return None
    except OSError as error:
        return Failure(1, f"{file}: cannot be read: {error}")


def parse_failure(data: bytes, place: str) -> Failure:
    """Parse a failure's file; one that cannot be parsed is a failure with that message."""
    try:
        record = files.decode_json(data)
        return Failure(int(record["code"]), str(record["message"]))
    except (ValueError, TypeError, KeyError) as error:
        return Failure(1, f"{place}: cannot be read: {error}")


def note_failure(study: Path, trial: Trial, failure: Failure) -> None:
    path = study / failure_name(trial)
    path.parent.mkdir(exist_ok=True)
    record = {"code": failure.code, "message": failure.message, "time": round(time.time(), 3)}
    files.replace_atomically(path, files.encode_json(record))


def failure_name(trial: Trial) -> str:
    """The path of a trial's failure in the study's folder."""
    return f"{FAILURES}/{trial.name}.json"


def logged_progress(home: Path, before: int = 0) -> tuple[int, float | None]:
    """The last step and the newest evaluation in a run's metrics.csv, which may be written concurrently.

    Updates before the first environment step, of which there are `before` or as the log says, do not count.
    """
    step, newest = 0, None
    with contextlib.suppress(OSError, csv.Error), (home / "metrics.csv").open(newline="", errors="replace") as file:
        for row in csv.DictReader(file):
            with contextlib.suppress(ValueError, TypeError):
                step = max(step, int(row.get("step") or 0))
                if made := row.get(_STEPS_MADE):
                    before = step - int(float(made))
                newest = float(row.get("eval/mean_reward") or "")
    return max(0, step - before), newest
