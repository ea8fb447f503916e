"""One console for N runs: the means of their metrics, and messages with the seed in front."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rl_training.display.progress import Progress


class Display:
    """The `Progress` that the members of a population share."""

    def __init__(self, count: int) -> None:
        self._title = f"{count} members together, each in a folder of its own:"
        self._progress: Progress | None = None
        self._members: list[MemberProgress] = []
        self._printed: set[str] = set()
        self._lock = threading.Lock()  # each member logs from its own thread

    def join(self, member: MemberProgress, total: int, opening: Sequence[str], **options: Any) -> Progress:
        """Add a member and return the shared console; an opening line of several members is printed once."""
        with self._lock:
            self._members.append(member)
            if self._progress is None:
                self._progress = Progress(total, opening=[self._title], **options)
                self._progress.follow(self._position)
            for text in () if options.get("quiet") else opening:
                if text not in self._printed:
                    self._progress.say(f"  {text}")
            self._printed.update(opening)
            return self._progress

    def _position(self) -> int:
        return min((member.step for member in self._members if member.running), default=0)

    def close_if_unused(self) -> None:
        """Close the console after its last member; another member that joins opens a new one."""
        with self._lock:
            if self._progress is not None and not any(member.running for member in self._members):
                self._progress.close()
                self._progress = None

    def show_means(self, step: int, seconds: float) -> None:
        """Show the means of a step after every running member has written its row."""
        with self._lock:
            if self._progress is None or any(one.row_step != step for one in self._members if one.running):
                return
            rows = [one.row for one in self._members if one.row_step == step]  # also of members that have ended
            names = [name for name in rows[0] if all(name in row for row in rows)]
            means = {name: sum(row[name] for row in rows) / len(rows) for name in names}
            self._progress.write(step, seconds, means)


class MemberProgress(Progress):
    """The `Progress` of one member, which writes to the shared display."""

    def __init__(
        self,
        display: Display,
        seed: int,
        total: int,
        *,
        start: int = 0,
        opening: Sequence[str] = (),
        **options: Any,
    ) -> None:
        self._display, self._seed = display, seed
        self.running, self.step, self.row_step = True, start, -1
        self.row: dict[str, float] = {}
        lines = [line.removesuffix(f", seed {seed}") for line in opening]  # equal lines are printed once
        self._shared = display.join(self, total, lines, start=start, **options)

    def follow(self, position: Callable[[], int]) -> None:
        """Ignored: the display shows the steps passed to `advance`."""

    def advance(self, step: int) -> None:
        self.step = step

    def doing(self, what: str) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()

    def say(self, text: str) -> None:
        self._shared.say(f"seed {self._seed}: {text}")

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        self.row = dict(values) if step != self.row_step else self.row | dict(values)
        self.row_step = step
        self._display.show_means(step, seconds)

    def flush(self) -> None:
        self._shared.flush()

    def close(self) -> None:
        self.running = False
        self._display.close_if_unused()
