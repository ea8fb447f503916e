"""Callbacks, which observe, evaluate or stop a run; the session calls them at the same points in every loop."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.errors import ConfigError, nearest
from rl_training.runs.clock import Cadence

if TYPE_CHECKING:
    from rl_training.runs.session import Session


class Callback:
    """Base class of callbacks; override the methods you need.

    `session.stop(reason)` ends the run after the current step; it continues if it is resumed. If a callback raises,
    the run is saved and ends. `state_dict` must return plain data; it is stored in each checkpoint under `name` and
    passed to `load_state_dict` on resume.
    """

    @property
    def name(self) -> str:
        return type(self).__name__

    def on_training_start(self, session: Session) -> None:
        """Before the first step of a new or resumed run."""

    def on_continued(self, session: Session) -> None:
        """Before a run that early stopping had ended continues with a larger budget."""

    def on_scores_forgotten(self, session: Session) -> None:
        """Before a run continues in another environment or with other data: earlier scores no longer count."""

    def on_phase(self, session: Session) -> None:
        """After the phase of the clock has changed (RLPD: at the end of pretraining)."""

    def on_step(self, session: Session) -> None:
        """After each vector step and its updates; offline, after each block of updates."""

    def on_evaluation(self, session: Session, metrics: Mapping[str, float]) -> None:
        """After an evaluation."""

    def on_checkpoint(self, session: Session, path: Path) -> None:
        """After a checkpoint was written; again if a run resumes from one that was due by `checkpoint_interval`."""

    def on_training_end(self, session: Session) -> None:
        """After the last step, before the last checkpoint and the final evaluation."""

    def next_due(self, now: int) -> int | None:
        """The tick at which `on_step` must be called next; a block of offline updates ends there."""
        return None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class FunctionCallback(Callback):
    """A callback whose `on_step` calls `function(session)`."""

    def __init__(self, function: Callable[[Session], object]) -> None:
        self.function = function

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def on_step(self, session: Session) -> None:
        self.function(session)


def as_callbacks(given: Any) -> list[Callback]:
    """Convert a callback, a function, or a sequence of these to a list of callbacks; raises for other types."""
    callbacks = given if isinstance(given, Sequence) else [] if given is None else [given]
    return [_as_callback(one) for one in callbacks]


def _as_callback(given: Any) -> Callback:
    if isinstance(given, Callback):
        _warn_about_names(type(given))
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


def _warn_about_names(kind: type[Callback]) -> None:
    """Warn about methods with names similar to those that a run calls: `on_stp`, `_on_step`."""
    hooks = [name for name in vars(Callback) if name.startswith("on_")]
    for name in dir(kind):
        similar = name.startswith("on_") or name.removeprefix("_") in hooks
        if name not in hooks and similar and (hint := nearest(name, hooks, 0.7)):
            warnings.warn(f"callbacks: a run does not call {kind.__name__}.{name}{hint}", stacklevel=2)


class PeriodicCallback(Callback):
    """Base class of callbacks that call `on_due` every `interval` ticks of the clock."""

    def __init__(self, interval: int) -> None:
        self.cadence = Cadence(interval)

    def on_phase(self, session: Session) -> None:
        self.cadence.last = session.clock.now

    def on_step(self, session: Session) -> None:
        last = self.cadence.last
        if self.cadence.due(session.clock.now):
            try:
                self.on_due(session)
            except BaseException:
                self.cadence.last = last  # still due: a resumed run repeats it first
                raise

    def on_due(self, session: Session) -> None:
        raise NotImplementedError(f"{type(self).__name__}.on_due")

    def next_due(self, now: int) -> int | None:
        return self.cadence.next(now)

    def state_dict(self) -> dict[str, Any]:
        return {"last": self.cadence.last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.cadence.last = state["last"]


class EvaluationCallback(PeriodicCallback):
    """Evaluates the policy."""

    def on_due(self, session: Session) -> None:
        session.evaluate()


class EarlyStoppingCallback(Callback):
    """Stops when `target_return` is reached, or after `patience` evaluations without `min_improvement`.

    Patience starts at the first environment step: evaluations during RLPD's pretraining do not count. Nor does the
    evaluation of a run that stopped for another reason, because an uninterrupted run would not have it.
    """

    def __init__(
        self, *, patience: int | None = None, min_improvement: float = 0.0, target_return: float | None = None
    ) -> None:
        self.patience = patience
        self.min_improvement = min_improvement
        self.target_return = target_return
        self.best: float | None = None
        self.waited = 0
        self._stopped_early = False

    def on_training_end(self, session: Session) -> None:
        self._stopped_early = session.stop_final is False

    def on_evaluation(self, session: Session, metrics: Mapping[str, float]) -> None:
        value = metrics["eval_return_mean"]
        if self.target_return is not None and value >= self.target_return:
            session.stop(f"target_return {self.target_return:g} reached: {value:.6g}", final=True)
            return
        if session.clock.phase == "pretrain" or self._stopped_early:
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
    """Stops the run `hours` after training started; a resumed run gets the same number of hours again."""

    def __init__(self, hours: float) -> None:
        self.hours = hours
        self.end = math.inf

    def on_training_start(self, session: Session) -> None:
        self.end = session.time + 3600.0 * self.hours

    def on_step(self, session: Session) -> None:
        if session.time >= self.end:
            session.stop(f"max_hours {self.hours:g} reached")
