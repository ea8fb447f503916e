"""One console for all members: a bar or lines that tell their means, and warnings with the seed in front."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from rl_training.display.progress import Progress


class Display:
    """What the members' consoles have in common; made before them, closed with the last of them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._progress: Progress | None = None
        self._members: list[MemberProgress] = []
        self._ended: list[MemberProgress] = []
        self._said: set[str] = set()
        # The log of every member calls from a thread of its own.
        self._lock = threading.Lock()

    def join(self, member: MemberProgress, total: int, start: int, quiet: bool, unit: str) -> Progress:
        """Take a member in; the first one decides what the bar counts."""
        with self._lock:
            self._members.append(member)
            if self._progress is None:
                self._progress = Progress(total, start=start, quiet=quiet, unit=unit)
                if not quiet:
                    self._progress.say(f"{self._count} members together, each in a folder of its own:")
                self._progress.follow(self._position)
            return self._progress

    def open(self, lines: Sequence[str]) -> None:
        """The first lines of a member; what is true of several is said once."""
        with self._lock:
            for text in lines:
                if text not in self._said and self._progress is not None:
                    self._progress.say(f"  {text}")
            self._said.update(lines)

    def _position(self) -> int:
        return min((member.step for member in self._members), default=0)

    def leave(self, member: MemberProgress) -> None:
        """A member has ended; the last one closes the console."""
        with self._lock:
            if member in self._members:
                self._members.remove(member)
                self._ended.append(member)
                self._count -= 1
            if self._count == 0 and self._progress is not None:
                self._progress.close()

    def tell(self, step: int, seconds: float) -> None:
        """Show the means of a step once every member has written its row."""
        with self._lock:
            if self._progress is None or any(member.row_step != step for member in self._members):
                return
            # At the last step the first ones have ended already.
            rows = [member.row for member in (*self._ended, *self._members) if member.row_step == step]
            names = [name for name in rows[0] if all(name in row for row in rows)]
            means = {name: sum(row[name] for row in rows) / len(rows) for name in names}
            self._progress.write(step, seconds, means)


class MemberProgress(Progress):
    """A member's share of the display; takes the place of its `Progress`."""

    def __init__(
        self,
        display: Display,
        seed: int,
        total: int,
        *,
        start: int = 0,
        quiet: bool = False,
        unit: str = "steps",
        opening: Sequence[str] = (),
    ) -> None:
        self._display, self._seed = display, seed
        self.step, self.row_step = start, -1
        self.row: dict[str, float] = {}
        self._shared = display.join(self, total, start, quiet, unit)
        if not quiet:
            display.open(opening)

    def follow(self, position: Callable[[], int]) -> None:
        """The display asks for the steps that were told."""

    def advance(self, step: int) -> None:
        self.step = step

    def doing(self, what: str, unit: str | None = None) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()

    def say(self, text: str) -> None:
        self._shared.say(f"seed {self._seed}: {text}")

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        self.row = dict(values) if step != self.row_step else self.row | dict(values)
        self.row_step = step
        self._display.tell(step, seconds)

    def flush(self) -> None:
        self._shared.flush()

    def close(self) -> None:
        self._display.leave(self)
