"""`eval_interval` and `early_stopping`: the one way they reach every trainer, online and offline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from rl_training.experiment.compat import REMOVED_FROM_EARLY_STOPPING
from rl_training.runs.callbacks import (
    Callback,
    EarlyStoppingCallback,
    EvaluationCallback,
    TimeLimitCallback,
)
from rl_training.settings import PositiveFloat, PositiveInt, Settings


class EarlyStopping(Settings):
    """At least one of `patience` (evaluations) and `target_return` must be given."""

    patience: PositiveInt | None = None
    """evaluations without improvement until the run stops"""
    min_improvement: Annotated[float, Field(ge=0)] = 0.0
    """what counts as an improvement of the mean return"""
    target_return: float | None = None
    """stop as soon as an evaluation's mean return reaches it"""

    @model_validator(mode="before")
    @classmethod
    def _by_return(cls, values: Any) -> Any:
        """Drop `metric: return` and `fqe_updates`, which files of version 0.2 spell out; refuse other metrics."""
        if not isinstance(values, Mapping):
            return values
        if (metric := values.get("metric", "return")) != "return":
            raise ValueError(
                f"metric: {metric} does not exist; use return, or rank the checkpoints afterwards with "
                "`rl-training ope` or `rl-training select`"
            )
        return {name: value for name, value in values.items() if name not in REMOVED_FROM_EARLY_STOPPING}

    @model_validator(mode="after")
    def _something_to_stop_at(self) -> Self:
        if self.patience is None and self.target_return is None:
            raise ValueError("early_stopping needs patience or target_return")
        return self


class ControlConfig(Settings):
    """`eval_interval` in ticks of the clock: environment steps online, gradient updates offline."""

    eval_interval: PositiveInt | None = None
    """ticks of the clock between evaluations; null evaluates at the end only"""
    early_stopping: EarlyStopping | None = None
    """when to stop before the end (see below); needs `eval_interval`"""

    max_hours: PositiveFloat | None = None
    """hours after which the run ends, saved; resumed, it goes on for as long again"""

    @model_validator(mode="after")
    def _stopping_needs_evaluating(self) -> Self:
        if self.early_stopping is not None and self.eval_interval is None:
            raise ValueError("early_stopping needs eval_interval")
        return self


def build_control_callbacks(controls: ControlConfig) -> list[Callback]:
    """The callbacks that carry out `controls`."""
    callbacks: list[Callback] = []
    if controls.eval_interval is not None:
        callbacks.append(EvaluationCallback(controls.eval_interval))
    if controls.early_stopping is not None:
        callbacks.append(_early_stopping(controls.early_stopping))
    if controls.max_hours is not None:
        callbacks.append(TimeLimitCallback(controls.max_hours))
    return callbacks


def _early_stopping(settings: EarlyStopping) -> EarlyStoppingCallback:
    return EarlyStoppingCallback(
        patience=settings.patience,
        min_improvement=settings.min_improvement,
        target_return=settings.target_return,
    )
