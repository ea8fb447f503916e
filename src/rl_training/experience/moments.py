"""Running statistics: `normalize_observations` of a run without a data set, and `normalize_rewards`.

The statistics are stored here, in float64, on the host or on the device of the environments. The model's
`Normalizer` applies those of observations in updates and in the policy. Replay rows stay raw and are normalised
with the current statistics when they are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.settings import Settings

# Scaled returns are at most about this large.
_LARGEST_RETURN = 5.0


class ObservationConfig(Settings):
    """Preprocessing of observations and rewards before any network."""

    normalize_observations: bool = False
    """normalise observations by the running mean and standard deviation of all observations so far (including
    random steps), clipped to ±10; the statistics are stored with the policy and are fixed during evaluation. With
    `init_from` the run starts with the other run's statistics and keeps updating them; statistics of a data set
    (offline runs, RLPD) are not updated"""
    normalize_rewards: bool = False
    """divide rewards by the running standard deviation of the discounted return, or by a fifth of its largest
    magnitude if that is larger (FlashSAC); the replay buffer stores raw rewards, and returns are reported raw. With
    `init_from` the run starts with the other run's statistics"""


def _zeros(shape: tuple[int, ...], device: torch.device | None) -> Any:
    """Zeros in float64: a tensor on `device`; None for NumPy, which is faster for few environments."""
    return np.zeros(shape) if device is None else torch.zeros(shape, dtype=torch.float64, device=device)


class RunningMoments:
    """Count, mean and sum of squared deviations of each component of the observations, `[O]` each.

    Batches are merged as in Chan et al. (1979), which is accurate even if the mean is much larger than `std`.
    All three are NumPy arrays, or tensors, that change in place, without reads by the host.
    """

    def __init__(self, size: int, device: torch.device | None = None) -> None:
        """`device`: of the tensors; None for NumPy."""
        self.count, self.mean, self.squares = (_zeros(shape, device) for shape in ((), (size,), (size,)))

    def add(self, obs: NDArray[np.float32] | Tensor) -> None:
        """Add the observations `[n, O]`."""
        batch: Any = obs.double() if isinstance(obs, Tensor) else obs.astype(np.float64)
        rows, mean, within = len(batch), batch[0], 0.0
        if rows > 1:
            mean = batch.mean(0)
            within = ((batch - mean) ** 2).sum(0)
        total, delta = self.count + rows, mean - self.mean
        self.squares += within + delta**2 * (self.count * rows / total)
        self.mean += delta * (rows / total)
        self.count += rows

    @property
    def std(self) -> Any:
        """The population standard deviation, as for data sets."""
        return (self.squares / self.count.clip(1)) ** 0.5

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
        self.count[...] = record["count"]
        self.mean[...], self.squares[...] = torch.from_numpy(mean), torch.from_numpy(squares)


class RunningReturns:
    """The discounted returns of all environments, and their statistics so far.

    In each environment G ← gamma·G + r, from 0 at the start of an episode. A reward is divided by
    max(sqrt(var G + 1e-8), max |G| / 5), as in FlashSAC, when it is drawn from the replay buffer.
    All values are arrays or tensors, as those of `RunningMoments`.
    """

    def __init__(self, num_envs: int, gamma: float, device: torch.device | None = None) -> None:
        """`device`: of the tensors; None for NumPy."""
        self._gamma, self._moments = gamma, RunningMoments(1, device)
        self._current, self._largest = _zeros((num_envs,), device), _zeros((), device)

    def add(self, rewards: Any, ended: Any) -> None:
        """Add one step of every environment; `ended [N]` marks the last step of an episode."""
        self._current *= self._gamma
        self._current += rewards
        self._moments.add(self._current[:, None])
        if isinstance(self._current, Tensor):
            self._largest.copy_(torch.maximum(self._largest, self._current.abs().max()))
            self._current.masked_fill_(ended, 0.0)
        else:
            self._largest[...] = max(self._largest, np.abs(self._current).max())
            self._current[ended] = 0.0

    def cut(self, environments: Sequence[int]) -> None:
        """Start new episodes in `environments`, whose last ones were not over."""
        self._current[list(environments)] = 0.0

    @property
    def scale(self) -> float | Tensor:
        """The factor of rewards; of tensors a 0-d one."""
        variance, largest = self._moments.std[0] ** 2 + 1e-8, self._largest / _LARGEST_RETURN
        if isinstance(variance, Tensor):
            return 1.0 / torch.maximum(variance.sqrt(), largest)
        return 1.0 / max(math.sqrt(variance), float(largest))

    def tensors(self) -> dict[str, Tensor]:
        """The state, to be saved."""
        moments = self._moments
        state = {
            "scaling.current": self._current,
            "scaling.largest": self._largest,
            "scaling.count": moments.count,
            "scaling.mean": moments.mean,
            "scaling.squares": moments.squares,
        }
        return {name: torch.as_tensor(value, dtype=torch.float64) for name, value in state.items()}

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` returned."""
        self.load_statistics(saved)
        self._current[...] = saved["scaling.current"]

    def load_statistics(self, saved: Mapping[str, Tensor]) -> None:
        """The same without the returns of the present episodes."""
        self._largest[...] = saved["scaling.largest"]
        mean, squares = (saved[f"scaling.{name}"].tolist() for name in ("mean", "squares"))
        self._moments.load({"count": int(saved["scaling.count"]), "mean": mean, "squares": squares})
