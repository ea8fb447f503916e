"""Deprecated: `train_population` is in `rl_training.runtime.populations`."""

import warnings

from rl_training.runtime.populations import train_population

__all__ = ["train_population"]

warnings.warn(
    "rl_training.population.members is named rl_training.runtime.populations", DeprecationWarning, stacklevel=2
)
