"""`eval_interval`, `early_stopping` and `max_hours`, the same for all regimes: their settings and callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from rl_training.experiment.compat import REMOVED_FROM_EARLY_STOPPING
from rl_training.runs.callbacks import Callback, EarlyStoppingCallback, EvaluationCallback, TimeLimitCallback
from rl_training.settings import OnlyWith, PositiveFloat, PositiveInt, Settings


class EarlyStopping(Settings):
    """At least one of `patience` and `target_return` must be set."""

    patience: PositiveInt | None = None
    """evaluations without improvement after which the run stops"""
    min_improvement: Annotated[float, Field(ge=0), OnlyWith("patience")] = 0.0
    """minimum increase of the mean return that counts as an improvement"""
    target_return: float | None = None
    """the run stops when the mean return of an evaluation reaches this value"""

    @model_validator(mode="before")
    @classmethod
    def _drop_removed_keys(cls, values: Any) -> Any:
        """Drop `metric: return` and `fqe_updates`, which files of version 0.2 contain; raise for other metrics."""
        if not isinstance(values, Mapping):
            return values
        if (metric := values.get("metric", "return")) != "return":
            raise ValueError(
                f"metric: {metric} does not exist; use return, or rank the checkpoints afterwards with "
                "`rl-training ope` or `rl-training select`"
            )
        return {name: value for name, value in values.items() if name not in REMOVED_FROM_EARLY_STOPPING}

    @model_validator(mode="after")
    def _has_criterion(self) -> Self:
        if self.patience is None and self.target_return is None:
            raise ValueError("early_stopping needs patience or target_return")
        return self


class ControlConfig(Settings):
    """When to evaluate and stop. A tick is an environment step online and a gradient update offline."""

    eval_interval: Annotated[PositiveInt | None, OnlyWith("eval_episodes"), OnlyWith("validation_fraction")] = None
    """environment steps (offline: updates) between evaluations; null evaluates at the end only"""
    early_stopping: EarlyStopping | None = None
    """when to stop before the end: `patience`, `target_return` or both; requires `eval_interval`"""

    max_hours: PositiveFloat | None = None
    """hours after which the run is saved and ends; a resumed run gets the same number of hours again"""

    @model_validator(mode="after")
    def _stopping_needs_evaluation(self) -> Self:
        if self.early_stopping is not None and self.eval_interval is None:
            raise ValueError("early_stopping needs eval_interval")
        return self


def build_control_callbacks(controls: ControlConfig) -> list[Callback]:
    """The callbacks that implement `controls`."""
    callbacks: list[Callback] = []
    if controls.eval_interval is not None:
        callbacks.append(EvaluationCallback(controls.eval_interval))
    if controls.early_stopping is not None:
        callbacks.append(EarlyStoppingCallback(**dict(controls.early_stopping)))
    if controls.max_hours is not None:
        callbacks.append(TimeLimitCallback(controls.max_hours))
    return callbacks
