"""Values of `TrainConfig`: their validators, and the names that earlier versions used."""

from __future__ import annotations

import functools
import math
import re
import warnings
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from rl_training.errors import ConfigError

OLDER = "env_processes"
"""the name of `environments` in version 0.1"""
REMOVED = "evaluate_beside"
"""a setting of version 0.2, which occurs in its records"""
_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]+)?")


def normalise_algo(name: str) -> str:
    """The registry's spelling of an algorithm: `TD3+BC` and `td3-bc` become `td3_bc`; `module:Class` stays."""
    name = name.strip()
    return name if ":" in name else name.lower().replace("+", "_").replace("-", "_")


def plain(value: Any) -> Any:
    """A copy that YAML can represent; a path becomes a string, a tuple a list. ValueError for other types."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"keys must be strings, got {key!r}")
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"numbers must be finite, got {value!r}")
        return float(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    raise ValueError(f"only numbers, strings, booleans, lists and mappings can be stored, got {value!r}")


def wrapper_list(value: Any) -> Any:
    """Wrappers as plain data: each is a name, or a mapping of one name to its arguments."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"must be a list, got {value!r}")
    for entry in value:
        one_name = isinstance(entry, Mapping) and len(entry) == 1 and all(isinstance(key, str) for key in entry)
        if not (isinstance(entry, str) and entry) and not (
            one_name and all(arguments is None or isinstance(arguments, Mapping) for arguments in entry.values())
        ):
            raise ValueError(f"each must be a name or {{name: {{argument: value}}}}, got {entry!r}")
    return tuple(plain(value))


def known_device(value: str) -> str:
    if not _DEVICE.fullmatch(value):
        raise ValueError(f"must be auto, cpu, cuda or cuda:N, got {value!r}")
    return value


def underscored(value: Any) -> Any:
    return value.replace("-", "_") if isinstance(value, str) else value


@functools.cache
def _warn_of_removed() -> None:
    """Warn once per process; a resumed run reads its settings several times."""
    text = f"{REMOVED} is ignored: it was removed, and training waits for each evaluation"
    warnings.warn(text, FutureWarning, stacklevel=2)


def current_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace `env_processes`, the name in version 0.1, by `environments`.

    `evaluate_beside` is dropped, with a warning if it was enabled.
    """
    values = dict(values)
    if values.pop(REMOVED, "auto") not in ("auto", False):
        _warn_of_removed()
    if OLDER not in values:
        return values
    enabled = values.pop(OLDER)
    if not isinstance(enabled, bool):
        raise ConfigError(f"{OLDER} must be true or false, got {enabled!r}", key=OLDER)
    value = "processes" if enabled else "local"
    if values.setdefault("environments", value) != value:
        raise ConfigError.of(
            OLDER, f"{str(enabled).lower()} contradicts environments: {values['environments']}; leave one out"
        )
    return values
