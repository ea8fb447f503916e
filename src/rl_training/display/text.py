"""Numbers and durations as text, and objects as JSON-serialisable data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any

_AGES = ((86_400 * 2, 86_400, "d"), (3_600 * 2, 3_600, "h"), (60 * 2, 60, "min"), (0, 1, "s"))


def plain_data(value: Any) -> Any:
    """Dataclasses, named tuples, arrays and paths as JSON-serialisable data; NaN and infinity become None."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_data(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "_asdict"):
        return plain_data(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(item) for item in value]
    if hasattr(value, "tolist"):
        return plain_data(value.tolist())
    if isinstance(value, PurePath):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def number(value: Any, like: float = 0.0) -> str:
    """A number to about three digits, with as many decimals as a number of the size `like` has."""
    if value is None or not math.isfinite(value):
        return "–"
    size = max(abs(float(value)), abs(like))
    if size >= 1000 or (isinstance(value, int) and not isinstance(value, bool)):
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.01 or size == 0 else f"{value:.2g}"


def decimal(value: float | None, missing: str = "-") -> str:
    """Two decimals, as returns are shown; `missing` for None."""
    return missing if value is None else f"{value:.2f}"


def significant(value: object) -> str:
    """A float with four significant digits; other values unchanged."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def rounded(value: float | None) -> str:
    """At least four significant digits, never an exponent for a large number."""
    return "–" if value is None else f"{value:.4g}" if abs(value) < 1_000 else f"{value:.0f}"


def per_second(rate: float, unit: str) -> str:
    """`812 steps/s`, `0.31 updates/s`."""
    return f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{rate:.2g} {unit}/s"


def duration(seconds: float | None) -> str:
    """`0:12:34`, or in days from a hundred hours on."""
    if seconds is None or not 0 <= seconds < 1e8:
        return "-:--:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours < 100 else f"{hours // 24}d {hours % 24:02}h"


def age(seconds: float) -> str:
    """Time since the last update: `40 s`, `5 min`, `3 h`, `12 d`."""
    seconds = max(seconds, 0.0)
    unit, name = next((unit, name) for least, unit, name in _AGES if seconds >= least)
    return f"{seconds / unit:.0f} {name}"
