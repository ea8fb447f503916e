"""Setting a run up and taking it down: device, seeds, learner, run folder, log, and what is left when it fails."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.base import Learner
from rl_training.errors import ConfigError, DivergedError, EnvironmentFailure
from rl_training.experiment import files
from rl_training.experiment.checkpointing import Checkpoint, latest_valid
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.logging import CsvSink, MetricsLog, Progress, TensorBoardSink
from rl_training.experiment.retention import sweep
from rl_training.experiment.runs import RunDirectory
from rl_training.memory import keep_freed_memory
from rl_training.runtime.acceleration import require_device, set_precision
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.controls import build_control_callbacks
from rl_training.runtime.evaluation import Evaluator
from rl_training.runtime.resume import restore_learner, understood
from rl_training.runtime.sections import Resolved, Sections
from rl_training.runtime.session import Clock, Session
from rl_training.runtime.signals import SignalGuard, TrainingInterrupted
from rl_training.spaces import SpaceSpec

# Networks of this package gain nothing from more threads than this; a user's OMP_NUM_THREADS wins.
_MOST_THREADS = 4
_quiet = False
_config_text: str | None = None
_home: Path | None = None


def set_quiet(quiet: bool) -> None:
    """Silence progress on the console for the runs of this process; warnings still show."""
    global _quiet
    _quiet = quiet


@contextmanager
def given_as(text: str) -> Iterator[None]:
    """Meanwhile new run folders keep `text` as their config.yaml: the configuration as its author wrote it."""
    global _config_text
    _config_text = text
    try:
        yield
    finally:
        _config_text = None


@contextmanager
def starting_again_in(home: Path) -> Iterator[None]:
    """Meanwhile a new run takes the folder of one that ended before its first checkpoint."""
    global _home
    _home = home
    try:
        yield
    finally:
        _home = None


def choose_device(name: str) -> torch.device:
    """`auto` is the first GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda"):
        count = torch.cuda.device_count()
        index = int(name.partition(":")[2] or 0)
        if index >= count:
            raise ConfigError(
                f"device: {name!r} is not there ({count} CUDA devices found); use 'auto' or 'cpu'", key="device"
            )
    device = torch.device(name)
    if "OMP_NUM_THREADS" not in os.environ:
        # Beside a GPU only the acting policy runs here, one row at a time: threads would just wait for each other.
        most = _MOST_THREADS if device.type == "cpu" else 1
        torch.set_num_threads(min(torch.get_num_threads(), most))
    if device.type == "cpu":
        keep_freed_memory()
    return device


def build_learner(
    sections: Sections,
    resolved: Resolved,
    config: TrainConfig,
    spaces: SpaceSpec,
    *,
    normalize_observations: bool = False,
    updates_per_step: int = 1,
) -> Learner:
    """Model and learner, initialised from the run's seed without touching torch's global generator."""
    device = choose_device(config.device)
    require_device(config.acceleration, device)
    set_precision(config.tf32)
    settings = sections.learner.configure(resolved["learner"], updates_per_step)
    streams = np.random.SeedSequence((config.seed or 0, 0x1EA)).generate_state(2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(streams[0]))
        model = sections.learner.build_model(
            spaces, resolved["network"], settings, normalize_observations=normalize_observations
        )
        learner = sections.learner(model=model.to(device), **settings.model_dump())
    learner.seed(int(streams[1]))
    return learner


@contextmanager
def open_session(
    config: TrainConfig,
    resolved: Resolved,
    learner: Learner,
    spaces: SpaceSpec,
    *,
    phase: str,
    total_ticks: int,
    run_suffix: str | None,
    checkpoint: Checkpoint | None,
    callbacks: Sequence[Callback] | None,
    dataset: Mapping[str, Any] | None = None,
) -> Iterator[Session]:
    """A session in a run folder of its own, or in the folder its checkpoint came from."""
    if resolved["controls"].early_stopping is not None and (config.env_id is None or config.eval_episodes == 0):
        raise ConfigError(
            "algo_kwargs.early_stopping needs evaluations: set env_id and an eval_episodes of at least 1",
            key="algo_kwargs.early_stopping",
        )
    flat = config.to_dict() | {"algo_kwargs": resolved.to_dict()}
    with _run_directory(config, flat, run_suffix, checkpoint) as run, SignalGuard() as guard:
        unit = "updates" if phase == "offline" else "steps"
        start = 0 if checkpoint is None else checkpoint.step
        progress = Progress(total_ticks, start=start, quiet=_quiet, unit=unit)
        log = _open_log(run, checkpoint, progress)
        evaluator = Evaluator(config, spaces) if config.env_id is not None else None
        session = Session(
            config,
            run,
            learner,
            spaces,
            clock=Clock(phase),
            callbacks=[*build_control_callbacks(resolved["controls"]), *(callbacks or ())],
            log=log,
            progress=progress,
            evaluator=evaluator,
            guard=guard,
            dataset=dataset,
        )
        try:
            with _status(session):
                problems = []
                if checkpoint is not None:
                    with understood(checkpoint, "networks"):
                        problems += restore_learner(learner, checkpoint)
                    with understood(checkpoint):
                        session.restore(checkpoint)
                    if session.clock.ticks >= total_ticks and not session.should_stop:
                        own = total_ticks >= config.total_timesteps
                        bound = "total_timesteps" if own else "max_updates or max_epochs"
                        session.say(f"this run is complete; a larger {bound} lets it go on")
                    problems += [f"changed since the run began: {change}" for change in run.machine_changes]
                    problems += _changed_data(checkpoint.records["dataset"], dataset or {})
                    if checkpoint.path.parent == run.checkpoints:
                        session.continue_from(checkpoint.path)
                elif dataset is not None:
                    session.record(dataset=dict(dataset))
                if run.status_before is not None:
                    run.reconfigure(config, flat)
                session.note_inexact(problems)
                yield session
        finally:
            log.close()
            if evaluator is not None:
                evaluator.close()


def _changed_data(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One phrase where a run goes on with other data than it began with."""
    if "fingerprint" not in before or before["fingerprint"] == now.get("fingerprint"):
        return []
    return [f"the data are others: {before.get('rows')} rows of {before.get('name')} -> {now.get('rows')} rows"]


def _open_log(run: RunDirectory, checkpoint: Checkpoint | None, progress: Progress) -> MetricsLog:
    """The log of a run, without the rows that were written after the checkpoint it continues from."""
    csv = CsvSink(run.metrics_csv)
    step, rows = 0, 0
    if checkpoint is not None and checkpoint.path.parent == run.checkpoints:
        step, rows = checkpoint.step, _log_rows(checkpoint)
    csv.truncate_after(step, rows)
    board = TensorBoardSink(run.tensorboard, resumed_from=checkpoint.step if checkpoint is not None else None)
    return MetricsLog([csv, board, progress], warn=lambda text: progress.say(f"warning: {text}"), rows=rows)


def _log_rows(checkpoint: Checkpoint) -> int:
    with understood(checkpoint):
        rows = checkpoint.records["trainer"]["log_rows"]
        if type(rows) is not int or rows < 0:
            raise ValueError(f"log_rows is {rows!r}")
    return rows


@contextmanager
def _status(session: Session) -> Iterator[None]:
    """What run.json says in the end, whatever happened."""
    try:
        yield
    except TrainingInterrupted:
        session.record(status="interrupted")
        raise
    except DivergedError as error:
        raise _diverged(session, error) from error
    except EnvironmentFailure as failure:
        if session.begun:  # a failure while restoring must not replace the checkpoint it restored from
            session.note_inexact(["the environment failed inside a step"])
            try:
                session.save()
            except DivergedError as error:
                raise _diverged(session, error) from failure
        session.record(status="failed")
        raise
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        # What could not even be taken up again is still what it was.
        session.record(status=status if session.begun else session.run.status_before or status)
        raise
    session.record(status="stopped" if session.should_stop else "finished", stop_reason=session.stop_reason)


def _diverged(session: Session, error: DivergedError) -> DivergedError:
    """Leave a small file that names the first bad tensor; the error to raise names the last finite checkpoint."""
    last = session.checkpoint_path
    report = {
        "message": str(error),
        "first_bad": error.first_bad,
        "step": session.clock.ticks,
        "last_checkpoint": str(last) if last else None,
    }
    with suppress(OSError):  # the error itself says the same
        files.replace_atomically(session.run.path / "divergence.json", files.encode_json(report))
    session.record(status="diverged")
    advice = f"the last finite checkpoint is {last}" if last is not None else "no checkpoint was written before"
    return DivergedError(f"{error}; {advice}", first_bad=error.first_bad)


def _run_directory(
    config: TrainConfig, resolved: Mapping[str, Any], suffix: str | None, checkpoint: Checkpoint | None
) -> RunDirectory:
    if checkpoint is None:
        if _home is not None:
            return _reopen(_home)
        return RunDirectory.create(config, resolved, suffix, text=_config_text)
    home = checkpoint.path.parent.parent
    is_run = checkpoint.path.parent.name == "checkpoints" and (home / "run.json").is_file()
    if is_run and latest_valid(checkpoint.path.parent)[0] == checkpoint.path:
        return _reopen(home)
    return RunDirectory.create(config, resolved, suffix or "resumed")


def _reopen(home: Path) -> RunDirectory:
    """Continue a run's folder, rid of what a killed process may have left half-written."""
    run = RunDirectory.open(home)
    for folder in (run.checkpoints, run.best):
        sweep(folder)
    return run
