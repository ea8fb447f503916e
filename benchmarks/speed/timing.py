"""Timing: blocks of updates including device work, alternating contenders, and time inside functions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch


class Runs(Protocol):
    """Object that can make `count` updates."""

    def run(self, count: int) -> None: ...


def wait() -> None:
    """Wait until the device has finished."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds_of(contender: Runs, count: int) -> float:
    wait()
    started = time.perf_counter()
    contender.run(count)
    wait()
    return time.perf_counter() - started


def block_size(contender: Runs, seconds: float, period: int) -> int:
    """Number of updates, in whole periods, that take about `seconds`. A warm-up first runs every phase, so that
    graphs are captured and code is compiled."""
    contender.run(2 * period)
    wait()
    count = period
    while True:
        spent = seconds_of(contender, count)
        if spent >= 0.2 * seconds:
            return max(1, round(count * seconds / spent / period)) * period
        count *= 4


@dataclass(frozen=True)
class Rates:
    """Updates per second of each block, in the order they were run."""

    blocks: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.blocks)


def alternate(contenders: dict[str, Runs], *, seconds: float, blocks: int, period: int = 2) -> dict[str, Rates]:
    """Run `blocks` of each contender in turn (A, B, A, B, …), `seconds` per contender in total.

    `period` is the number of updates after which a learner repeats itself; blocks are whole periods. A contender
    that can only make a fixed number of updates at a time has its own `period`.
    """
    periods = {name: getattr(c, "period", None) or period for name, c in contenders.items()}
    sizes = {name: block_size(c, seconds / blocks, periods[name]) for name, c in contenders.items()}
    return in_turn(contenders, sizes, blocks)


def in_turn(contenders: dict[str, Runs], sizes: dict[str, int], blocks: int) -> dict[str, Rates]:
    """Run `blocks` of each contender in turn, with `sizes` updates per block."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(blocks):
        for name, contender in contenders.items():
            rates[name].append(sizes[name] / seconds_of(contender, sizes[name]))
    return {name: Rates(found) for name, found in rates.items()}


def ratios_of(ours: Rates, theirs: Rates) -> dict[str, Any]:
    """Median, minimum and maximum of the ratio over pairs of blocks."""
    ratios = [a / b for a, b in zip(ours.blocks, theirs.blocks)]
    return {"ratio": statistics.median(ratios), "ratio_spread": [min(ratios), max(ratios)]}


class Stopwatch:
    """Seconds and calls spent inside functions, by name, since counting started."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self.since: dict[str, float] = {}

    @contextmanager
    def around(
        self, owner: Any, attribute: str, name: str, *, skip: int = 0, waiting: bool = True
    ) -> Iterator[None]:
        """Time every call of `owner.attribute` after the first `skip`. With `waiting`, the device queue is emptied
        before and after a call, so that other work is not counted; otherwise only host time is measured."""
        original: Callable[..., Any] = getattr(owner, attribute)
        self.seconds[name], self.calls[name], self.since[name] = 0.0, 0, time.perf_counter()
        skipped, settle = 0, wait if waiting else lambda: None

        def timed(*args: Any, **kwargs: Any) -> Any:
            nonlocal skipped
            settle()
            started = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                settle()
                if skipped < skip:
                    skipped += 1
                    self.since[name] = time.perf_counter()
                else:
                    self.seconds[name] += time.perf_counter() - started
                    self.calls[name] += 1

        setattr(owner, attribute, timed)
        try:
            yield
        finally:
            setattr(owner, attribute, original)

    def clear(self) -> None:
        """Restart counting."""
        for name in self.seconds:
            self.seconds[name], self.calls[name], self.since[name] = 0.0, 0, time.perf_counter()

    def share(self, name: str) -> float:
        """Fraction of the time since counting started."""
        return self.seconds[name] / (time.perf_counter() - self.since[name])
