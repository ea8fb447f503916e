"""`eval_interval` and `early_stopping`: the one way they reach every trainer, online and offline."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rl_training.runtime.callbacks import (
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
    metric: Literal["return", "fqe"] = "return"
    """what counts: the mean return of evaluations, or, offline and without an environment, the value of the policy
    by FQE on held-out episodes (`validation_fraction`)"""
    fqe_updates: PositiveInt = 2_000
    """updates of FQE at each evaluation, with `metric: fqe`"""

    @model_validator(mode="after")
    def _something_to_stop_at(self) -> Self:
        if self.patience is None and self.target_return is None:
            raise ValueError("early_stopping needs patience or target_return")
        if self.metric == "fqe" and self.target_return is not None:
            raise ValueError("early_stopping: FQE ranks policies and promises no return; use patience alone")
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
        metric="fqe_value" if settings.metric == "fqe" else "eval_return_mean",
    )
