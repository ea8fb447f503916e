"""The progress of a run on the console: a bar on a terminal or in a notebook, plain lines elsewhere, nothing when
quiet."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TextIO, cast

from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderResult
from rich.live import Live

from rl_training.display.bar import Pace, Standing, draw, duration, named, per_second
from rl_training.display.output import Unbreakable, open_nothing
from rl_training.errors import escaped
from rl_training.experiment.metric_names import tag_of

_NOTEBOOK_WIDTH = 100
# What takes less than this is not worth a word.
_WORTH_SAYING_SECONDS = 1.0


class Progress:
    """The console: a progress bar on a terminal or in a notebook, plain lines elsewhere, nothing when quiet.

    `advance` may be called at every step from the training thread, which never waits for the bar: a thread of its
    own draws it. Rows arrive as at any other sink.
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
    ) -> None:
        """`opening`: lines that stand above everything else, unless quiet."""
        self._total, self._unit, self._quiet = total, unit, quiet
        self._step, self._over = start, False
        self._position: Callable[[], int] = lambda: 0
        self._doing: tuple[str, str, float] | None = None  # what, the unit meanwhile, since when
        self._known: dict[str, float] = {}
        self._told: tuple[int, frozenset[str]] = (-1, frozenset())  # the step of the last line, and what it told
        self._pace = Pace(start)
        self._stream = Unbreakable(stream or sys.stderr or open_nothing())
        self._bar: _Bar | None = None
        if quiet:
            return
        for text in opening:
            self.say(text)
        self._bar = _bar_for(self._stream, self._standing, given=stream is not None)

    def follow(self, position: Callable[[], int]) -> None:
        """Have the bar ask how far the run is: `position` is called from another thread, also between two calls
        of `advance`, which offline are many updates apart."""
        self._position = position

    def advance(self, step: int) -> None:
        self._step = step

    @contextlib.contextmanager
    def doing(self, what: str, unit: str | None = None) -> Iterator[None]:
        """Have the bar say `what` the run is at, if that lasts; `unit` is what it counts meanwhile."""
        before, self._doing = self._doing, (what, unit or self._unit, time.monotonic())
        try:
            yield
        finally:
            self._doing = before

    def say(self, text: str) -> None:
        """Print a line of its own, above the bar where there is one, and also when quiet: for warnings.

        A stream that cannot be written to (a closed pipe, a full disk) is no reason to stop.
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
        before, told = self._told
        new = {name: value for name, value in headlines.items() if step != before or name not in told}
        self._told = step, frozenset(headlines) | (told if step == before else frozenset())
        if new or step != before:
            self.say("  ".join([_time_of_day(seconds), *self._line(step, new, again=step == before)]))

    def _line(self, step: int, values: Mapping[str, float], *, again: bool) -> list[str]:
        """What a line tells; the second one of a step only what the first did not."""
        parts = [f"{step:,}/{self._total:,} {self._unit}", *named(values)]
        if again:
            return parts
        self._pace.note(step)
        rate = self._pace.rate
        parts += [] if rate is None else [per_second(rate, self._unit)]
        return [*parts, f"{duration(self._pace.left(self._total))} left"]

    def _standing(self) -> Standing:
        """What the bar shows now."""
        step, now = max(self._step, self._position()), time.monotonic()
        if not self._over:
            self._pace.note(step, now)
        what, unit, since = self._doing or ("", self._unit, now)
        known = dict(self._known)  # in one step, because another thread may be adding to it
        return Standing(
            step,
            self._total,
            unit,
            seconds=now - self._pace.began if self._over else self._pace.left(self._total),
            over=self._over,
            rate=self._pace.rate,
            doing=what if now - since >= _WORTH_SAYING_SECONDS else "",
            returns={name: known[name] for name in _RETURNS.values() if name in known},
            losses={name: value for name, value in known.items() if name not in _RETURNS.values()},
        )

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        """Leave the bar as it stands; may be called again."""
        if not self._over:  # a short run may end before the bar was drawn a second time
            self._pace.note(max(self._step, self._position()))
        self._over, bar, self._bar = True, self._bar, None
        if bar is not None:
            bar.close()


_RETURNS = {tag_of("rollout_return_mean"): "return", tag_of("eval_return_mean"): "eval"}


def _headlines(values: Mapping[str, float]) -> dict[str, float]:
    """What a person watches: returns and losses, by their short names."""
    returns = {short: values[name] for name, short in _RETURNS.items() if name in values}
    rest = {name.rpartition("/")[2]: value for name, value in values.items() if name not in _RETURNS}
    return returns | {short: value for short, value in rest.items() if short.endswith("loss")}


def _time_of_day(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


class _Bar(Protocol):
    """A bar that draws itself, several times a second, until it is closed."""

    def say(self, text: str) -> None: ...
    def close(self) -> None: ...


def _bar_for(stream: Unbreakable, standing: Callable[[], Standing], *, given: bool) -> _Bar | None:
    """The bar that can be shown on `stream`; None where lines are better: in a file, a pipe or a job's log."""
    if stream.isatty():
        # Text is printed as it is; a notebook is none of rich's business here.
        console = _Console(
            file=cast("TextIO", stream),
            markup=False,
            highlight=False,
            emoji=False,
            soft_wrap=True,
            force_jupyter=False,
        )
        plain = console.no_color or os.environ.get("CI", "").lower() not in ("", "0", "false")
        return _TerminalBar(console, standing) if console.is_interactive and not plain else None
    if not given:
        with contextlib.suppress(Exception):  # whatever stands in for a notebook: lines do as well
            show = _notebook_display()
            return None if show is None else _NotebookBar(show, standing, stream)
    return None


class _Console(Console):
    """As wide as the terminal it writes to is now; COLUMNS, which rich would believe, can only make it narrower."""

    @property  # type: ignore[misc]  # a terminal's size is read, never set
    def size(self) -> ConsoleDimensions:
        usual = super().size
        try:
            columns = os.get_terminal_size(self.file.fileno()).columns
        except (OSError, ValueError, AttributeError):
            return usual
        if columns == 0:  # a terminal that does not know
            return usual
        return ConsoleDimensions(min(columns, self._width or columns), usual.height)


class _TerminalBar:
    """The last line of a terminal; whatever is printed meanwhile goes above it."""

    def __init__(self, console: Console, standing: Callable[[], Standing]) -> None:
        self._console, self._standing = console, standing
        self._live = Live(
            console=console,
            get_renderable=lambda: self,
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        )
        self._live.start(refresh=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # The last column stays free: some terminals break the line as soon as it is taken.
        yield draw(self._standing(), options.max_width - 1, ascii_only=options.ascii_only)

    def say(self, text: str) -> None:
        self._console.print(text)

    def close(self) -> None:
        self._live.stop()


def _notebook_display() -> Callable[..., Any] | None:
    """IPython's `display`, where this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not (type(shell).__name__ == "ZMQInteractiveShell" or "colab" in type(shell).__module__):
        return None
    from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

    show: Callable[..., Any] = display
    return show


class _NotebookBar:
    """A line of text below a cell that is replaced in place; it needs no widgets."""

    def __init__(
        self,
        display: Callable[..., Any],
        standing: Callable[[], Standing],
        stream: Unbreakable,
        *,
        interval: float = 0.5,
    ) -> None:
        self._standing, self._stream, self._interval = standing, stream, interval
        self._shown = self._text()
        self._handle = display({"text/plain": self._shown}, raw=True, display_id=True)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep_drawing, name="progress bar", daemon=True)
        self._thread.start()

    def _text(self) -> str:
        return draw(self._standing(), _NOTEBOOK_WIDTH).plain

    def _keep_drawing(self) -> None:
        while not self._closed.wait(self._interval):
            self._draw()

    def _draw(self) -> None:
        text = self._text()
        if text != self._shown:
            self._shown = text
            with contextlib.suppress(Exception):  # a notebook that is gone is no reason to stop
                self._handle.update({"text/plain": text}, raw=True)

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self._draw()
