"""Observations as they are typed: numbers with commas, JSON, or a file of either JSON or NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.errors import ConfigError


def parse_observations(text: str) -> NDArray[np.float64]:
    """`1.0,0.0,0.1`, `[[…], […]]`, `@file.json` or `@file.npy`; one observation or a batch."""
    try:
        if text.startswith("@"):
            return _numbers(_read(Path(text[1:])))
        if text.lstrip().startswith("["):
            return _numbers(json.loads(text))
        return _numbers([float(part) for part in text.split(",")])
    except OSError as error:
        raise ConfigError(f"--obs {text}: {error.strerror or error}") from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        raise ConfigError(
            f'--obs {shown}: {error}; write "1.0,0.0,0.1", a JSON list, @file.json or @file.npy'
        ) from None


def _read(path: Path) -> Any:
    if path.suffix != ".npy":
        return json.loads(path.read_text(encoding="utf-8"))
    # Mapped, a file that declares more than it holds is refused before memory is taken.
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _numbers(values: Any) -> NDArray[np.float64]:
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"not numbers ({array.dtype})")
    return array.astype(np.float64)
