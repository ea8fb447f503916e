"""Minibatch size and learning-rate schedule: the optimisation settings of every algorithm."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from rl_training.settings import Fraction, NonNegativeInt, OnlyWith, PositiveInt, Settings


class Schedule(Settings):
    """Factor on the learning rate that decreases from 1 to `final_factor` over the run."""

    type: Literal["constant", "linear", "cosine"]
    """shape of the factor on the learning rate"""
    final_factor: Annotated[Fraction, OnlyWith("type", ("linear", "cosine"))] = 0.0
    """factor at the end of the run"""


def _by_name(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


class OptimizationConfig(Settings):
    """`learning_rate_schedule` is a name or a mapping with `type` and `final_factor`.

    The factor rises linearly over `warmup_steps` updates before the schedule starts. Both count updates.
    """

    batch_size: PositiveInt = 256
    """transitions per update"""
    learning_rate_schedule: Annotated[Schedule, BeforeValidator(_by_name)] = Schedule(type="constant")
    """`constant`, `linear`, `cosine`, or a mapping with `type` and `final_factor`; counts updates"""
    warmup_steps: NonNegativeInt = 0
    """updates over which the learning rate rises linearly before the schedule starts"""

    @property
    def constant(self) -> bool:
        return self.learning_rate_schedule.type == "constant" and self.warmup_steps == 0

    def factor(self, update: int, total_updates: int) -> float:
        """The factor on the learning rate at `update` (counted from 0) of `total_updates`."""
        if update < self.warmup_steps:
            return (update + 1) / self.warmup_steps
        schedule = self.learning_rate_schedule
        if schedule.type == "constant":
            return 1.0
        span = max(total_updates - self.warmup_steps, 1)
        done = min((update - self.warmup_steps) / span, 1.0)
        shape = 1.0 - done if schedule.type == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return schedule.final_factor + (1.0 - schedule.final_factor) * shape
