"""`action_probs`: the probability of each logged action when it was taken, for importance sampling.

One number per row, the behaviour policy's probability of its action; only for discrete actions. It is a column of
the file, which training ignores.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.columns import ACTION_PROBS
from rl_training.data.formats import read_columns
from rl_training.data.packing import Walk
from rl_training.errors import ConfigError, DatasetError
from rl_training.spaces import SpaceSpec


def require_discrete(name: str, spaces: SpaceSpec) -> None:
    """Raise if actions are continuous."""
    if not spaces.discrete:
        raise ConfigError(
            f"{name}: importance sampling is for discrete actions, and these are continuous: weights of whole "
            "episodes would mean nothing; use method fqe"
        )


def read_probabilities(place: str | os.PathLike[str], spaces: SpaceSpec) -> NDArray[np.float64]:
    """Read and check the column of a file: one number per transition that is kept."""
    with read_columns(place) as columns:
        require_discrete(columns.name, spaces)
        if ACTION_PROBS not in columns.data:
            raise DatasetError(
                f"{columns.name}: column {ACTION_PROBS!r} is missing, the probability of each action when it was "
                "taken; without it use method fqe"
            )
        walk = Walk(columns, spaces)
        for _ in walk:
            pass
        whole = columns.data[ACTION_PROBS].read(0, len(columns))
        return checked_probabilities(columns.name, whole)[walk.kept]


def checked_probabilities(name: str, values: Any, rows: int | None = None) -> NDArray[np.float64]:
    """Check probabilities of logged actions: numbers in (0, 1], one for each of `rows`."""
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or rows not in (None, len(found)):
        wanted = "one number per row" if rows is None else f"{rows} numbers, one per row"
        raise DatasetError(f"{name}: {ACTION_PROBS} must be {wanted}, got shape {list(found.shape)}")
    bad = np.flatnonzero(~((found > 0) & (found <= 1)))
    if len(bad):
        raise DatasetError(
            f"{name}: column {ACTION_PROBS!r}, row {bad[0]}: {found[bad[0]]} is no probability of an action that "
            "was taken; it must be above 0 and at most 1"
        )
    return found
