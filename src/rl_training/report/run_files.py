"""Files of a run folder, and the settings and texts in them, without importing torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment.files import MAX_JSON_BYTES
from rl_training.experiment.runs import RESOLVED
from rl_training.experiment.strict_yaml import read_dumped
from rl_training.study.plan import identity

# Control characters except tab and line breaks, lone surrogates, and characters that change the text direction.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u2028-\u202e\u2066-\u2069\ufffe\uffff]"
)
_SEED = re.compile(r"^seed:.*\n", re.M)

ReadFile = Callable[[str], bytes | None]
"""returns a file of a run by name, or None if it does not exist"""


def reader_of(folder: Path) -> ReadFile:
    """Reads the files of a folder; raises `OSError` for one that is too large."""

    def read(name: str) -> bytes | None:
        path = folder / name
        if not path.is_file():
            return None
        if (size := path.stat().st_size) > MAX_JSON_BYTES:
            raise OSError(None, f"{name} has {size:,} bytes, at most {MAX_JSON_BYTES:,} are read")
        return path.read_bytes()

    return read


def without_seed(data: bytes) -> str:
    """The text of a resolved configuration without its seed."""
    return _SEED.sub("", data.decode("utf-8", "replace"), count=1)


def parse_settings(text: str, notes: list[str]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Settings and tags of a resolved configuration."""
    try:
        value = read_dumped(text, RESOLVED)
        if not isinstance(value, dict) or not isinstance(value.get("algo_kwargs"), dict):
            raise ConfigError(f"{RESOLVED}: not a configuration")
        settings = identity(value)
        for key, one in settings.items():
            if isinstance(one, int | float) and finite(one) is None:
                raise ConfigError(f"{RESOLVED}: {key} is not a finite number")
    except RLTrainingError as error:
        notes.append(f"its settings are unknown: {error}")
        return {}, ()
    return printable(settings), tags_of(value)


def tags_of(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The tags of a configuration."""
    tags = settings.get("tags")
    return tuple(printable(str(tag)) for tag in tags) if isinstance(tags, list | tuple) else ()


def printable(value: Any) -> Any:
    """Replace characters that a page, figure or terminal cannot show, in keys and values."""
    if isinstance(value, str):
        return _UNPRINTABLE.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {printable(key): printable(item) for key, item in value.items()}
    return [printable(item) for item in value] if isinstance(value, list) else value


def finite(value: Any) -> float | None:
    """A number read from a file as a float, or None if it is not a finite number."""
    try:
        found = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return found if math.isfinite(found) else None
