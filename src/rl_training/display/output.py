"""Console output: tables on a terminal, aligned text in a pipe, warnings and errors on one line each."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rl_training.display.text import plain_data
from rl_training.errors import escaped
from rl_training.errors import one_line as one_line  # also importable from here


@dataclass
class Flags:
    """The options before the command."""

    debug: bool = False
    quiet: bool = False


flags = Flags()
"""The options of the command that is running; every command starts from the defaults."""


# Replacements of characters that the terminal cannot show.
_LIKENESS = {"±": "+/-", "→": "->", "…": "...", "·": "-", "×": "x", "–": "-", "’": "'"}


def _in_plain_letters(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(_LIKENESS.get(letter, "?") for letter in text), error.end


def prepare_streams() -> None:
    """Redirect closed streams of this process to the null device, and replace what a terminal cannot show.

    A closed descriptor is opened on the null device first: otherwise the next file would get its number, and the
    text written to standard error. An ASCII terminal shows `±` as `+/-`.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, which is this one
    codecs.register_error("rl_training.plain", _in_plain_letters)
    sys.stdout, sys.stderr = _prepared(sys.stdout), _prepared(sys.stderr)


def _prepared(stream: TextIO | None) -> TextIO:
    if stream is None:
        return open_nothing()
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="rl_training.plain")
    return stream


class Unbreakable:
    """A stream whose `write` never raises: text that cannot be written (a closed pipe, a full disk) is dropped, and
    characters outside its encoding are replaced."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                codecs.register_error("rl_training.plain", _in_plain_letters)
                self._stream.write(text.encode(self.encoding, "rl_training.plain").decode(self.encoding))
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return self._stream.isatty()
        return False

    def fileno(self) -> int:
        return self._stream.fileno()


def open_nothing() -> TextIO:
    """A stream to the null device."""
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - lives as long as the process


def program_name() -> str:
    """The command that started this program: `rl-training`, a path to it, or `python -m rl_training`."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py" and called.parent.name == "rl_training":
        return shlex.join(sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1])
    if called.name != "rl-training":
        return "rl-training"
    found = shutil.which(called.name)
    return called.name if found and Path(found).absolute() == called.absolute() else shlex.quote(str(called))


def show_table(rows: Sequence[Sequence[str]], header: Sequence[str] = (), *, fold: bool = True) -> None:
    """Print rows on standard output; without a header the first column holds the names.

    With a header on a terminal, cells are folded to its width if `fold` is set. Otherwise each row is one line, so
    that paths can be copied.
    """
    rows = [[one_line(cell) for cell in row] for row in rows]
    if header and sys.stdout.isatty():  # without a header, long paths stay on one line
        import rich.box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*header, box=rich.box.SIMPLE_HEAD, pad_edge=False)
        for row in rows:
            table.add_row(*(Text(cell, overflow="fold") for cell in row))
        Console(file=sys.stdout, width=None if fold else 10_000).print(table)
        return
    lines = [header, *rows] if header else rows
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def show_json(value: Any) -> None:
    """Print one JSON document on standard output; NaN and infinity become null."""
    print(json.dumps(plain_data(value), indent=1, ensure_ascii=False))


def note(text: str) -> None:
    """Print a remark on standard error, unless quiet."""
    if not flags.quiet:
        print(escaped(text), file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Print a warning, also when quiet."""
    print(f"warning: {one_line(text)}", file=sys.stderr, flush=True)
