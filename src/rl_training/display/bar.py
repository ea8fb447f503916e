"""One line that shows how far a run has come: what fits into so many columns, the most wanted first."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.text import Text

# A bar takes the columns that nothing else needs, between these two.
_NARROWEST, _WIDEST = 8, 40


@dataclass(frozen=True)
class Standing:
    """How far a run has come, and what is known of it."""

    done: int
    total: int
    unit: str = "steps"
    seconds: float | None = None  # that are left; once it is over, that it took
    over: bool = False
    rate: float | None = None
    doing: str = ""  # what keeps the run from moving, or which part of it this is
    returns: Mapping[str, float] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)


def draw(standing: Standing, width: int, *, ascii_only: bool = False) -> Text:
    """Bar, count and time left, shortened where they must be; then what else there is room for.

    What is least missed goes first: losses, then the rate, then returns.
    """
    count, clock, least = _count_and_time(standing, width)
    room = width - least - len(count) - len(clock) - 2
    extras = []
    for words in _extras(standing):
        if len(words) + 2 > room:
            break
        extras.append(words)
        room -= len(words) + 2
    cells = max(min(least + room, _WIDEST), 0)
    line = _bar(standing, cells, ascii_only)
    line.append(" " * bool(cells) + count, "progress.download")
    line.append(" " + clock, "progress.remaining")
    for words in extras:
        line.append("  " + words)
    line.truncate(max(width, 0))
    return line


def _count_and_time(standing: Standing, width: int) -> tuple[str, str, int]:
    """Count and time in the longest form that leaves room for a bar, and the fewest columns that bar has."""
    total = str(standing.total)
    count, clock = f"{standing.done:>{len(total)}}/{total}", duration(standing.seconds)
    for words in (f"{clock} {'in all' if standing.over else 'left'}", clock):
        if _NARROWEST + len(count) + len(words) + 2 <= width:
            return count, words, _NARROWEST
    count, clock = f"{_brief(standing.done)}/{_brief(standing.total)}", _brief_duration(standing.seconds)
    return count, clock, min(_NARROWEST, width - len(count) - len(clock) - 2)


def _extras(standing: Standing) -> list[str]:
    """What else could be shown, the most wanted first."""
    rate = [] if standing.rate is None else [per_second(standing.rate, standing.unit)]
    doing = [standing.doing] if standing.doing else []
    return [*doing, *named(standing.returns), *rate, *named(standing.losses)]


def _bar(standing: Standing, cells: int, ascii_only: bool) -> Text:
    full, half, empty = ("#", "", "-") if ascii_only else ("━", "╸", "─")
    share = min(max(standing.done / max(standing.total, 1), 0.0), 1.0)
    whole, halves = divmod(int(share * cells * 2), 2)
    filled = full * whole + half * halves
    style = "bar.finished" if share == 1 else "bar.complete"
    return Text(no_wrap=True, end="").append(filled, style).append(empty * (cells - len(filled)), "bar.back")


def named(values: Mapping[str, float]) -> list[str]:
    """Numbers as a person reads them, each with its name."""
    return [f"{name} {value:.4g}" for name, value in values.items()]


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


def _brief_duration(seconds: float | None) -> str:
    """The two largest units alone: `12m34s`, at most six columns in the first 99 days."""
    if seconds is None or not 0 <= seconds < 1e8:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d{hours % 24:02}h"
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"


def _brief(number: int) -> str:
    """`9999`, `12k`, `1.5M`: at most four columns, and never more than there is."""
    if number < 10_000:
        return str(number)
    for letter in "kMGT":
        number, tenths = number // 1_000, number % 1_000 // 100
        if number < 10 and tenths:
            return f"{number}.{tenths}{letter}"
        if number < 1_000:
            return f"{number}{letter}"
    return "many"


class Pace:
    """How fast a run moves of late: over 15 seconds, or the last eighth of its time where that is longer."""

    def __init__(self, start: int, now: float | None = None) -> None:
        self.began = time.monotonic() if now is None else now
        self._marks = deque([(self.began, start)])

    def note(self, step: int, now: float | None = None) -> None:
        """Tell where the run stands; may be called often."""
        now = time.monotonic() if now is None else now
        span = max(15.0, (now - self.began) / 8)
        if len(self._marks) > 1 and self._marks[-1][0] - self._marks[-2][0] < span / 200:
            self._marks.pop()  # so close together that the later one does for both
        self._marks.append((now, step))
        while len(self._marks) > 2 and now - self._marks[1][0] >= span:
            self._marks.popleft()

    @property
    def rate(self) -> float | None:
        """Steps per second; None before the first one."""
        (since, first), (now, last) = self._marks[0], self._marks[-1]
        return (last - first) / (now - since) if last > first and now > since else None

    def left(self, total: int) -> float | None:
        """Seconds to `total`; None while nobody knows."""
        rate, last = self.rate, self._marks[-1][1]
        return 0.0 if last >= total else None if rate is None else (total - last) / rate
