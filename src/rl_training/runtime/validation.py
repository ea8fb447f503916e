"""Validation of offline training on held-out episodes.

`validation_fraction` holds out whole episodes, the same in every run. At each evaluation, and at the end, the
distance between the policy's actions and theirs is logged; for behaviour cloning this is the error on unseen data.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import Learner
from rl_training.data.datasets import TransitionDataset
from rl_training.experience.fqe_data import action_distance, acts
from rl_training.experiment.metric_names import log_row
from rl_training.runs.callbacks import PeriodicCallback
from rl_training.runs.session import Session
from rl_training.settings import Settings

# Maximum number of rows whose actions are compared.
_MAX_ROWS = 10_000


class ValidationConfig(Settings):
    """Data that are held out from training."""

    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """fraction of the episodes to hold out; the distance between the policy's actions and theirs is logged at each
    evaluation and at the end"""


class Validation:
    """Measures a policy on held-out episodes."""

    def __init__(self, held_out: TransitionDataset, rows: Tensor, learner: Learner) -> None:
        self.discrete = held_out.spaces.discrete
        self._cached: tuple[int, dict[str, float]] = (-1, {})
        compared = held_out.layout.unpack(rows[:: max(1, len(rows) // _MAX_ROWS)].to(learner.device))
        self._obs, self._actions = compared.obs, compared.actions.view(len(compared.obs), -1).to(compared.obs.dtype)

    def measure(self, learner: Learner) -> dict[str, float]:
        """The metrics of the learner's policy, which acts as in evaluation; cached until the next update."""
        if self._cached[0] != learner.updates:
            distance = action_distance(acts(learner.model.policy, self._obs), self._actions, self.discrete)
            self._cached = learner.updates, {"validation_distance": distance}
        return self._cached[1]


class ValidationCallback(PeriodicCallback):
    """Measures the policy on held-out episodes every `interval` ticks."""

    def __init__(self, validation: Validation, interval: int) -> None:
        super().__init__(interval)
        self.validation = validation

    def on_due(self, session: Session) -> None:
        session.metrics_log.log(session.clock.ticks, log_row(self.validation.measure(session.learner)))
