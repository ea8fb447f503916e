"""`Session`: the folder, clock, callbacks, evaluation, log and checkpoints of one run.

A loop calls `advance` after each iteration. All periodic work happens there, in a fixed order: callbacks (including
evaluation), report, checkpoint. A checkpoint is therefore always written between two iterations, so a resumed run
equals an uninterrupted one. If `advance` is interrupted, by a signal during an evaluation or by a callback that
raises, the checkpoint records the index of the callback, and the resumed run continues there.

The learner, the data and the updates belong to the regime; `state` defines what is saved and restored.
"""

from __future__ import annotations

import math
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike, NDArray

from rl_training.display.output import program_name
from rl_training.display.progress import Progress
from rl_training.environments.playing import Evaluator, PlayInterrupted
from rl_training.errors import CheckpointError, ConfigError, NotPlainDataError
from rl_training.experience.acting import ActingPolicy, LoadedPolicy
from rl_training.experience.base import check_finite
from rl_training.experiment import files
from rl_training.experiment.checkpointing import write_checkpoint
from rl_training.experiment.logging import MetricsLog
from rl_training.experiment.metric_names import log_row, term_tag
from rl_training.experiment.retention import prune
from rl_training.experiment.runs import RunDirectory
from rl_training.runs import state
from rl_training.runs.callbacks import PeriodicCallback
from rl_training.runs.clock import Cadence, Clock
from rl_training.runs.controls import ControlConfig, build_control_callbacks
from rl_training.runs.evaluation import Evaluations
from rl_training.runs.signals import SignalGuard, TrainingInterrupted

if TYPE_CHECKING:
    from rl_training.runs.regime import Regime


@dataclass(frozen=True)
class TrainResult:
    """The folder of a run, its last checkpoint and its final metrics."""

    run_dir: Path
    checkpoint_path: Path
    metrics: dict[str, float]


class Session:
    """One run in progress."""

    begun = False
    should_stop = False
    stop_reason: str | None = None
    stop_final: bool | None = None
    best_return: float | None = None
    evaluated_at: int | None = None
    checkpoint_path: Path | None = None
    saved_step: int | None = None
    common_step: int | None = None  # newest step that all members of its population have saved; not pruned
    scheduled_save = False  # whether the checkpoint is due; an uninterrupted run writes it too
    callback_index: int | None = None  # callback that `advance` is calling; None between two iterations
    announcing: int | None = None  # callback whose `on_evaluation` is called; None if none is
    _in_step = False  # whether the loop is inside an iteration, where the state may be inconsistent
    _play_interrupted = False  # whether a signal has interrupted an evaluation
    _save_failed: type[CheckpointError] | None = None  # error of the last checkpoint, if it could not be written
    _warned_unreplayable = False
    _saved: tuple[Any, ...] = ()  # `_version` of the last checkpoint

    def __init__(
        self,
        regime: Regime,
        run: RunDirectory,
        *,
        log: MetricsLog,
        progress: Progress,
        guard: SignalGuard,
        evaluator: Evaluator | None,
    ) -> None:
        spec = regime.spec
        self.config = spec.config
        self.run = run
        self.learner, self.spaces = regime.learner, regime.spaces
        self.settings = dict(spec.settings)
        self.clock = Clock(regime.first_phase, pretrain_updates=regime.learner.updates)
        controls = build_control_callbacks(spec.resolved[ControlConfig])
        self.callbacks = [*controls, *regime.callbacks(), *spec.callbacks]
        self.absent_callbacks: dict[str, Any] = {}  # states of callbacks that this resume was not given, by name
        self.experience = regime.experience
        self.dataset, self.data = dict(regime.dataset_record or {}), regime.dataset
        self.metrics_log = log
        self.logged: dict[str, float] = {}  # values that callbacks have logged since the last report
        self.log_cadence = Cadence(self.config.log_interval)
        self.save_cadence = Cadence(self.config.checkpoint_interval)
        periodic = [one.cadence for one in self.callbacks if isinstance(one, PeriodicCallback)]
        for cadence in (self.log_cadence, self.save_cadence, *periodic):
            cadence.last = self.clock.now  # updates of the run of `init_from` are done already
        self.last_evaluation: dict[str, float] = {}
        self.mark = (time.monotonic(), self.clock.ticks)
        before = run.record.get("seconds")
        self._started = time.monotonic() - (before if isinstance(before, int | float) else 0.0)
        self._extra_metrics = regime.extra_metrics
        self._progress = progress
        progress.follow(self._position)
        self._guard, self._saves_answered = guard, guard.saves
        self.evaluations = Evaluations(self, evaluator)

    # Called by the loops.

    @property
    def running(self) -> bool:
        """False after a callback or a signal has stopped the run."""
        return not (self.should_stop or self._guard.stops or self._play_interrupted)

    @property
    def time(self) -> float:
        """Monotonic seconds; the same for all members of a population at the same step."""
        return self._guard.time

    @property
    def seconds(self) -> float:
        """Training time, summed over all resumptions."""
        return round(time.monotonic() - self._started, 3)

    def begin(self, resumed: Path | None = None) -> None:
        """Start training. From here on a failure writes a checkpoint.

        `resumed`: the checkpoint whose `on_checkpoint` calls are repeated, because they came after its state.
        """
        for name, callback in state.named_callbacks(self.callbacks):
            try:
                files.encode_json(callback.state_dict())
            except ValueError as error:
                raise ConfigError(f"callbacks: the state_dict of {name} must be plain data: {error}") from None
        self.begun = True
        self.evaluations.start()
        for callback in self.callbacks:
            callback.on_training_start(self)
        if resumed is not None:
            if resumed == self.checkpoint_path:
                self._saved = self._version()  # if a callback raises, the next resume calls it again
            self._announce(resumed)
        if self.announcing is not None:
            self.evaluations.announce(self.announcing)
        if self.callback_index is not None:
            self.advance()
        self._in_step = True

    def enter_phase(self, phase: str, *, evaluates: bool = False) -> None:
        """Set the phase of the clock and restart all cadences, unless the run ends here; `evaluates` before."""
        if evaluates and self.clock.phase != phase:
            self._in_step = False
            try:
                self.evaluate()
            except PlayInterrupted:
                self._play_interrupted = True  # a resumed run evaluates first
            finally:
                self.metrics_log.settle()
            self._in_step = True
        if self.clock.phase != phase and self.running:
            self.clock.phase = phase
            self.log_cadence.last = self.save_cadence.last = self.clock.now
            for callback in self.callbacks:
                callback.on_phase(self)

    def advance(self) -> None:
        """End an iteration: call the callbacks, then write the report and the checkpoint if they are due."""
        now = self.clock.now
        self._in_step = False
        try:
            for index in range(self.callback_index or 0, len(self.callbacks)):
                self.callback_index = index
                self.callbacks[index].on_step(self)
            self.callback_index = len(self.callbacks)
            reported = self.log_cadence.due(now)
            if reported:
                self.report()
        except PlayInterrupted:
            self._play_interrupted = True
            return  # the run ends here; a resumed run evaluates first
        finally:
            self.metrics_log.settle()
        self.callback_index = None
        retry, requests = self._save_failed is not None and reported, self._guard.saves
        self.scheduled_save = self.save_cadence.due(now)
        if self.scheduled_save or retry or requests > self._saves_answered:
            self._saves_answered = requests
            self.save()
        self.scheduled_save = False
        self._progress.advance(self.clock.ticks)
        self._in_step = True

    def until_due(self, limit: int) -> int:
        """Number of ticks until something is due, at most `limit`."""
        now = self.clock.now
        bounds = [self.log_cadence.next(now), self.save_cadence.next(now)]
        bounds += [due for callback in self.callbacks if (due := callback.next_due(now)) is not None]
        return max(1, min([limit, *(bound - now for bound in bounds)]))

    # Called by callbacks.

    def stop(self, reason: str, *, final: bool = False) -> None:
        """End the run after this iteration.

        A run with a `final` stop (early stopping) continues only if its budget is increased; other runs continue
        when they are resumed.
        """
        if not self.should_stop:
            self.should_stop, self.stop_reason, self.stop_final = True, reason, final
            self.say(f"stopping: {reason}")

    def log(self, name: str, value: float) -> None:
        """Add a value to the next row of metrics, which is written every `log_interval` ticks and at the end.

        A name without a slash gets the prefix `custom/`. Checkpoints store values that are not reported yet.
        """
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"session.log({name!r}, …): must be a finite number, got {value!r}")
        self.logged[name if "/" in name else f"custom/{name}"] = number

    @cached_property
    def _policy(self) -> ActingPolicy:
        return ActingPolicy(self.learner)

    def predict(self, obs: ArrayLike, deterministic: bool | None = None) -> NDArray[Any]:
        """The current policy's action in the environment's units, for one observation or a batch."""
        return LoadedPolicy(self._policy.current(), self.spaces, self.config).predict(
            obs, deterministic=deterministic
        )

    def say(self, text: str) -> None:
        """Print a line on the console."""
        self._progress.say(text)

    def doing(self, what: str) -> AbstractContextManager[None]:
        """Show `what` in the progress bar inside the context."""
        return self._progress.doing(what)

    def _position(self) -> int:
        """Ticks, including updates of an unfinished block; called from another thread."""
        return self.clock.ticks if self.clock.phase == "online" else max(self.clock.ticks, self.learner.updates)

    def evaluate(self) -> dict[str, float]:
        """Evaluate the current policy, at most once per tick, and save the best one in `best/`."""
        return self.evaluations.now()

    def interrupted(self) -> bool:
        """Whether a signal that ends the run has been received."""
        return self._guard.received is not None

    def report(self) -> None:
        """Log the metrics of this step."""
        self.run.fence()
        self.check_finite()
        (before, ticks), now = self.mark, time.monotonic()
        rate = (self.clock.ticks - ticks) / max(now - before, 1e-9)
        self.mark = (now, self.clock.ticks)
        row = {} if self.experience is None else log_row(self.experience.statistics())
        row |= {term_tag(name): float(term) for name, term in self.learner.terms.items()}
        rates = {name: float(o.learning_rate) for name, o in self.learner.optimizers.items()}
        row |= log_row(
            {
                "learning_rate": rates.get("actor", next(iter(rates.values()))),
                "update_count": self.learner.updates,
                "steps_per_second": rate,
                "global_step": self.clock.global_step,
            }
        )
        self.metrics_log.log(self.clock.ticks, row | self.logged)
        self.logged = {}

    def save(self) -> None:
        """Write a checkpoint; if that fails (a full disk), warn once and try again at the next report."""
        self.check_finite()
        self.metrics_log.flush()
        saved = state.save(self)
        try:
            path = write_checkpoint(
                self.run.checkpoints,
                self.clock.ticks,
                **vars(saved),
                previous=self.checkpoint_path,
                fence=self.run.fence,
            )
        except NotPlainDataError:
            raise
        except CheckpointError as error:
            if not self._save_failed:
                self.say(f"warning: {error}; training goes on and tries again")
            self._save_failed = type(error)
            return
        self._save_failed = None
        self.note_in_run(saved=True, seconds=self.seconds)
        self.metrics_log.cover(self.clock.ticks)
        self.checkpoint_path, self.saved_step, self._saved = path, self.clock.ticks, self._version()
        self._note_unreplayable()
        self._prune()
        self._announce(path)

    def _announce(self, checkpoint: Path) -> None:
        for callback in self.callbacks:
            callback.on_checkpoint(self, checkpoint)

    def check_finite(self) -> None:
        """Raise `DivergedError` if a stored row, a parameter or a term is not finite."""
        if self.experience is not None:
            self.experience.check()
        check_finite(self.learner, f"by step {self.clock.ticks}")

    def _prune(self) -> None:
        with self.deleting(self.run.checkpoints):
            prune(self.run.checkpoints, self.config.keep_checkpoints, spare=self.common_step)

    def _version(self) -> tuple[Any, ...]:
        """Values that change whenever the contents of a checkpoint change."""
        steps = None if self.experience is None else self.experience.steps
        counts = self.clock.ticks, self.learner.updates, steps
        return *counts, self.callback_index, self.announcing, self.evaluated_at, self.should_stop

    def rescue(self, what_failed: str) -> None:
        """Save a checkpoint after a failure, if the state is consistent and not saved already."""
        if not self.begun or self._saved == self._version():
            return
        if self.learner.step_interrupted:
            self.say("warning: not saved: it failed in the middle of an update")
            return
        if self._in_step:
            problem = f"{what_failed} inside a step"
            self.say(f"warning: a resumed run will not be exact: {problem}")
            self.record_inexact([problem])
        self.save()

    @contextmanager
    def deleting(self, folder: Path) -> Iterator[None]:
        """Turn errors of deleting checkpoints in `folder` into warnings."""
        try:
            yield
        except OSError as error:
            self.say(f"warning: {folder}: old checkpoints could not be deleted: {error.strerror or error}")

    def note_in_run(self, **fields: Any) -> None:
        """Write fields to run.json; if that fails (a full disk), only warn."""
        try:
            self.run.update(**fields)
        except OSError as error:
            self.say(f"warning: {self.run.path / 'run.json'}: cannot be written: {error.strerror or error}")

    def note_inexact(self, problems: Sequence[str]) -> None:
        """Record in run.json whether this run equals an uninterrupted one; warn about each of `problems`."""
        for problem in problems:
            self.say(f"warning: not an exact resume: {problem}")
        if problems:
            self.record_inexact(problems)
        elif self.run.record.get("exact_resume") is None:
            self.note_in_run(exact_resume=True)

    def record_inexact(self, problems: Sequence[str]) -> None:
        reasons = [f"step {self.clock.ticks}: {problem}" for problem in problems]
        known = self.run.record.get("inexact", [])
        self.note_in_run(exact_resume=False, inexact=[*known, *reasons])

    def _note_unreplayable(self) -> None:
        """Warn once, and record in run.json, that a run resumed from this checkpoint cannot replay an episode."""
        if self.experience is None or self._warned_unreplayable:
            return
        if problems := self.experience.unreplayable():
            self._warned_unreplayable = True
            self.say(
                f"warning: a resumed run will not be exact: {problems[0]} and is reset there; "
                f"{self.experience.inexact_remedy}"
            )
            self.record_inexact(problems)

    def clear_stop(self, former_total: int) -> None:
        """Clear the stop of a resumed run; one by early stopping is only cleared if the budget was increased."""
        if not self.should_stop:
            return
        if self.config.total_timesteps > former_total:
            for callback in self.callbacks:
                callback.on_continued(self)
        elif self.stop_final is not False:
            self.say(f"this run had stopped: {self.stop_reason}; increase total_timesteps to continue")
            return
        self.should_stop, self.stop_reason, self.stop_final = False, None, None

    def save_last(self) -> None:
        """Save the last step; then raise `TrainingInterrupted` if a signal has ended the run."""
        self._in_step = False
        if self._guard.received is not None:
            self.save()
            raise self._interrupted(self._guard.received)
        for callback in self.callbacks:
            callback.on_training_end(self)
        self._log_rest()
        self.save()

    def _log_rest(self) -> None:
        """Write the values that callbacks have logged since the last report, unless a resumed run reports them.

        Called before each of the last two checkpoints, which must not contain values that are in the log: that of
        the last step, and that of the final evaluation, whose callbacks may log too.
        """
        if self.logged and self.stop_final is not False:
            self.metrics_log.log(self.clock.ticks, self.logged)
            self.logged = {}

    def finish(self) -> TrainResult:
        """Evaluate the final policy, save its score and return the result."""
        before = self.evaluated_at
        try:
            metrics = self.evaluate()
        except PlayInterrupted:
            raise self._interrupted(self._guard.received or signal.SIGTERM) from None
        self._log_rest()
        if self.evaluated_at != before:
            self.save()
        self._prune()
        if self._save_failed or self.checkpoint_path is None:
            raise (self._save_failed or CheckpointError)(
                f"{self.run.checkpoints}: the last checkpoint could not be written and the work since "
                f"{self.checkpoint_path or 'the start'} is not saved; free some disk space and resume"
            )
        result = {
            "global_step": self.clock.global_step,
            "update_count": self.learner.updates,
            "gradient_steps": self.learner.updates,
            **{name: float(term) for name, term in self.learner.terms.items()},
            **self._extra_metrics(self.clock),
            **metrics,
            **({} if self.best_return is None else {"eval_return_best": self.best_return}),
        }
        self.note_in_run(metrics=result)
        return TrainResult(self.run.path, self.checkpoint_path, result)

    def _interrupted(self, signum: int) -> TrainingInterrupted:
        command = f"{program_name()} resume {shlex.quote(str(self.run.path))}{self.config.permission()}"
        return TrainingInterrupted(f"interrupted at step {self.clock.ticks}; go on with: {command}", signum)
