"""`Evaluations`: evaluates the policy of a run between training steps and saves the best one in `best/`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.environments.playing import Evaluator
from rl_training.errors import CheckpointError
from rl_training.experience.acting import ActingPolicy
from rl_training.experiment.checkpointing import write_checkpoint
from rl_training.experiment.metric_names import log_row
from rl_training.experiment.retention import (
    copy_checkpoint,
    discard,
    folder_of,
    list_checkpoints,
    set_aside,
    step_of,
)
from rl_training.runs import state
from rl_training.runs.changes import scored_elsewhere

if TYPE_CHECKING:
    from rl_training.runs.session import Session


class Evaluations:
    """The evaluations of one session; disabled if `evaluator` is None or `eval_episodes` is 0."""

    def __init__(self, session: Session, evaluator: Evaluator | None) -> None:
        self._session = session
        self._evaluator = evaluator if session.config.eval_episodes > 0 else None
        on_device = evaluator is not None and evaluator.on_device
        self._acting = ActingPolicy(session.learner, copies=False if on_device else None)

    def start(self) -> None:
        """Start environment processes, which takes seconds, unless the current policy was evaluated."""
        if self._evaluator is not None and self._session.running and self._is_new():
            self._evaluator.start()

    def now(self) -> dict[str, float]:
        """Evaluate the current policy, at most once per tick, and return the metrics."""
        if self._evaluator is None:
            return {}
        if self._is_new():
            self._session.check_finite()
            self._record(self._play(self._evaluator))
        return self._session.last_evaluation

    def _is_new(self) -> bool:
        """Whether the current policy has not been evaluated."""
        return self._session.evaluated_at != self._session.clock.ticks

    def _play(self, evaluator: Evaluator) -> dict[str, float]:
        """Play the episodes; warn the first time that one was truncated."""
        session, cut_before = self._session, evaluator.notice
        with session.doing("evaluating"):
            metrics = evaluator.run(self._acting.current(), session.config.eval_episodes, session.interrupted)
        if evaluator.notice and not cut_before:
            session.say(f"warning: {evaluator.notice}")
        return metrics

    def _record(self, metrics: dict[str, float]) -> None:
        """Log the metrics, save the best policy, call the callbacks."""
        session = self._session
        session.run.fence()
        session.last_evaluation, session.evaluated_at = metrics, session.clock.ticks
        session.metrics_log.log(session.clock.ticks, log_row(metrics))
        if session.best_return is None or metrics["eval_return_mean"] > session.best_return:
            session.best_return = metrics["eval_return_mean"]
            self._save_best()
        self.announce()

    def announce(self, first: int = 0) -> None:
        """Call `on_evaluation` of the callbacks from index `first`; if one raises, a resumed run starts with it."""
        session = self._session
        for index, callback in enumerate(session.callbacks[first:], first):
            session.announcing = index
            callback.on_evaluation(session, session.last_evaluation)
        session.announcing = None

    def copy_best(self, origin: Path) -> None:
        """Save the best policy of the run that resumes from `origin` in a new folder.

        If a later policy has replaced it, its score is forgotten; the best policy from here on is saved.
        """
        session, folder = self._session, folder_of(origin)
        best = list_checkpoints(folder / session.run.best.name) if folder != origin else []
        if session.best_return is None:
            return
        if self._is_best():
            self._save_best()
        elif not best:
            score = f"{session.best_return:.6g}"
            session.say(f"best/ is empty until a policy exceeds {score}; the policy with this score is not stored")
        elif step_of(best[-1]) <= session.clock.ticks:
            copy_checkpoint(best[-1], session.run.best / best[-1].name)
        else:
            session.best_return = None

    def _is_best(self) -> bool:
        """Whether the current policy has the best score."""
        session = self._session
        return not self._is_new() and session.last_evaluation.get("eval_return_mean") == session.best_return

    def set_best_aside(self, after: int = -1) -> None:
        """Move a best policy of a step later than `after` to `earlier_best/`."""
        run = self._session.run
        with self._session.deleting(run.best):
            for path in list_checkpoints(run.best):
                if step_of(path) > after:
                    kept = set_aside(path, run.earlier_best)
                    self._session.say(f"the earlier best policy is now in {kept}")

    def set_discarded_best_aside(self) -> None:
        """Move a best policy of steps that an inexact run repeats; forget a score whose policy it has replaced."""
        session = self._session
        self.set_best_aside(session.clock.ticks)
        if session.best_return is None or list_checkpoints(session.run.best):
            return
        if self._is_best():
            self._save_best()
        else:
            session.best_return = None
            session.say("the best score is reset: the policy with this score is no longer stored")

    def _save_best(self) -> None:
        session = self._session
        saved = state.save_networks(session)
        try:
            best = write_checkpoint(session.run.best, session.clock.ticks, **vars(saved), fence=session.run.fence)
        except CheckpointError as error:
            session.say(f"warning: {error}; the best policy was not saved")
            return
        with session.deleting(session.run.best):
            # Including later steps, which a killed run may have left.
            for path in list_checkpoints(session.run.best):
                if path == best:
                    continue
                if scored_elsewhere(path, session.config):
                    set_aside(path, session.run.earlier_best)
                else:
                    discard(path)
