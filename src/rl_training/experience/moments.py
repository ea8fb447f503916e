"""`normalize_observations` of a run that learns from an environment alone: running statistics of what it sees.

The statistics are kept here, in float64 on the host; the map they make lies in the model (`Normalizer`), where
updates and policy find it. Replay rows stay raw: an old row is seen with the statistics of the moment it is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.settings import Settings


class ObservationConfig(Settings):
    """What is done to observations before any network sees them."""

    normalize_observations: bool = False
    """by the running mean and deviation of every observation acted on so far, random steps included, clipped to
    ±10; kept with the policy, and fixed in evaluation. With `init_from` the other run's statistics are taken over
    and go on counting; those of data (an offline run's, RLPD's) stay as they are"""


class RunningMoments:
    """Count, mean and sum of squared deviations of each component of the observations seen, `[O]` each.

    Batches are merged as Chan et al. (1979) do, which loses no digits where the mean is large beside the deviation.
    """

    def __init__(self, size: int) -> None:
        self.count = 0
        self.mean: NDArray[np.float64] = np.zeros(size)
        self.squares: NDArray[np.float64] = np.zeros(size)

    def add(self, obs: NDArray[np.float32]) -> None:
        """Count the observations `[n, O]`."""
        batch = obs.astype(np.float64)
        mean = batch.mean(0)
        total, apart = self.count + len(batch), mean - self.mean
        self.squares += ((batch - mean) ** 2).sum(0) + apart**2 * (self.count * len(batch) / total)
        self.mean += apart * (len(batch) / total)
        self.count = total

    @property
    def std(self) -> NDArray[np.float64]:
        """The standard deviation of what was seen (of the population, as for data sets)."""
        deviation: NDArray[np.float64] = np.sqrt(self.squares / max(self.count, 1))
        return deviation

    def record(self) -> dict[str, Any]:
        """As plain data that `load` reads back to the bit."""
        return {"count": self.count, "mean": self.mean.tolist(), "squares": self.squares.tolist()}

    def load(self, record: Mapping[str, Any]) -> None:
        """Go on from what `record` wrote down."""
        mean, squares = (np.array(record[name], dtype=np.float64) for name in ("mean", "squares"))
        if mean.shape != self.mean.shape or squares.shape != mean.shape:
            raise ValueError(f"moments of {mean.size} and {squares.size} components, not {self.mean.size}")
        if type(record["count"]) is not int or record["count"] < 0:
            raise ValueError(f"the count of moments is {record['count']!r}")
        if not (np.isfinite(mean).all() and np.isfinite(squares).all() and (squares >= 0).all()):
            raise ValueError("moments that are not finite, or negative")
        self.count, self.mean, self.squares = record["count"], mean, squares
