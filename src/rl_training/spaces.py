"""`SpaceSpec`: the observation and action spaces of an environment, as networks and action scaling use them.

It is stored in every checkpoint, so that prediction needs no environment. Inside the package continuous actions are
in [-1, 1]; only this module converts them to the environment's units.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rl_training.errors import ConfigError
from rl_training.observation_spaces import Description, Flattening, Misfit

# Transitions are stored in float32, which represents all integers up to this one.
MOST_ACTIONS = 2**24
# Relative difference of neighbouring float32 numbers.
_ROUNDING = 2.0**-23
# Arrays, because numpy's conversion of a Python number takes longer than the operation on six actions.
_LOWEST, _HIGHEST, _HALF = np.array(-1.0), np.array(1.0), np.array(0.5)


@dataclass(frozen=True)
class SpaceSpec:
    """Flat observations of `obs_dim` numbers, and `action_dim` continuous or `num_actions` discrete actions.

    `low` and `high` are the environment's action bounds (empty for discrete actions). Discrete actions start at 0
    inside the package and at `start` in the environment. `observation` describes the environment's observation
    space; None if its observations are flat vectors.
    """

    obs_dim: int
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    num_actions: int = 0
    start: int = 0
    action_dtype: str = "float32"
    observation: Description | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if len(self.low) != len(self.high):
            raise ConfigError(f"action bounds differ in length: {len(self.low)} low, {len(self.high)} high")
        bounds = np.array([self.low, self.high], dtype=np.float64)
        if not np.all(np.isfinite(bounds)):
            raise ConfigError(
                "the action space is unbounded; wrap the environment in RescaleAction or give finite bounds"
            )
        if np.any(bounds[0] >= bounds[1]):
            raise ConfigError(f"every action bound needs low < high, got low={self.low}, high={self.high}")
        if not self.low and self.num_actions < 1:
            raise ConfigError("a space needs action bounds or a number of discrete actions")
        if self.obs_dim < 1:
            raise ConfigError("the observation space is empty; give it at least one number, such as a constant")
        if self.num_actions > MOST_ACTIONS:
            raise ConfigError(f"{self.num_actions} discrete actions are too many; the limit is {MOST_ACTIONS}")
        if self.flattening is not None and self.flattening.size != self.obs_dim:
            raise ConfigError(f"obs_dim is {self.obs_dim}, its observations have {self.flattening.size} numbers")

    @cached_property
    def flattening(self) -> Flattening | None:
        """Converts the environment's observations to flat vectors; None if they are flat."""
        return None if self.observation is None else Flattening(self.observation)

    def record(self) -> dict[str, Any]:
        """Plain data that `SpaceSpec(**record)` accepts."""
        values = asdict(self)
        if self.observation is None:
            del values["observation"]
        return values

    @property
    def discrete(self) -> bool:
        return self.num_actions > 0

    @property
    def action_dim(self) -> int:
        """Number of columns of an action in a batch: 1 for a discrete action."""
        return 1 if self.discrete else len(self.low)

    def to_env(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Convert internal actions `[..., A]` in [-1, 1] (discrete: `[...]` from 0) to the environment's units."""
        if self.discrete:
            return (actions.astype(np.int64) + self.start).astype(self.action_dtype)
        low, high, inner_low, inner_high = self.scaling
        # A weighted mean is exact at both bounds, and finite even if `high - low` overflows.
        share = actions.astype(np.float64)
        np.minimum(np.maximum(share, _LOWEST, out=share), _HIGHEST, out=share)
        share *= _HALF
        share += _HALF
        scaled = _HIGHEST - share
        scaled *= low
        share *= high
        scaled += share
        bounded: NDArray[Any] = scaled.astype(inner_low.dtype)
        np.minimum(np.maximum(bounded, inner_low, out=bounded), inner_high, out=bounded)
        return bounded

    @cached_property
    def scaling(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
        """The bounds in float64, and the nearest inner bounds in the environment's dtype."""
        low, high = np.asarray(self.low), np.asarray(self.high)
        dtype = np.dtype(self.action_dtype)
        return low, high, _inward(low, dtype, 1), _inward(high, dtype, -1)

    def from_env(self, actions: NDArray[Any]) -> NDArray[np.float32]:
        """Convert the environment's actions to internal `[..., A]` in [-1, 1] (discrete: `[...]` from 0)."""
        if self.discrete:
            return (actions.astype(np.int64) - self.start).astype(np.float32)
        low, high = np.asarray(self.low), np.asarray(self.high)
        unit = (0.5 * actions.astype(np.float64) - 0.5 * low) / (0.5 * high - 0.5 * low) * 2.0 - 1.0
        return np.clip(unit, -1.0, 1.0).astype(np.float32)

    def actions(self, action: ArrayLike) -> NDArray[np.float32]:
        """Validate one action of the environment or a batch; convert to internal `[B, A]` (discrete: `[B]`)."""
        shape = [] if self.discrete else [self.action_dim]
        expected = f"shape {shape} or {['B', *shape]}".replace("'", "")
        try:
            array = _real(action, np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"action must be numbers of {expected}: {error}") from None
        if array.ndim not in (len(shape), len(shape) + 1) or list(array.shape[array.ndim - len(shape) :]) != shape:
            raise ConfigError(f"action must have {expected}, got {list(array.shape)}")
        array = array.reshape(-1, *shape)
        if self.discrete:
            first, last = self.start, self.start + self.num_actions - 1
            if not np.all((array >= first) & (array <= last) & (array == np.rint(array))):
                raise ConfigError(f"action must be a whole number from {first} to {last}, got {array[0]:g}")
            return self.from_env(array)
        low, high = np.asarray(self.low), np.asarray(self.high)
        slack = 1e-6 * (0.5 * high - 0.5 * low)  # for bounds that were rounded to another dtype
        if not np.all((array >= low - slack) & (array <= high + slack)):
            raise ConfigError(f"action must lie within {list(self.low)} and {list(self.high)}")
        return self.from_env(array)

    def observations(self, obs: ArrayLike) -> NDArray[np.float32]:
        """Convert one or several observations to a finite float32 batch `[B, O]`.

        They are flat vectors or have the environment's own form: one observation, a list of dictionaries or tuples,
        a dictionary of batches, or whole numbers `[B]` of a `Discrete` space.
        """
        obs = self._flat(obs)
        try:
            array = _real(obs, np.float32)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"obs must be numbers of shape [{self.obs_dim}] or [B, {self.obs_dim}]: {error}"
            ) from None
        if array.ndim == 0 or array.shape[-1] != self.obs_dim or array.ndim > 2:
            raise ConfigError(
                f"obs must have shape [{self.obs_dim}] or [B, {self.obs_dim}], got {list(array.shape)}"
            )
        if not np.all(np.isfinite(array)):
            raise ConfigError("obs must be finite, got NaN or infinity")
        return array.reshape(-1, self.obs_dim)

    def is_single(self, obs: Any) -> bool:
        """Whether `obs` is one observation rather than a batch."""
        if self.flattening is not None and self.flattening.unstacked(obs) is not None:
            return False
        if self.flattening is not None and self.flattening.is_original(obs):
            return True
        return not self._is_list(obs) and np.ndim(obs) == 1

    def _is_list(self, obs: Any) -> bool:
        """Whether `obs` is a list of observations in the environment's own form."""
        flattening = self.flattening
        if flattening is None or not isinstance(obs, list) or not obs:
            return False
        return isinstance(obs[0], dict | tuple) and all(flattening.is_original(one) for one in obs)

    def _flat(self, obs: Any) -> Any:
        if self.flattening is None:
            return obs
        try:
            several = obs if self._is_list(obs) else self.flattening.unstacked(obs)
            if several is not None:
                return np.reshape([self.flattening(one) for one in several], (-1, self.obs_dim))
            return self.flattening(obs) if self.flattening.is_original(obs) else obs
        except (Misfit, TypeError, ValueError) as error:
            raise ConfigError(f"obs does not fit the policy: {error}") from None

    def difference(
        self, other: SpaceSpec, own: str = "the environment has", others: str = "the policy was trained on"
    ) -> str:
        """Describe how this space differs from `other`; empty if they are the same. Bounds may differ by rounding.

        `own` and `others` introduce the two sides: `the environment has observations of 4 numbers, the policy was
        trained on observations of 3 numbers`.
        """
        ours, theirs = (" and ".join(one._unlike(than)) for one, than in ((self, other), (other, self)))
        return f"{own} {ours}, {others} {theirs}" if ours else ""

    def _unlike(self, than: SpaceSpec) -> list[str]:
        """The parts of this space that differ from `than`."""
        found = []
        reshaped = None not in (self.observation, than.observation) and self.observation != than.observation
        if self.obs_dim != than.obs_dim or reshaped:
            form = f" as {self.observation}" if reshaped else ""
            found.append(f"observations of {_numbers(self.obs_dim)}{form}")
        numbered = (self.num_actions, self.start) == (than.num_actions, than.start)
        if not (numbered and _same_bounds(self.low, than.low) and _same_bounds(self.high, than.high)):
            found.append(self._actions(than))
        return found

    def _actions(self, than: SpaceSpec) -> str:
        if self.discrete:
            start = f" from {self.start}" if than.discrete and self.start != than.start else ""
            return f"{self.num_actions} discrete action{'s' * (self.num_actions != 1)}{start}"
        if len(self.low) != len(than.low):
            return f"actions of {_numbers(len(self.low))}"
        return f"actions from {_bound(self.low)} to {_bound(self.high)}"


def _real(values: ArrayLike, dtype: type[np.floating[Any]]) -> NDArray[Any]:
    """`values` as an array; raises for complex numbers, whose imaginary part NumPy would drop."""
    if np.iscomplexobj(values):
        raise TypeError("they are complex; pass real numbers")
    return np.asarray(values, dtype=dtype)


def _numbers(count: int) -> str:
    return f"{count} number{'s' * (count != 1)}"


def _same_bounds(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether bounds are equal up to float32's rounding: 0.4 is 0.4000000059604645 in an environment."""
    return len(one) == len(other) and all(math.isclose(*pair, rel_tol=_ROUNDING) for pair in zip(one, other))


def _bound(values: tuple[float, ...]) -> str:
    """One number if all components are equal, else a list."""
    return str(values[0] if len(set(values)) == 1 else list(values))


def _inward(bound: NDArray[np.float64], dtype: np.dtype[Any], direction: int) -> NDArray[Any]:
    """The nearest value of `dtype` on the inner side of `bound` (+1: not below it, -1: not above it)."""
    value = bound.astype(dtype)
    outside = value < bound if direction > 0 else value > bound
    return np.where(outside, np.nextafter(value, np.asarray(direction * np.inf, dtype=dtype)), value)
