"""The rhythm of learners that make many critic updates per environment step and one actor update."""

from __future__ import annotations

from typing import Any

from rl_training.algorithms.base import Learner
from rl_training.algorithms.temperature import SoftConfig
from rl_training.settings import PositiveInt


class DelayedActorConfig(SoftConfig):
    """`policy_delay`: critic updates per actor update; unset, the trainer's `gradient_updates_per_step`."""

    policy_delay: PositiveInt | None = None
    """critic updates per actor update; null means `gradient_updates_per_step`"""


class DelayedActor(Learner):
    """A learner whose actor moves at the last of every `policy_delay` updates (a bare learner: at each)."""

    @classmethod
    def configure(cls, config: Any, updates_per_step: int) -> Any:
        delay = updates_per_step if config.policy_delay is None else config.policy_delay
        return config.model_copy(update={"policy_delay": delay})

    def phase(self) -> bool:
        """Whether this update moves the actor."""
        return self.ends_period(self.config.policy_delay or 1)
