"""The parts of distrax that Unifloral's updates use, for machines without it.

distrax requires TensorFlow Probability, which is many times larger than all other requirements of a script. This
module implements a Normal and a deterministic distribution, both with an optional tanh, with samples and
log-densities.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Normal:
    def __init__(self, loc: Any, scale: Any) -> None:
        self.loc, self.scale = loc, scale

    def sample(self, *, seed: Any) -> Any:
        return self.loc + self.scale * jax.random.normal(seed, jnp.shape(self.loc))

    def log_prob(self, value: Any) -> Any:
        return -0.5 * jnp.square((value - self.loc) / self.scale) - _HALF_LOG_TWO_PI - jnp.log(self.scale)


class Deterministic:
    def __init__(self, loc: Any) -> None:
        self.loc = loc

    def sample(self, *, seed: Any) -> Any:
        """`seed` is not used: there is only one value."""
        return self.loc


class Tanh:
    @staticmethod
    def forward(value: Any) -> Any:
        return jnp.tanh(value)

    @staticmethod
    def log_slope(value: Any) -> Any:
        """log(1 - tanh²) without loss of precision in the tails."""
        return 2.0 * (math.log(2.0) - value - jax.nn.softplus(-2.0 * value))


class Transformed:
    def __init__(self, distribution: Any, bijector: Tanh) -> None:
        self.distribution, self.bijector = distribution, bijector

    def sample(self, *, seed: Any) -> Any:
        return self.bijector.forward(self.distribution.sample(seed=seed))

    def sample_and_log_prob(self, *, seed: Any) -> tuple[Any, Any]:
        before = self.distribution.sample(seed=seed)
        density = self.distribution.log_prob(before) - self.bijector.log_slope(before)
        return self.bijector.forward(before), density
