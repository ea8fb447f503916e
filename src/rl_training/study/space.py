"""The search space of a tuning: a range or a list of choices for each setting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rl_training.errors import nearest

Number = int | float
# How far (high - low) / step may be from a whole number: a step of 0.1 is not exact.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; `log` samples uniformly on a logarithmic scale."""

    low: Number
    high: Number
    log: bool = False
    step: Number | None = None
    whole: bool = False

    @property
    def ends(self) -> tuple[Number, ...]:
        return (self.low, self.high)

    def holds(self, value: Any) -> bool:
        """Whether a value is in the range, and on one of its steps."""
        if type(value) not in (int, float) or not self.low <= value <= self.high:
            return False
        if self.whole and type(value) is not int:
            return False
        step = self.step or (1 if self.whole else None)
        return step is None or _is_multiple(value - self.low, step)

    def like(self, value: Any) -> Range:
        """The same range, of whole numbers if `value` is one."""
        given = [number for number in (self.low, self.high, self.step) if number is not None]
        if type(value) is int:
            if fraction := [number for number in given if number != int(number)]:
                raise ValueError(f"takes whole numbers, got {fraction[0]!r}")
            step = None if self.step is None else int(self.step)
            return replace(self, low=int(self.low), high=int(self.high), step=step, whole=True)
        return replace(self, low=float(self.low), high=float(self.high))


@dataclass(frozen=True)
class Choices:
    """Values without an order."""

    values: tuple[Any, ...]

    @property
    def ends(self) -> tuple[Any, ...]:
        return self.values

    def holds(self, value: Any) -> bool:
        return value in self.values

    def like(self, value: Any) -> Choices:
        return self


Dimension = Range | Choices


def parse_space(value: Any) -> dict[str, Dimension]:
    """`{learning_rate: {low: 1e-5, high: 1e-2, log: true}, batch_size: [32, 64]}`."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"must be a mapping of settings to ranges or lists of choices, got {value!r}")
    space: dict[str, Dimension] = {}
    for key, entry in value.items():
        try:
            space[key] = _dimension(entry)
        except ValueError as error:
            raise ValueError(f"{key} {error}") from None
    return space


def _dimension(entry: Any) -> Dimension:
    if isinstance(entry, list | tuple):
        if len(entry) < 2:
            raise ValueError(f"needs two choices or more, got {list(entry)!r}")
        if twice := [one for i, one in enumerate(entry) if one in entry[:i]]:
            raise ValueError(f"has the choice {twice[0]!r} twice")
        return Choices(tuple(entry))
    if not isinstance(entry, Mapping):
        raise ValueError(f"must be a range such as {{low: 1e-5, high: 1e-2, log: true}} or a list, got {entry!r}")
    return _range(entry)


def _range(entry: Mapping[str, Any]) -> Range:
    known = ("low", "high", "log", "step")
    if strange := [name for name in entry if name not in known]:
        raise ValueError(f"has the unknown key {strange[0]!r}{nearest(str(strange[0]), known)}")
    if missing := [name for name in ("low", "high") if name not in entry]:
        raise ValueError(f"has no {missing[0]}")
    for name in ("low", "high", "step"):
        if name in entry and (type(entry[name]) not in (int, float) or not math.isfinite(entry[name])):
            raise ValueError(f"has a {name} that is not a number: {entry[name]!r}")
    if type(entry.get("log", False)) is not bool:
        raise ValueError(f"has a log that is neither true nor false: {entry['log']!r}")
    found = Range(**entry)
    if not found.low < found.high:
        raise ValueError(f"has bounds that do not go upwards: low {found.low}, high {found.high}")
    if found.log and not found.low > 0:
        raise ValueError(f"is logarithmic and needs a low above 0, got {found.low}")
    if found.step is not None:
        _check_step(found, found.step)
    return found


def _check_step(found: Range, step: Number) -> None:
    if found.log:
        raise ValueError("has both log and step; choose one")
    if not step > 0:
        raise ValueError(f"needs a step above 0, got {step}")
    if not _is_multiple(found.high - found.low, step):
        raise ValueError(f"is not divided evenly by its step: low {found.low}, high {found.high}, step {step}")


def _is_multiple(length: Number, step: Number) -> bool:
    steps = length / step
    return abs(steps - round(steps)) <= _ROUNDING * max(1.0, abs(steps))
