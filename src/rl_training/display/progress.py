"""The progress of a run: a bar on a terminal or in a notebook, plain lines elsewhere, nothing if quiet."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from rl_training.display.output import Unbreakable, open_nothing
from rl_training.display.text import duration, per_second, significant
from rl_training.errors import escaped
from rl_training.experiment.metric_names import tag_of

if TYPE_CHECKING:
    from rl_training.display.bar import NotebookBar, TerminalBar

# A phase that takes less than this is not shown.
_WORTH_SAYING_SECONDS = 1.0


class Progress:
    """The console: a progress bar on a terminal or in a notebook, plain lines elsewhere, nothing when quiet.

    `advance` may be called at every step: another thread draws the bar, and training never waits for it. Rows are
    received as by any other sink.
    """

    name = "console"

    def __init__(
        self,
        total: int,
        *,
        start: int = 0,
        quiet: bool = False,
        stream: TextIO | None = None,
        unit: str = "steps",
        opening: Sequence[str] = (),
        pretraining: int = 0,
        first_update: int = 0,
    ) -> None:
        """`opening`: lines that are printed first, unless quiet. `first_update`: see `Pace`.

        The first `pretraining` of `total` ticks are updates, which are counted and shown separately.
        """
        self._total, self._unit, self._quiet = total, unit, quiet
        self._pretraining, self._pretrains = pretraining, start < pretraining
        self._step, self._over = start, False
        self._position: Callable[[], int] = lambda: 0
        self._doing: tuple[str, float] | None = None  # what, since when
        self._known: dict[str, float] = {}
        self._shown: tuple[int, frozenset[str]] = (-1, frozenset())  # the step of the last line, and its values
        self._pace = Pace(start, pretraining=pretraining, first_update=first_update)
        self._stream = Unbreakable(stream or sys.stderr or open_nothing())
        self._bar: TerminalBar | NotebookBar | None = None
        if quiet:
            return
        for text in opening:
            self.say(text)
        if self._stream.isatty() or (stream is None and "IPython" in sys.modules):
            from rl_training.display.bar import bar_for

            self._bar = bar_for(self._stream, self._state, given=stream is not None)

    def follow(self, position: Callable[[], int]) -> None:
        """Set the function that returns the tick of the run. It is called from another thread, also between two
        calls of `advance`, which offline are many updates apart."""
        self._position = position

    def advance(self, step: int) -> None:
        self._step = step

    @contextlib.contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Show `what` in the bar inside the context, if it takes long."""
        before, self._doing = self._doing, (what, time.monotonic())
        try:
            yield
        finally:
            self._doing = before

    def say(self, text: str) -> None:
        """Print a line, above the bar if there is one, and also when quiet: for warnings.

        A stream that cannot be written to (a closed pipe, a full disk) does not stop the run.
        """
        if self._bar is not None:
            self._bar.say(escaped(text))
        else:
            print(escaped(text), file=self._stream, flush=True)

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        if self._quiet:
            return
        headlines = _headlines(values)
        self._step = max(self._step, step)
        self._known |= headlines
        if self._bar is not None:
            return
        before, shown = self._shown
        new = {name: value for name, value in headlines.items() if step != before or name not in shown}
        self._shown = step, frozenset(headlines) | (shown if step == before else frozenset())
        if new or step != before:
            time_of_day = time.strftime("%H:%M:%S", time.localtime(seconds))
            self.say("  ".join([time_of_day, *self._line(step, new, again=step == before)]))

    def _line(self, step: int, values: Mapping[str, float], *, again: bool) -> list[str]:
        """The texts of a line; the second line of a step has only what the first did not show."""
        done, total, unit = self._phase(step)
        parts = [f"{done:,}/{total:,} {unit}", *_named(values)]
        if again:
            return parts
        self._pace.note(step)
        return [*parts, *self._rate(unit), f"{duration(self._pace.left(step - done + total))} left"]

    def _phase(self, step: int) -> tuple[int, int, str]:
        """How much of the current phase is done, its total, and its unit."""
        if self._pretrains and step <= self._pretraining:
            return step, self._pretraining, "updates"
        return step - self._pretraining, self._total - self._pretraining, self._unit

    def _rate(self, unit: str) -> list[str]:
        rate = self._pace.rate
        return [] if rate is None else [per_second(rate, unit)]

    def _state(self) -> tuple[int, int, list[str]]:
        """The count, the total and the texts of the bar; losses are the first to give way, then the rate."""
        step, now = max(self._step, self._position()), time.monotonic()
        if not self._over:
            self._pace.note(step, now)
        done, total, unit = self._phase(step)
        left = duration(self._pace.left(step - done + total))
        clock = f"{duration(now - self._pace.began)} in all" if self._over else f"{left} left"
        what, since = self._doing or ("", now)
        doing = [what] if what and now - since >= _WORTH_SAYING_SECONDS else []
        known = dict(self._known)  # in one step, because another thread may be adding to it
        returns = {name: known.pop(name) for name in _RETURNS.values() if name in known}
        return done, total, [clock, *doing, *_named(returns), *self._rate(unit), *_named(known)]

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        """Stop drawing the bar; may be called again."""
        if not self._over:  # a short run may end before the bar was drawn a second time
            self._pace.note(max(self._step, self._position()))
        self._over, bar, self._bar = True, self._bar, None
        if bar is not None:
            bar.close()


_RETURNS = {tag_of("rollout_return_mean"): "return", tag_of("eval_return_mean"): "eval"}


def _headlines(values: Mapping[str, float]) -> dict[str, float]:
    """Returns and losses by their short names."""
    returns = {short: values[name] for name, short in _RETURNS.items() if name in values}
    rest = {name.rpartition("/")[2]: value for name, value in values.items() if name not in _RETURNS}
    return returns | {short: value for short, value in rest.items() if short.endswith("loss")}


def _named(values: Mapping[str, float]) -> list[str]:
    return [f"{name} {significant(float(value))}" for name, value in values.items()]


class Pace:
    """The recent rate of a run: over 15 seconds, or the last eighth of its time if that is longer.

    Steps before `first_update` are faster, because they make no updates, and the ticks of `pretraining` are updates
    alone. Neither counts in the rate of later ticks, and the time left to a later tick is unknown.
    """

    def __init__(
        self, start: int, now: float | None = None, *, pretraining: int = 0, first_update: int = 0
    ) -> None:
        self.began = time.monotonic() if now is None else now
        self._marks = deque([(self.began, start)])
        self._changes = sorted(tick for tick in {pretraining, pretraining + first_update} if start < tick)

    def note(self, step: int, now: float | None = None) -> None:
        """Record the tick of the run; may be called often."""
        now = time.monotonic() if now is None else now
        while self._changes and step >= self._changes[0]:
            del self._changes[0]
            self._marks.clear()
        span = max(15.0, (now - self.began) / 8)
        if len(self._marks) > 1 and self._marks[-1][0] - self._marks[-2][0] < span / 200:
            self._marks.pop()  # the later of two close marks replaces the earlier
        self._marks.append((now, step))
        while len(self._marks) > 2 and now - self._marks[1][0] >= span:
            self._marks.popleft()

    @property
    def rate(self) -> float | None:
        """Steps per second; None before the first one."""
        (since, first), (now, last) = self._marks[0], self._marks[-1]
        return (last - first) / (now - since) if last > first and now > since else None

    def left(self, total: int) -> float | None:
        """Seconds to `total`; None if unknown."""
        known, last = not any(change < total for change in self._changes), self._marks[-1][1]
        rate = self.rate if known else None
        return 0.0 if last >= total else None if rate is None else (total - last) / rate
