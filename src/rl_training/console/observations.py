"""Parse observations from the command line: numbers separated by commas, JSON, or a JSON or NumPy file.

JSON may have the structure of the environment's space: a mapping for Dict, a list for Tuple.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.errors import ConfigError
from rl_training.observation_spaces import Misfit
from rl_training.spaces import SpaceSpec


def parse_observations(text: str, spaces: SpaceSpec) -> Any:
    """Parse `1.0,0.0,0.1`, `[[…], […]]`, `{"position": […]}`, `@file.json` or `@file.npy` for `predict`.

    The text may be one observation or a batch.
    """
    try:
        return _structured(_parse(text), spaces)
    except OSError as error:
        raise ConfigError(f"--obs {text}: {error.strerror or error}") from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        raise ConfigError(f'--obs {shown}: {error}; write "1.0,0.0,0.1", JSON, @file.json or @file.npy') from None


def _parse(text: str) -> Any:
    """The value of the text, or of the file that it names."""
    if text.startswith("@"):
        return _read(Path(text[1:]))
    if text.lstrip().startswith(("[", "{")):
        return json.loads(text)
    parts = [int(part) if part.strip().lstrip("-").isdecimal() else float(part) for part in text.split(",")]
    return parts if len(parts) > 1 else parts[0]


def _structured(value: Any, spaces: SpaceSpec) -> Any:
    """`value` (or each item of a batch) in the structure of the environment if it fits, otherwise as numbers."""
    if spaces.flattening is None or isinstance(value, np.ndarray):
        if isinstance(value, dict) or (isinstance(value, list) and value and isinstance(value[0], dict)):
            raise ValueError(f"the policy's observations are {spaces.obs_dim} numbers, not a mapping")
        return _numbers(value)
    try:
        if (batch := spaces.flattening.unstacked(value)) is not None:
            return [spaces.flattening.restored(one) for one in batch]
        return spaces.flattening.restored(value)
    except Misfit as misfit:
        reason = misfit
    if isinstance(value, list) and spaces.flattening.description["kind"] in ("Dict", "Tuple"):
        try:
            return [spaces.flattening.restored(one) for one in value]
        except Misfit as misfit:
            reason = misfit if all(isinstance(one, dict) for one in value) else reason
    try:
        return _numbers(value)
    except (ValueError, TypeError):
        raise ValueError(f"does not fit the policy: {reason}") from None


def _read(path: Path) -> Any:
    if path.suffix != ".npy":
        return json.loads(path.read_text(encoding="utf-8"))
    # Memory mapping rejects a file that declares more data than it holds, before memory is allocated.
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _numbers(values: Any) -> NDArray[np.float64]:
    array = np.atleast_1d(np.asarray(values))
    if array.dtype.kind not in "fiub":
        raise ValueError(f"not numbers ({array.dtype})")
    return array.astype(np.float64)
