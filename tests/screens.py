"""What a terminal shows: `python -m tests.screens 80 rl-training train …` prints a command's screens as text."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_TOKEN = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]|.", re.DOTALL)


class Screen:
    """The lines of a terminal of the given width, as far as progress bars need one; long lines wrap."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.lines = [""]
        self.row = self.column = 0
        self.wrapped = 0

    def feed(self, text: str) -> None:
        for token in _TOKEN.findall(text):
            self._take(token)

    def _take(self, token: str) -> None:
        if token == "\r":
            self.column = 0
        elif token == "\n":
            self._down()
        elif token in ("\x1b[2K", "\x1b[K"):
            self.lines[self.row] = "" if token == "\x1b[2K" else self.lines[self.row][: self.column]
        elif token.endswith("A") and len(token) > 1:
            self.row -= int(token[2:-1] or 1)
        elif not token.startswith("\x1b"):
            self._put(token)

    def _down(self) -> None:
        self.row += 1
        self.lines += [""] * (self.row + 1 - len(self.lines))

    def _put(self, letter: str) -> None:
        if self.column == self.width:
            self.wrapped += 1
            self.column = 0
            self._down()
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + letter + line[self.column + 1 :]
        self.column += 1


def show(text: str, width: int = 200) -> Screen:
    """The screen after `text` was written to it."""
    screen = Screen(width)
    screen.feed(text)
    return screen


class PseudoTerminal:
    """A pseudo-terminal: a thread reads what is written to `stream` and shows it on `screen`."""

    def __init__(self, width: int) -> None:
        self._master, self._slave = os.openpty()
        self.screen = Screen(width)
        self.frames = [""]  # every state of the last line
        self.resize(width)
        self.stream: TextIO = open(self._slave, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - a descriptor
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def resize(self, width: int) -> None:
        self.screen.width = width
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the last writer has closed it
                return
            self.screen.feed(data.decode(errors="replace"))
            self.frames.append(self.screen.lines[self.screen.row])

    def close(self) -> None:
        self.stream.close()
        self._reader.join(5)
        os.close(self._master)


@contextmanager
def terminal(width: int) -> Iterator[PseudoTerminal]:
    made = PseudoTerminal(width)
    try:
        yield made
    finally:
        made.close()


def main(width: int, command: list[str]) -> None:
    """Run a command on a terminal of that width, and print its screen whenever it has changed for a second."""
    with terminal(width) as made:
        environment = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "CI", "NO_COLOR")
        }
        process = subprocess.Popen(
            command, stdin=made.stream, stdout=made.stream, stderr=made.stream, env=environment | {"TERM": "xterm"}
        )
        began, before = time.monotonic(), ""
        while process.poll() is None:
            time.sleep(1)
            now = "\n".join(made.screen.lines)
            if now != before:
                print(f"--- {time.monotonic() - began:.0f} s\n{now}", flush=True)
                before = now
    print("--- the end\n" + "\n".join(made.screen.lines))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
