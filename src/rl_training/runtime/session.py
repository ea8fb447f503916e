"""`Session`: one run. It owns the clock, the cadence of reports and checkpoints, callbacks, log and state.

A loop does its work and calls `tick`; everything that happens "every so often" happens there, in one order: stop
signals, callbacks (evaluation among them), report, checkpoint. A checkpoint therefore always stands between two
iterations of the loop, which is what makes a resumed run equal to an uninterrupted one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from rl_training.algorithms.base import Learner
from rl_training.errors import CheckpointError, ConfigError, NotPlainDataError
from rl_training.experiment import files
from rl_training.experiment.checkpointing import Checkpoint, RowsToSave, write_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.logging import MetricsLog, Progress
from rl_training.experiment.retention import discard, list_checkpoints, prune
from rl_training.experiment.runs import RunDirectory
from rl_training.runtime.acting import ActingPolicy
from rl_training.runtime.callbacks import Cadence, Callback
from rl_training.runtime.evaluation import Evaluator
from rl_training.runtime.finite import check_finite
from rl_training.runtime.signals import SignalGuard, TrainingInterrupted
from rl_training.spaces import SpaceSpec


@dataclass(frozen=True)
class TrainResult:
    """Where a run lies, its last checkpoint, and its final metrics."""

    run_dir: Path
    checkpoint_path: Path
    metrics: dict[str, float]


@dataclass
class Clock:
    """Where a run stands. `now` is what intervals count in the present phase; `ticks` never goes back."""

    phase: str = "online"
    global_step: int = 0
    pretrain_updates: int = 0

    @property
    def now(self) -> int:
        return self.pretrain_updates if self.phase == "pretrain" else self.global_step

    @property
    def ticks(self) -> int:
        return self.pretrain_updates + self.global_step


@dataclass
class Saved:
    """What a regime adds to a checkpoint beside the learner: tensors, plain values, replay rows."""

    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    records: dict[str, Any] = field(default_factory=dict)
    rows: RowsToSave | None = None


@dataclass
class Regime:
    """What online, offline and RLPD runs differ in, seen from the session."""

    save: Callable[[], Saved] = Saved
    statistics: Callable[[], dict[str, float]] = dict
    extra_metrics: Callable[[], dict[str, float]] = dict


class Session:
    """One run in progress."""

    def __init__(
        self,
        config: TrainConfig,
        run: RunDirectory,
        learner: Learner,
        spaces: SpaceSpec,
        *,
        clock: Clock,
        callbacks: Sequence[Callback],
        log: MetricsLog,
        progress: Progress,
        evaluator: Evaluator | None,
        guard: SignalGuard,
        dataset: Mapping[str, Any] | None = None,
    ) -> None:
        self.config = config
        self.run = run
        self.learner = learner
        self.spaces = spaces
        self.clock = clock
        self.callbacks = list(callbacks)
        self.regime = Regime()
        self.begun = False
        self.should_stop = False
        self.stop_reason: str | None = None
        self.best_return: float | None = None
        self.last_evaluation: dict[str, float] = {}
        self.evaluated_at: int | None = None
        self.checkpoint_path: Path | None = None
        self._log = log
        self._progress = progress
        self._evaluator = evaluator
        self._guard = guard
        self._dataset = dict(dataset or {})
        self._log_cadence = Cadence(config.log_interval)
        self._save_cadence = Cadence(config.checkpoint_interval)
        self._save_failed = False
        self._acting = ActingPolicy(learner)
        self._mark = (time.monotonic(), clock.ticks)
        self._checkpoint_cost = [0.0, 0.0]
        self._restored_total = 0

    # The loop's side.

    @property
    def running(self) -> bool:
        """False once a callback or a signal asked to stop."""
        return not self.should_stop and self._guard.received is None

    def begin(self) -> None:
        """State is whole from here on: whatever fails later leaves something worth saving."""
        for name, callback in self._named_callbacks():
            try:
                files.encode_json(callback.state_dict())
            except ValueError as error:
                raise ConfigError(f"callbacks: the state_dict of {name} must be plain data: {error}") from None
        self.begun = True
        if self._evaluator is not None and self.running and self.evaluated_at != self.clock.ticks:
            self._evaluator.start()
        for callback in self.callbacks:
            callback.on_training_start(self)

    def enter_phase(self, phase: str) -> None:
        """Switch the clock; cadences start anew because they count something else."""
        if self.clock.phase != phase:
            self.clock.phase = phase
            for cadence in (self._log_cadence, self._save_cadence):
                cadence.last = self.clock.now
            for callback in self.callbacks:
                callback.on_phase(self)

    def tick(self) -> None:
        """After each iteration of a loop: everything that happens every so often."""
        now = self.clock.now
        for callback in self.callbacks:
            callback.on_step(self)
        reported = self._log_cadence.due(now)
        if reported:
            self.report()
        retry = self._save_failed and reported
        if self._save_cadence.due(now) or retry or self._guard.save_requested:
            self._guard.save_requested = False
            self.save()
        self._progress.advance(self.clock.ticks)

    def until_due(self, limit: int) -> int:
        """How many ticks a loop may take at once before something is due, at most `limit`."""
        now = self.clock.now
        bounds = [self._log_cadence.next(now), self._save_cadence.next(now)]
        bounds += [due for callback in self.callbacks if (due := callback.next_due(now)) is not None]
        return max(1, min([limit, *(bound - now for bound in bounds)]))

    # What callbacks may do.

    def stop(self, reason: str) -> None:
        """End the run after this iteration; kept in the checkpoint."""
        if not self.should_stop:
            self.should_stop, self.stop_reason = True, reason

    def say(self, text: str) -> None:
        self._progress.say(text)

    def evaluate(self) -> dict[str, float]:
        """Evaluate the present policy, once per tick; keeps the best one in `best/`."""
        if self._evaluator is None or self.config.eval_episodes == 0:
            return {}
        if self.evaluated_at != self.clock.ticks:
            check_finite(self.learner, f"by step {self.clock.ticks}")
            metrics = self._evaluator.run(self._acting.current(), self.config.eval_episodes)
            self.last_evaluation, self.evaluated_at = metrics, self.clock.ticks
            row = {
                "eval/mean_reward": metrics["eval_return_mean"],
                "eval/mean_ep_length": metrics["eval_length_mean"],
            }
            if "eval_normalized_score" in metrics:
                row["eval/normalized_score"] = metrics["eval_normalized_score"]
            self._log.log(self.clock.ticks, row)
            if self.best_return is None or metrics["eval_return_mean"] > self.best_return:
                self.best_return = metrics["eval_return_mean"]
                self._save_best()
            for callback in self.callbacks:
                callback.on_evaluation(self, metrics)
        return self.last_evaluation

    # Reports and state.

    def report(self) -> None:
        """Write one row of metrics: the only host read of the terms."""
        check_finite(self.learner, f"by step {self.clock.ticks}")
        seconds, ticks = self._mark
        now = time.monotonic()
        rate = (self.clock.ticks - ticks) / max(now - seconds, 1e-9)
        self._mark = (now, self.clock.ticks)
        row = self.regime.statistics()
        row |= {f"train/{_tag(name)}": float(term) for name, term in self.learner.terms.items()}
        rates = {name: float(o.learning_rate) for name, o in self.learner.optimizers.items()}
        row["train/learning_rate"] = rates.get("actor", next(iter(rates.values())))
        row["train/n_updates"] = self.learner.updates
        row |= {"time/fps": rate, "time/total_timesteps": self.clock.global_step}
        self._log.log(self.clock.ticks, row)

    def save(self) -> None:
        """Write a checkpoint; a full disk is reported once and tried again at the next report."""
        check_finite(self.learner, f"by step {self.clock.ticks}")
        self._log.flush()
        tensors, records, rows = self._state()
        try:
            info = write_checkpoint(
                self.run.checkpoints,
                self.clock.ticks,
                tensors=tensors,
                records=records,
                rows=rows,
                previous=self.checkpoint_path,
            )
        except NotPlainDataError:
            raise
        except CheckpointError as error:
            if not self._save_failed:
                self.say(f"warning: {error}; training goes on and tries again")
            self._save_failed = True
            return
        self._save_failed = False
        self.checkpoint_path = info.path
        self._checkpoint_cost = [info.num_bytes, self._checkpoint_cost[1] + info.seconds]
        with self._deleting(self.run.checkpoints):
            prune(self.run.checkpoints, self.config.keep_checkpoints)
        for callback in self.callbacks:
            callback.on_checkpoint(self, info.path)

    def _save_best(self) -> None:
        tensors, records, _ = self._state()
        try:
            info = write_checkpoint(
                self.run.best, self.clock.ticks, tensors={"networks": tensors["networks"]}, records=records
            )
        except CheckpointError as error:
            self.say(f"warning: {error}; the best policy was not saved")
            return
        with self._deleting(self.run.best):
            # Not by age: a killed run may have left one from steps that were never taken up again.
            for path in list_checkpoints(self.run.best):
                if path != info.path:
                    discard(path)

    @contextmanager
    def _deleting(self, folder: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.say(f"warning: {folder}: old checkpoints stay: {error.strerror or error}")

    def record(self, **fields: Any) -> None:
        """Note something in run.json, which a full disk may refuse without harm to the run."""
        try:
            self.run.update(**fields)
        except OSError as error:
            self.say(f"warning: {self.run.path / 'run.json'}: cannot be written: {error.strerror or error}")

    def _state(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any], RowsToSave | None]:
        """Everything: networks, optimisers, counters, random numbers, cadence, callbacks, the regime's own."""
        learner = self.learner.state_dict()
        saved = self.regime.save()
        tensors = {
            "networks": learner["networks"],
            "optimizers": learner["optimizers"],
            "random": {"updates": self.learner.generator.get_state()},
            **saved.tensors,
        }
        trainer = {
            "clock": asdict(self.clock),
            "counters": learner["counters"],
            "terms": {name: float(term) for name, term in self.learner.terms.items()},
            "should_stop": self.should_stop,
            "stop_reason": self.stop_reason,
            "best_return": self.best_return,
            "last_evaluation": self.last_evaluation,
            "evaluated_at": self.evaluated_at,
            "log_rows": self._log.rows,
            "cadence": {"log": self._log_cadence.last, "save": self._save_cadence.last},
            "callbacks": {name: callback.state_dict() for name, callback in self._named_callbacks()},
        }
        records = {
            "trainer": trainer,
            "config": self.config.to_dict(),
            "spaces": asdict(self.spaces),
            "dataset": self._dataset,
            **saved.records,
        }
        return tensors, records, saved.rows

    def _named_callbacks(self) -> Iterator[tuple[str, Callback]]:
        """Callbacks by the names their state is kept under; the second of one name is `name#2`."""
        seen: Counter[str] = Counter()
        for callback in self.callbacks:
            seen[callback.name] += 1
            count = seen[callback.name]
            yield callback.name if count == 1 else f"{callback.name}#{count}", callback

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take up the session's own state; learner and regime are restored by whoever made them."""
        trainer = checkpoint.records["trainer"]
        clock = trainer["clock"]
        self.clock = Clock(str(clock["phase"]), int(clock["global_step"]), int(clock["pretrain_updates"]))
        self.should_stop, self.stop_reason = trainer["should_stop"], trainer["stop_reason"]
        best = trainer["best_return"]
        self.best_return = None if best is None else float(best)
        self.last_evaluation = trainer["last_evaluation"]
        self.evaluated_at = trainer["evaluated_at"]
        self._log_cadence.last = int(trainer["cadence"]["log"])
        self._save_cadence.last = int(trainer["cadence"]["save"])
        for name, callback in self._named_callbacks():
            if name in trainer["callbacks"]:
                callback.load_state_dict(trainer["callbacks"][name])
        self._mark = (time.monotonic(), self.clock.ticks)
        self._restored_total = int(checkpoint.records["config"]["total_timesteps"])

    def continue_from(self, path: Path) -> None:
        """Later checkpoints link the unchanged replay shards of this one."""
        self.checkpoint_path = path

    def resume_or_stop(self) -> None:
        """A run that had stopped early stays stopped, and says so, unless its budget was raised."""
        if not self.should_stop:
            return
        if self.config.total_timesteps > self._restored_total:
            self.should_stop, self.stop_reason = False, None
            for callback in self.callbacks:
                callback.on_continued(self)
        else:
            self.say(f"this run had stopped: {self.stop_reason}; a larger total_timesteps lets it go on")

    def note_inexact(self, problems: Sequence[str]) -> None:
        """Record whether this run equals an uninterrupted one, and say why where it does not."""
        for problem in problems:
            self.say(f"warning: not an exact resume: {problem}")
        if problems or self.run.record.get("exact_resume") is None:
            self.record(exact_resume=not problems)

    def finish(self) -> TrainResult:
        """Last callbacks, evaluation and checkpoint; raises `TrainingInterrupted` after saving on a signal."""
        if self._guard.received is not None:
            self.save()
            raise TrainingInterrupted(
                f"interrupted at step {self.clock.ticks}; go on with: rl-training resume {self.run.path}",
                self._guard.received,
            )
        for callback in self.callbacks:
            callback.on_training_end(self)
        metrics = self.evaluate()
        self.save()
        if self._save_failed or self.checkpoint_path is None:
            raise CheckpointError(
                f"{self.run.checkpoints}: the last checkpoint could not be written and the work since "
                f"{self.checkpoint_path or 'the start'} is not saved; free some disk space and resume"
            )
        result = {
            "global_step": self.clock.global_step,
            "update_count": self.learner.updates,
            "gradient_steps": self.learner.updates,
            **{name: float(term) for name, term in self.learner.terms.items()},
            **self.regime.extra_metrics(),
            **metrics,
        }
        if self.best_return is not None:
            result["eval_return_best"] = self.best_return
        self.record(
            metrics=result,
            checkpoint_bytes=self._checkpoint_cost[0],
            checkpoint_seconds=round(self._checkpoint_cost[1], 3),
        )
        return TrainResult(self.run.path, self.checkpoint_path, result)


def _tag(name: str) -> str:
    """Terms by the names TensorBoard users know."""
    return {"alpha": "ent_coef"}.get(name, name)
