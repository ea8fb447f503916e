"""Running observation statistics: `normalize_observations` of a run without a data set.

The statistics are stored here, in float64, on the host or on the device of the environments. The model's
`Normalizer` applies them in updates and in the policy. Replay rows stay raw and are normalised with the current
statistics when they are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.settings import Settings


class ObservationConfig(Settings):
    """Preprocessing of observations and rewards before any network."""

    normalize_observations: bool = False
    """normalise observations by the running mean and standard deviation of all observations so far (including
    random steps), clipped to ±10; the statistics are stored with the policy and are fixed during evaluation. With
    `init_from` the run starts with the other run's statistics and keeps updating them; statistics of a data set
    (offline runs, RLPD) are not updated"""
    normalize_rewards: bool = False
    """divide rewards by the running standard deviation of the discounted return, or by a fifth of its largest
    magnitude if that is larger (FlashSAC); the replay buffer stores raw rewards, and returns are reported raw"""


class RunningMoments:
    """Count, mean and sum of squared deviations of each component of the observations, `[O]` each.

    Batches are merged as in Chan et al. (1979), which is accurate even if the mean is much larger than `std`.
    All three are NumPy values, or tensors that change in place, without reads by the host.
    """

    def __init__(self, size: int, device: torch.device | None = None) -> None:
        """`device`: of the tensors; None for NumPy."""
        self.count: Any = 0
        self.mean: Any = np.zeros(size)
        self.squares: Any = np.zeros(size)
        if device is not None:
            self.count = torch.zeros((), dtype=torch.float64, device=device)
            self.mean, self.squares = (torch.zeros(size, dtype=torch.float64, device=device) for _ in range(2))

    def add(self, obs: NDArray[np.float32] | torch.Tensor) -> None:
        """Add the observations `[n, O]`."""
        batch: Any = obs.double() if isinstance(obs, torch.Tensor) else obs.astype(np.float64)
        mean = batch.mean(0)
        total, delta = self.count + len(batch), mean - self.mean
        self.squares += ((batch - mean) ** 2).sum(0) + delta**2 * (self.count * len(batch) / total)
        self.mean += delta * (len(batch) / total)
        self.count += len(batch)

    @property
    def std(self) -> Any:
        """The population standard deviation, as for data sets."""
        if isinstance(self.count, torch.Tensor):
            return (self.squares / self.count.clamp(min=1)).sqrt()
        return np.sqrt(self.squares / max(self.count, 1))

    def record(self) -> dict[str, Any]:
        """Plain data that `load` restores bit for bit."""
        return {"count": int(self.count), "mean": self.mean.tolist(), "squares": self.squares.tolist()}

    def load(self, record: Mapping[str, Any]) -> None:
        """Restore the output of `record`."""
        mean, squares = (np.array(record[name], dtype=np.float64) for name in ("mean", "squares"))
        if mean.shape != (len(self.mean),) or squares.shape != mean.shape:
            raise ValueError(f"moments of {mean.size} and {squares.size} components, not {len(self.mean)}")
        if type(record["count"]) is not int or record["count"] < 0:
            raise ValueError(f"the count of moments is {record['count']!r}")
        if not (np.isfinite(mean).all() and np.isfinite(squares).all() and (squares >= 0).all()):
            raise ValueError("moments that are not finite, or negative")
        if isinstance(self.count, torch.Tensor):
            self.count.fill_(record["count"])
            self.mean.copy_(torch.from_numpy(mean))
            self.squares.copy_(torch.from_numpy(squares))
        else:
            self.count, self.mean, self.squares = record["count"], mean, squares
