"""A check of advantage-weighted cloning (AWAC, CRR) during offline training.

Once the critics overestimate the policy's own actions, the advantages of the data's actions are negative, their
weights are near 0 and the policy is no longer held to the data. The terms `small_weight_share` and `target_q_mean`
show it; the latter is compared with the largest return-to-go of the data. Critics start near 0. If that return is
negative, the mean target starts above it, which counts as an overestimate only after it has stopped falling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_training.data.datasets import TransitionDataset
from rl_training.data.episodes import Episodes
from rl_training.experience.fqe_data import estimated_returns
from rl_training.runs.callbacks import PeriodicCallback
from rl_training.runs.session import Session

# Share of the weights below 0.01 from which on cloning counts as stopped.
_STOPPED = 0.7
# Intervals without a new lowest mean target after which a mean that was always too large counts as converged.
_CONVERGED = 5


def largest_return(data: TransitionDataset, gamma: float) -> float:
    """The largest discounted return-to-go of all rows; a truncated episode continues with the mean reward."""
    episodes = Episodes(*data.episodes("returns-to-go"))
    return float(estimated_returns(data.rewards.astype(np.float64), data.dones, episodes, gamma).max())


class CloningCallback(PeriodicCallback):
    """Logs the largest return-to-go of the data every `interval` ticks, and warns once if cloning has failed.

    `divisor` is the setting that divides the advantage.
    """

    def __init__(self, largest: float, divisor: str, interval: int) -> None:
        super().__init__(interval)
        self.largest, self.divisor, self.warned = largest, divisor, False
        self.lowest, self.since_lowest = 0.0, 0  # of the mean target, and the intervals since then

    def on_due(self, session: Session) -> None:
        session.log("dataset/max_return_to_go", self.largest)
        terms = session.learner.terms
        problem = self._problem(float(terms["target_q_mean"]), float(terms["small_weight_share"]))
        if problem and not self.warned:
            self.warned = True
            session.say(
                f"warning: update {session.learner.updates:,}: {problem}; use layer_norm: true, or a larger "
                f"{self.divisor}"
            )

    def _problem(self, target: float, share: float) -> str:
        self.since_lowest = 0 if target < self.lowest else self.since_lowest + 1
        self.lowest = min(self.lowest, target)
        if target > self.largest and (self.lowest <= self.largest or self.since_lowest >= _CONVERGED):
            return (
                f"the critics overestimate: their mean target, {target:.4g}, exceeds the largest return-to-go of "
                f"the data, {self.largest:.4g}"
            )
        return f"cloning has stopped: {share:.0%} of the weights are below 0.01" if share > _STOPPED else ""

    def state_dict(self) -> dict[str, Any]:
        own = {"warned": self.warned, "lowest": self.lowest, "since_lowest": self.since_lowest}
        return super().state_dict() | own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.warned = state["warned"]
        self.lowest, self.since_lowest = state.get("lowest", 0.0), state.get("since_lowest", 0)
