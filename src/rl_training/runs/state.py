"""The contents of a checkpoint: every record is written and read in this module or by `Experience`.

    networks, optimizers, random   tensors of the learner, state of its generator
    collector                      running episodes, exploration's generator, episode statistics, moments
    replay_random, replay/         state of the replay buffer's generator, its rows
    trainer                        clock, cadences, stop flags, best score, callbacks
    config, spaces, dataset        every setting with its default, the spaces, the data

`restore` restores a session from them. In addition `training` restores the log, `init_from` copies networks alone,
and an `Updater` computes the learning rate, which is not stored. Fields that a record of an older version lacks are
filled in when it is read.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rl_training.algorithms.base import Learner
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import Checkpoint, Saved, checkpoint_errors, read_checkpoint
from rl_training.experiment.compat import with_defaults_of
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import SCHEMA
from rl_training.runs.callbacks import Callback, PeriodicCallback
from rl_training.runs.clock import Clock
from rl_training.spaces import SpaceSpec

if TYPE_CHECKING:
    from rl_training.runs.session import Session

# Callbacks that follow from settings; one that a resume switches on again starts anew.
_OF_SETTINGS = ("EvaluationCallback", "EarlyStoppingCallback", "ValidationCallback", "CloningCallback")
# Records that every checkpoint of a run contains.
_REQUIRED_RECORDS = ("trainer", "config", "spaces", "dataset")


def save(session: Session) -> Saved:
    """Everything a resumed run needs."""
    collected = Saved() if session.experience is None else session.experience.save()
    state = session.learner.state_dict()
    tensors = {name: state[name] for name in ("networks", "optimizers")}
    tensors["random"] = {"updates": session.learner.generator.get_state()}
    return Saved(tensors=tensors | collected.tensors, records=_records(session), rows=collected.rows)


def save_networks(session: Session) -> Saved:
    """The contents of `best/`: networks and records, without optimisers, random states and replay rows."""
    return Saved(tensors={"networks": session.learner.state_dict()["networks"]}, records=_records(session))


def _records(session: Session) -> dict[str, Any]:
    """The JSON records of a run."""
    return {
        "trainer": _trainer_record(session),
        "config": session.settings,
        "spaces": session.spaces.record(),
        "dataset": session.dataset,
        **({} if session.experience is None else {"collector": session.experience.record()}),
    }


def restore(session: Session, checkpoint: Checkpoint) -> list[str]:
    """Restore what `save` saved; returns a phrase for each thing that could not be restored exactly."""
    with checkpoint_errors(checkpoint, "networks"):
        problems = restore_learner(session.learner, checkpoint)
    with checkpoint_errors(checkpoint):
        _restore_trainer(session, checkpoint.records["trainer"])
        problems += _dropped_evaluation(checkpoint)
    if session.experience is not None:
        problems += session.experience.restore(checkpoint)
    return problems


# The learner: networks, optimisers, counters, terms, random state.


def restore_learner(learner: Learner, checkpoint: Checkpoint) -> list[str]:
    """Restore networks, optimisers, counters, terms and random state; see `restore`."""
    trainer, tensors = checkpoint.records["trainer"], checkpoint.tensors
    learner.load_state_dict(
        {"networks": tensors["networks"], "optimizers": tensors["optimizers"], "counters": trainer["counters"]}
    )
    learner.terms.update({k: torch.tensor(v, device=learner.device) for k, v in trainer["terms"].items()})
    state = tensors["random"]["updates"]
    if state.numel() != learner.generator.get_state().numel():
        before, now = ("a GPU", "the CPU") if learner.device.type == "cpu" else ("the CPU", "a GPU")
        return [f"the checkpoint was written on {before} and the run continues on {now}, with a new random state"]
    learner.generator.set_state(state)
    return []


# trainer.json: progress of the run.


def _trainer_record(session: Session) -> dict[str, Any]:
    learner = session.learner
    names = [name for name, _ in named_callbacks(session.callbacks)]
    return {
        "schema": SCHEMA,
        "clock": asdict(session.clock),
        "counters": learner.state_dict()["counters"],
        "terms": {name: float(term) for name, term in learner.terms.items()},
        "should_stop": session.should_stop,
        "stop_reason": session.stop_reason,
        "stop_final": session.stop_final,
        "best_return": session.best_return,
        "last_evaluation": session.last_evaluation,
        "evaluated_at": session.evaluated_at,
        "scheduled": session.scheduled_save,
        "broken_off": session.callback_index,
        "announcing": session.announcing,
        "callback_order": None if session.callback_index is None and session.announcing is None else names,
        "log_rows": session.metrics_log.rows,
        "log_columns": session.metrics_log.columns(session.clock.ticks),
        "logged": session.logged,
        "cadence": {"log": session.log_cadence.last, "save": session.save_cadence.last},
        "callbacks": session.absent_callbacks
        | {name: callback.state_dict() for name, callback in named_callbacks(session.callbacks)},
    }


def _restore_trainer(session: Session, trainer: Mapping[str, Any]) -> None:
    session.clock, best = clock_of(trainer), trainer["best_return"]
    session.should_stop, session.stop_reason = trainer["should_stop"], trainer["stop_reason"]
    session.stop_final = trainer.get("stop_final")  # not recorded by 0.1, whose stopped runs stay stopped
    session.best_return = None if best is None else float(best)
    session.last_evaluation = trainer["last_evaluation"]
    session.evaluated_at = trainer["evaluated_at"]
    names = [name for name, _ in named_callbacks(session.callbacks)]
    before = trainer.get("callback_order") or list(trainer["callbacks"])  # 0.2 recorded sorted names only
    session.callback_index = _callback_index(trainer.get("broken_off"), before, names)
    session.announcing = _callback_index(trainer.get("announcing"), before, names)
    session.logged = {str(name): float(value) for name, value in trainer.get("logged", {}).items()}
    session.log_cadence.last = int(trainer["cadence"]["log"])
    session.save_cadence.last = int(trainer["cadence"]["save"])
    session.absent_callbacks = {
        name: kept
        for name, kept in trainer["callbacks"].items()
        if kept and name not in names and name not in _OF_SETTINGS
    }
    for name, callback in named_callbacks(session.callbacks):
        if name in trainer["callbacks"]:
            callback.load_state_dict(trainer["callbacks"][name])
        elif isinstance(callback, PeriodicCallback):
            callback.cadence.last = session.clock.now  # a new one is due at the next multiple of its interval
    session.mark = (time.monotonic(), session.clock.ticks)


def clock_of(trainer: Mapping[str, Any]) -> Clock:
    """The clock in the record `trainer` of a checkpoint."""
    clock = trainer["clock"]
    return Clock(str(clock["phase"]), int(clock["global_step"]), int(clock["pretrain_updates"]))


def scheduled(checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint was due; not recorded by 0.2."""
    return checkpoint.records["trainer"].get("scheduled") is True


def steps_made(checkpoint: Checkpoint) -> int:
    """The steps that `total_timesteps` counts: of the environment, or updates of an offline run."""
    with checkpoint_errors(checkpoint):
        return clock_of(checkpoint.records["trainer"]).global_step


def _callback_index(value: Any, before: Sequence[str], now: Sequence[str]) -> int | None:
    """The first of the callbacks `now` that had not been called; `value` is its index in those `before`."""
    if value is None:
        return None
    if type(value) is not int or value < 0:
        raise ValueError(f"the index of a callback is {value!r}")
    left = set(before[value:])
    return next((index for index, name in enumerate(now) if name in left), len(now))


def covered_log(checkpoint: Checkpoint) -> tuple[int, list[str] | None]:
    """The number of rows of metrics.csv that a checkpoint covers, and the metrics in the row of its own step.

    The metrics are None if the checkpoint does not record them, or if that row was not written yet.
    """
    with checkpoint_errors(checkpoint):
        rows = checkpoint.records["trainer"]["log_rows"]
        columns = checkpoint.records["trainer"].get("log_columns")
        if type(rows) is not int or rows < 0:
            raise ValueError(f"log_rows is {rows!r}")
        if columns is not None and not (isinstance(columns, list) and all(isinstance(c, str) for c in columns)):
            raise ValueError(f"log_columns is {columns!r}")
    return rows, None if "judged" in checkpoint.records else columns


# Version 0.2 could evaluate in a separate process during training (`evaluate_beside`). A checkpoint written during
# such an evaluation has the record `judged`: the step of the policy, and the rows of the log that waited for it.


def _dropped_evaluation(checkpoint: Checkpoint) -> list[str]:
    """A phrase if the checkpoint was written during an evaluation in a process, which is dropped."""
    record = checkpoint.records.get("judged")
    if record is None:
        return []
    return [f"the evaluation of step {int(record['tick'])} was not finished when the run was saved; it is dropped"]


def logged_until(checkpoint: Checkpoint) -> int:
    """The last step whose row was in the log when the checkpoint was written."""
    with checkpoint_errors(checkpoint):
        record = checkpoint.records.get("judged")
        return checkpoint.step if record is None else int(record["tick"]) - 1


def unwritten_rows(checkpoint: Checkpoint) -> list[tuple[int, dict[str, float]]]:
    """Step and metrics of each row that is in the checkpoint but not in the log."""
    with checkpoint_errors(checkpoint):
        rows = checkpoint.records.get("judged", {"held": []})["held"]
        found = [(int(row["step"]), {name: float(value) for name, value in row["values"].items()}) for row in rows]
        return [(step, values) for step, values in found if values]


def named_callbacks(callbacks: list[Callback]) -> Iterator[tuple[str, Callback]]:
    """Callbacks with the names under which their state is stored; a second one of the same name is `name#2`."""
    seen: Counter[str] = Counter()
    for callback in callbacks:
        seen[callback.name] += 1
        count = seen[callback.name]
        yield callback.name if count == 1 else f"{callback.name}#{count}", callback


# The policy alone: the networks that `load_policy` needs, and the only ones in a published checkpoint.


def is_policy_tensor(name: str) -> bool:
    """Whether the tensor of this name belongs to the policy."""
    return name.startswith(("model.actor.", "model.normalizer."))


def is_policy_alone(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint contains no networks other than the policy."""
    return all(is_policy_tensor(name) for name in checkpoint.tensors["networks"])


def policy_alone(checkpoint: Checkpoint) -> Saved:
    """The contents of a checkpoint without critics, targets, optimisers, random states and replay rows."""
    networks = {name: tensor for name, tensor in checkpoint.tensors["networks"].items() if is_policy_tensor(name)}
    records = {name: checkpoint.records[name] for name in _REQUIRED_RECORDS}
    return Saved(tensors={"networks": networks}, records=records)


# config.json, spaces.json, dataset.json.


def config_of(checkpoint: Checkpoint) -> TrainConfig:
    """The configuration of a checkpoint, with `allow_import` off: a file cannot permit imports."""
    try:
        written = TrainConfig(**checkpoint.records["config"]).replace(allow_import=False)
    except (KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(f"{checkpoint.path}: config.json is not understood: {error}") from None
    return with_defaults_of(checkpoint.records["trainer"].get("schema"), written)


def spaces_from(checkpoint: Checkpoint) -> SpaceSpec:
    """The spaces of a checkpoint."""
    record = checkpoint.records["spaces"]
    try:
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}
        spaces = SpaceSpec(**values)
        for name in ("obs_dim", "num_actions", "start"):
            if type(getattr(spaces, name)) is not int:
                raise ValueError(f"{name} must be a whole number, got {getattr(spaces, name)!r}")
        np.dtype(spaces.action_dtype)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{checkpoint.path}: spaces.json is not understood: {error}") from None
    return spaces


def changed_data(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A phrase if a run resumes with other data than before."""
    if "fingerprint" not in before or before["fingerprint"] == now.get("fingerprint"):
        return []
    return [f"the data have changed: {before.get('rows')} rows of {before.get('name')} -> {now.get('rows')} rows"]


def has_normalizer(checkpoint: Checkpoint | None) -> bool:
    """Whether the networks of `checkpoint` normalise observations."""
    return checkpoint is not None and "model.normalizer.shift" in checkpoint.tensors["networks"]


def clips_observations(checkpoint: Checkpoint | None) -> bool:
    """Whether the networks of `checkpoint` clip normalised observations."""
    return checkpoint is not None and "model.normalizer.limit" in checkpoint.tensors["networks"]


def moments_of(checkpoint: Checkpoint) -> Mapping[str, Any] | None:
    """The running statistics of the checkpoint's normaliser; None if it has no normaliser, or a fixed one."""
    return checkpoint.records.get("collector", {}).get("moments")


def read_run_checkpoint(path: Path) -> Checkpoint:
    """Read and verify a checkpoint that contains everything a run of this package saves."""
    checkpoint = read_checkpoint(path)
    for name in _REQUIRED_RECORDS:
        if not isinstance(checkpoint.records.get(name), dict):
            raise CheckpointError(f"{path}: not the checkpoint of a run: {name}.json is missing or not a mapping")
    if "networks" not in checkpoint.tensors:
        raise CheckpointError(f"{path}: not the checkpoint of a run: networks.safetensors is missing")
    return checkpoint
