"""Callbacks: watch a run, evaluate it, stop it. Every loop calls them through the session, at the same points."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.errors import ConfigError
from rl_training.runs.clock import Cadence

if TYPE_CHECKING:
    from rl_training.runs.session import Session


class Callback:
    """Override what you need. `session.stop(reason)` ends the run after the current step; resumed, it goes on.

    An exception raised here ends the run after saving it. `state_dict` must be plain data; it is stored in each
    checkpoint under `name` and given back on resume.
    """

    @property
    def name(self) -> str:
        return type(self).__name__

    def on_training_start(self, session: Session) -> None:
        """Before the first step, also of a resumed run."""

    def on_continued(self, session: Session) -> None:
        """Before a run that early stopping had ended goes on with a larger budget."""

    def on_scores_forgotten(self, session: Session) -> None:
        """Before a run continues in another environment or with other data: earlier scores no longer count."""

    def on_phase(self, session: Session) -> None:
        """When the clock begins to count something else (RLPD: after its pretraining)."""

    def on_step(self, session: Session) -> None:
        """After each vector step and its updates (offline: after each block of updates)."""

    def on_evaluation(self, session: Session, metrics: Mapping[str, float]) -> None:
        """After an evaluation."""

    def on_checkpoint(self, session: Session, path: Path) -> None:
        """After a checkpoint was written."""

    def on_training_end(self, session: Session) -> None:
        """After the last step, before the last checkpoint and the evaluation of what it holds."""

    def next_due(self, now: int) -> int | None:
        """The tick at which `on_step` must be called next; offline loops run in blocks up to it."""
        return None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class FunctionCallback(Callback):
    """A plain function of the session, called as `on_step`."""

    def __init__(self, function: Callable[[Session], object]) -> None:
        self.function = function

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def on_step(self, session: Session) -> None:
        self.function(session)


def as_callbacks(given: Any) -> list[Callback]:
    """One callback or several, of which any may be a plain function; anything else is refused in one line."""
    several = given if isinstance(given, Sequence) else [] if given is None else [given]
    return [_as_callback(one) for one in several]


def _as_callback(given: Any) -> Callback:
    if isinstance(given, Callback):
        return given
    if isinstance(given, type) and issubclass(given, Callback):
        raise ConfigError(f"callbacks: {given.__name__} is a class; give an instance of it, {given.__name__}()")
    if not callable(given):
        raise ConfigError(
            f"callbacks: give a Callback, a function of the session, or a list of such, got {given!r}"
        )
    try:
        inspect.signature(given).bind(None)
    except TypeError:
        raise ConfigError(
            f"callbacks: {getattr(given, '__name__', given)!r} must take one argument, the session"
        ) from None
    except ValueError:  # a built-in without a signature
        pass
    return FunctionCallback(given)


class EvaluationCallback(Callback):
    """Evaluates every `interval` ticks of the clock."""

    def __init__(self, interval: int) -> None:
        self.cadence = Cadence(interval)

    def on_phase(self, session: Session) -> None:
        self.cadence.last = session.clock.now

    def on_step(self, session: Session) -> None:
        last = self.cadence.last
        if self.cadence.due(session.clock.now):
            try:
                session.evaluate()
            except BaseException:
                self.cadence.last = last  # still due: a run that goes on from here evaluates first
                raise

    def next_due(self, now: int) -> int | None:
        return self.cadence.next(now)

    def state_dict(self) -> dict[str, Any]:
        return {"last": self.cadence.last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.cadence.last = state["last"]


class EarlyStoppingCallback(Callback):
    """Stops when `target_return` is reached, or after `patience` evaluations without `min_improvement`.

    Patience counts from the first environment step: what RLPD's pretraining scores is no measure of its progress.
    """

    def __init__(
        self,
        *,
        patience: int | None = None,
        min_improvement: float = 0.0,
        target_return: float | None = None,
    ) -> None:
        self.patience = patience
        self.min_improvement = min_improvement
        self.target_return = target_return
        self.best: float | None = None
        self.waited = 0

    def on_evaluation(self, session: Session, metrics: Mapping[str, float]) -> None:
        value = metrics["eval_return_mean"]
        if self.target_return is not None and value >= self.target_return:
            session.stop(f"target_return {self.target_return:g} reached: {value:.6g}", final=True)
            return
        if session.clock.phase == "pretrain":
            return
        if self.best is None or value > self.best + self.min_improvement:
            self.best, self.waited = value, 0
            return
        self.waited += 1
        if self.patience is not None and self.waited >= self.patience:
            session.stop(f"no improvement over {self.best:.6g} in {self.waited} evaluations", final=True)

    def on_continued(self, session: Session) -> None:
        self.waited = 0

    def on_scores_forgotten(self, session: Session) -> None:
        self.best, self.waited = None, 0

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best, self.waited = state["best"], state["waited"]


class TimeLimitCallback(Callback):
    """Ends a run after so many hours of this process's work on it; a resumed run has the hours anew."""

    def __init__(self, hours: float) -> None:
        self.hours = hours
        self.end = math.inf

    def on_training_start(self, session: Session) -> None:
        self.end = session.time + 3600.0 * self.hours

    def on_step(self, session: Session) -> None:
        if session.time >= self.end:
            session.stop(f"max_hours {self.hours:g} reached")
