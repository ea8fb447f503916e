"""`Session`: one run. It owns the clock, the cadence of reports and checkpoints, callbacks, evaluation and log.

A loop does its work and calls `advance`; everything that happens "every so often" happens there, in one order:
callbacks (evaluation among them), report, checkpoint. A checkpoint therefore always stands between two iterations
of the loop, which is what makes a resumed run equal to an uninterrupted one. Where that order is broken off, by a
signal during an evaluation or by a callback that raises, the checkpoint says at which callback, and the resumed run
goes on there.

What the loop works on (learner, source, updates) belongs to the regime; what is saved and restored is in `state`.
"""

from __future__ import annotations

import math
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.algorithms.finite import check_finite
from rl_training.display.output import program_name
from rl_training.display.progress import Progress
from rl_training.environments.playing import Evaluator, PlayInterrupted
from rl_training.errors import CheckpointError, ConfigError, NotPlainDataError
from rl_training.experiment import files
from rl_training.experiment.checkpointing import write_checkpoint
from rl_training.experiment.logging import MetricsLog
from rl_training.experiment.metric_names import log_row, term_tag
from rl_training.experiment.retention import prune
from rl_training.experiment.runs import RunDirectory
from rl_training.runs import state
from rl_training.runs.clock import Cadence, Clock
from rl_training.runs.controls import ControlConfig, build_control_callbacks
from rl_training.runs.evaluation import Evaluations
from rl_training.runs.signals import SignalGuard, TrainingInterrupted

if TYPE_CHECKING:
    from rl_training.runs.regime import Regime


@dataclass(frozen=True)
class TrainResult:
    """Where a run lies, its last checkpoint, and its final metrics."""

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
    # The newest step that all members of its population have saved, which is not pruned.
    common_step: int | None = None
    # The callback at which `advance` is at work; None between two iterations.
    broken_off: int | None = None
    # Whether the loop is at work, so that its state may not be whole between two iterations.
    _in_step = False
    # Whether a signal has ended an evaluation: the run ends there.
    _play_interrupted = False
    # What kept the last checkpoint from being written.
    _save_failed: type[CheckpointError] | None = None
    # Whether the warning that an episode cannot be replayed was printed.
    _unreplayable = False
    # What `_standing` was when a checkpoint was last written.
    _saved: tuple[Any, ...] = ()

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
        self.learner = regime.learner
        self.spaces = regime.spaces
        self.settings = dict(spec.settings)
        self.clock = Clock(regime.first_phase)
        controls = build_control_callbacks(spec.resolved[ControlConfig])
        self.callbacks = [*controls, *regime.callbacks(), *spec.callbacks]
        self.experience = regime.experience
        self.dataset = dict(regime.dataset_record or {})
        self.metrics_log = log
        # What callbacks logged since the last report.
        self.logged: dict[str, float] = {}
        self.log_cadence = Cadence(self.config.log_interval)
        self.save_cadence = Cadence(self.config.checkpoint_interval)
        self.last_evaluation: dict[str, float] = {}
        self.mark = (time.monotonic(), self.clock.ticks)
        self.keep = self.config.keep_checkpoints
        self._extra_metrics = regime.extra_metrics
        self._progress = progress
        progress.follow(self._position)
        self._guard, self._saves_answered = guard, guard.saves
        self.evaluations = Evaluations(self, evaluator)
        self._checkpoint_cost = [0.0, 0.0]

    # The loop's side.

    @property
    def running(self) -> bool:
        """False once a callback or a signal asked to stop."""
        return not (self.should_stop or self._guard.stops or self._play_interrupted)

    @property
    def time(self) -> float:
        """Monotonic seconds; the members of a population see the same at the same step."""
        return self._guard.time

    def begin(self) -> None:
        """State is whole from here on: whatever fails later leaves something worth saving."""
        for name, callback in state.named(self.callbacks):
            try:
                files.encode_json(callback.state_dict())
            except ValueError as error:
                raise ConfigError(f"callbacks: the state_dict of {name} must be plain data: {error}") from None
        self.begun = True
        self.evaluations.start()
        for callback in self.callbacks:
            callback.on_training_start(self)
        if self.broken_off is not None:
            self.advance()
        self._in_step = True

    def enter_phase(self, phase: str) -> None:
        """Switch the clock, unless the run ends here; cadences start anew because they count something else."""
        if self.clock.phase != phase and self.running:
            self.clock.phase = phase
            for cadence in (self.log_cadence, self.save_cadence):
                cadence.last = self.clock.now
            for callback in self.callbacks:
                callback.on_phase(self)

    def advance(self) -> None:
        """Called after each iteration of a loop: callbacks, then the report and the checkpoint that are due."""
        now = self.clock.now
        self._in_step = False
        try:
            for index in range(self.broken_off or 0, len(self.callbacks)):
                self.broken_off = index
                self.callbacks[index].on_step(self)
            self.broken_off = len(self.callbacks)
            reported = self.log_cadence.due(now)
            if reported:
                self.report()
        except PlayInterrupted:
            self._play_interrupted = True
            return  # a signal: the run ends here, and evaluates first when it goes on
        finally:
            self.metrics_log.settle()
        self.broken_off = None
        retry = self._save_failed is not None and reported
        asked = self._guard.saves
        if self.save_cadence.due(now) or retry or asked > self._saves_answered:
            self._saves_answered = asked
            self.save()
        self._progress.advance(self.clock.ticks)
        self._in_step = True

    def until_due(self, limit: int) -> int:
        """How many ticks a loop may take at once before something is due, at most `limit`."""
        now = self.clock.now
        bounds = [self.log_cadence.next(now), self.save_cadence.next(now)]
        bounds += [due for callback in self.callbacks if (due := callback.next_due(now)) is not None]
        return max(1, min([limit, *(bound - now for bound in bounds)]))

    # What callbacks may do.

    def stop(self, reason: str, *, final: bool = False) -> None:
        """End the run after this iteration; kept in the checkpoint.

        A `final` stop (early stopping's) holds until the budget is raised; any other run goes on when resumed.
        """
        if not self.should_stop:
            self.should_stop, self.stop_reason, self.stop_final = True, reason, final
            self.say(f"stopping: {reason}")

    def log(self, name: str, value: float) -> None:
        """Add a number of your own to the next row of metrics (every `log_interval`), everywhere rows go.

        A name without a slash gets the prefix `custom/`. What was logged before a checkpoint and not reported yet
        is kept in it.
        """
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"session.log({name!r}, …): must be a finite number, got {value!r}")
        self.logged[name if "/" in name else f"custom/{name}"] = number

    def say(self, text: str) -> None:
        self._progress.say(text)

    def doing(self, what: str, unit: str | None = None) -> AbstractContextManager[None]:
        """Have the progress bar say what the run is at, and in which unit it counts meanwhile."""
        return self._progress.doing(what, unit)

    def _position(self) -> int:
        """Ticks, also inside a block of updates, where the clock stands still; asked from another thread."""
        learns_only = self.clock.phase != "online"
        return max(self.clock.ticks, self.learner.updates) if learns_only else self.clock.ticks

    def evaluate(self) -> dict[str, float]:
        """Evaluate the present policy, once per tick; keeps the best one in `best/`."""
        return self.evaluations.now()

    def interrupted(self) -> bool:
        """Whether a signal has come that ends the run."""
        return self._guard.received is not None

    # Reports and state.

    def report(self) -> None:
        """Log what is known of this step: the only host read of the terms."""
        self.run.fence()
        check_finite(self.learner, f"by step {self.clock.ticks}")
        seconds, ticks = self.mark
        now = time.monotonic()
        rate = (self.clock.ticks - ticks) / max(now - seconds, 1e-9)
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
        """Write a checkpoint; a full disk is reported once and tried again at the next report."""
        check_finite(self.learner, f"by step {self.clock.ticks}")
        self.metrics_log.flush()
        saved = state.save(self)
        try:
            info = write_checkpoint(
                self.run.checkpoints,
                self.clock.ticks,
                tensors=saved.tensors,
                records=saved.records,
                rows=saved.rows,
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
        if not self.run.record.get("saved"):
            self.note_in_run(saved=True)
        self.metrics_log.cover(self.clock.ticks)
        self.checkpoint_path, self.saved_step, self._saved = info.path, self.clock.ticks, self._standing()
        self._note_unreplayable()
        self._checkpoint_cost = [info.num_bytes, self._checkpoint_cost[1] + info.seconds]
        self._prune()
        for callback in self.callbacks:
            callback.on_checkpoint(self, info.path)

    def _prune(self) -> None:
        with self.deleting(self.run.checkpoints):
            prune(self.run.checkpoints, self.keep, spare=self.common_step)

    def _standing(self) -> tuple[Any, ...]:
        """Where the run stands: while it is the same, so is the checkpoint that would be written."""
        steps = None if self.experience is None else self.experience.steps
        return self.clock.ticks, self.learner.updates, steps, self.broken_off, self.evaluated_at, self.should_stop

    def rescue(self, what_failed: str) -> None:
        """Save what was learned before something failed, if it is whole and not saved already."""
        if not self.begun or self._saved == self._standing():
            return
        if self.learner.step_interrupted:
            self.say("warning: not saved: it failed in the middle of an update")
            return
        if self._in_step:
            self.note_inexact([f"{what_failed} inside a step"])
        self.save()

    @contextmanager
    def deleting(self, folder: Path) -> Iterator[None]:
        """Old checkpoints are deleted in there; where that fails, the run warns and goes on."""
        try:
            yield
        except OSError as error:
            self.say(f"warning: {folder}: old checkpoints could not be deleted: {error.strerror or error}")

    def note_in_run(self, **fields: Any) -> None:
        """Write fields into run.json; where that fails (a full disk), the run warns and goes on."""
        try:
            self.run.update(**fields)
        except OSError as error:
            self.say(f"warning: {self.run.path / 'run.json'}: cannot be written: {error.strerror or error}")

    def note_inexact(self, problems: Sequence[str]) -> None:
        """Note in run.json whether this run equals an uninterrupted one, and say why where it does not."""
        for problem in problems:
            self.say(f"warning: not an exact resume: {problem}")
        if problems:
            self._record_inexact(problems)
        elif self.run.record.get("exact_resume") is None:
            self.note_in_run(exact_resume=True)

    def _record_inexact(self, problems: Sequence[str]) -> None:
        reasons = [f"step {self.clock.ticks}: {problem}" for problem in problems]
        known = self.run.record.get("inexact", [])
        self.note_in_run(exact_resume=False, inexact=[*known, *reasons])

    def forget_scores(self, *, environment: bool, complete: bool) -> None:
        """Early stopping starts anew, because the run continues with other data or in another `environment`.

        In another environment the best score starts anew too, and a stop that was due to the scores ends. A
        `complete` run is evaluated again at the step it is at; other runs from the next step on.
        """
        for callback in self.callbacks:
            callback.on_scores_forgotten(self)
        if environment:
            self.best_return, self.evaluated_at, self.last_evaluation = None, None, {}
            self.should_stop, self.stop_reason, self.stop_final = False, None, None
            self.note_in_run(scores_from=self.clock.ticks + (not complete))
            self.say("the best score and early stopping start anew: earlier scores are of another environment")

    def _note_unreplayable(self) -> None:
        """Say once, here and in run.json, that a run resumed from this checkpoint starts an episode anew."""
        problems = [] if self.experience is None or self._unreplayable else self.experience.unreplayable()
        if problems:
            self._unreplayable = True
            self.say(
                f"warning: a resumed run will not be exact: {problems[0]} and is reset there; end episodes with "
                "wrappers: [{TimeLimit: {max_episode_steps: 1000}}]"
            )
            self._record_inexact(problems)

    def resume_or_stop(self, former_total: int) -> None:
        """A run that early stopping had ended stays so, and says so, unless its budget was raised."""
        if not self.should_stop:
            return
        if self.config.total_timesteps > former_total:
            for callback in self.callbacks:
                callback.on_continued(self)
        elif self.stop_final is not False:
            self.say(f"this run had stopped: {self.stop_reason}; a larger total_timesteps lets it go on")
            return
        self.should_stop, self.stop_reason, self.stop_final = False, None, None

    def save_last(self) -> None:
        """Save the last step; raises `TrainingInterrupted` after that on a signal."""
        self._in_step = False
        if self._guard.received is not None:
            self.save()
            raise self._interrupted(self._guard.received)
        for callback in self.callbacks:
            callback.on_training_end(self)
        self.save()

    def finish(self) -> TrainResult:
        """Evaluate what was saved last, and save what it scored."""
        before = self.evaluated_at
        try:
            metrics = self.evaluate()
        except PlayInterrupted:
            raise self._interrupted(self._guard.received or signal.SIGTERM) from None
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
        }
        if self.best_return is not None:
            result["eval_return_best"] = self.best_return
        self.note_in_run(
            metrics=result,
            checkpoint_bytes=self._checkpoint_cost[0],
            checkpoint_seconds=round(self._checkpoint_cost[1], 3),
        )
        return TrainResult(self.run.path, self.checkpoint_path, result)

    def _interrupted(self, signum: int) -> TrainingInterrupted:
        permission = " --allow-import" if ":" in (self.config.env_id or "") else ""
        command = f"{program_name()} resume {shlex.quote(str(self.run.path))}{permission}"
        return TrainingInterrupted(f"interrupted at step {self.clock.ticks}; go on with: {command}", signum)
