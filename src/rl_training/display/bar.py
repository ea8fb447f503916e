"""The progress bar of a terminal or a notebook, made of rich's columns; imported only if one is shown."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, TextIO, cast

from rich.console import Console, ConsoleDimensions, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column

from rl_training.display.output import Unbreakable

# The bar takes the columns that the texts leave, between these two.
_NARROWEST, _WIDEST = 8, 40
_NOTEBOOK_WIDTH = 100

State = Callable[[], tuple[int, int, list[str]]]
"""Returns the count and total of a run, and texts to show next to them: the time, then the most important first."""


def bar_for(stream: Unbreakable, state: State, *, given: bool) -> TerminalBar | NotebookBar | None:
    """Start the bar that `stream` can show; None if lines are better: in a file, a pipe or a job's log."""
    if stream.isatty():
        # Text is printed as it is; rich's own display in notebooks needs widgets.
        console = _Console(
            file=cast("TextIO", stream),
            markup=False,
            highlight=False,
            emoji=False,
            soft_wrap=True,
            force_jupyter=False,
        )
        plain = console.no_color or os.environ.get("CI", "").lower() not in ("", "0", "false")
        return TerminalBar(console, state) if console.is_interactive and not plain else None
    if not given:
        with contextlib.suppress(Exception):  # an unusual notebook has plain lines
            show = _notebook_display()
            return None if show is None else NotebookBar(show, state, stream)
    return None


class _Console(Console):
    """A console that is as wide as its terminal is now, less the last column: some terminals break a full line.

    COLUMNS, which rich prefers to the terminal's own answer, can only make it narrower.
    """

    @property  # type: ignore[misc]  # a terminal's size is read, never set
    def size(self) -> ConsoleDimensions:
        usual = super().size
        columns = usual.width
        with contextlib.suppress(OSError, ValueError, AttributeError):
            # A terminal that does not know its width answers 0.
            columns = os.get_terminal_size(self.file.fileno()).columns or columns
        return ConsoleDimensions(min(columns, self._width or columns) - 1, usual.height)


class _Line(Progress):
    """Bar, count, and those texts that fit whole; asks for the state of the run whenever it is drawn."""

    def __init__(self, console: Console, state: State) -> None:
        self._state = state
        super().__init__(
            BarColumn(None, table_column=Column(max_width=_WIDEST)),
            MofNCompleteColumn(table_column=Column(no_wrap=True, overflow="crop")),
            TextColumn("{task.description}"),
            console=console,
            refresh_per_second=4,
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        )
        self.add_task("")

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:  # rich asks once before the task is added
            task.completed, task.total, texts = self._state()
            fixed = len(f" {task.total}/{task.total} ") + _NARROWEST
            while texts and fixed + len("  ".join(texts)) > self.console.width:
                texts.pop()
            time, *others = texts or [""]
            task.description = f"[progress.remaining]{time}[/]" + escape("".join(f"  {text}" for text in others))
        return super().get_renderables()


class TerminalBar(_Line):
    """The last line of a terminal; lines that are printed meanwhile go above it."""

    def __init__(self, console: Console, state: State) -> None:
        super().__init__(console, state)
        self.start()

    def say(self, text: str) -> None:
        self.console.print(text)

    def close(self) -> None:
        self.stop()


def _notebook_display() -> Callable[..., Any] | None:
    """IPython's `display`, if this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not (type(shell).__name__ == "ZMQInteractiveShell" or "colab" in type(shell).__module__):
        return None
    from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

    return display


class NotebookBar:
    """A line of text below a cell that is replaced in place; it needs no widgets."""

    def __init__(self, display: Callable[..., Any], state: State, stream: Unbreakable) -> None:
        self._stream = stream
        self._console = Console(width=_NOTEBOOK_WIDTH, color_system=None, force_jupyter=False)
        self._line = _Line(self._console, state)
        self._shown = self._text()
        self._handle = display({"text/plain": self._shown}, raw=True, display_id=True)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep_drawing, name="progress bar", daemon=True)
        self._thread.start()

    def _text(self) -> str:
        with self._console.capture() as drawn:
            self._console.print(self._line)
        return drawn.get().rstrip()

    def _keep_drawing(self) -> None:
        while not self._closed.wait(0.5):
            self._draw()

    def _draw(self) -> None:
        text = self._text()
        if text != self._shown:
            self._shown = text
            with contextlib.suppress(Exception):  # a notebook that is gone does not stop the run
                self._handle.update({"text/plain": text}, raw=True)

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self._draw()
