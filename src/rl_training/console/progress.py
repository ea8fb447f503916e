"""The progress of a run on the console: a bar on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from typing import TextIO

import rich.progress
from rich.console import Console

from rl_training.console.output import open_nothing


class Progress:
    """The console: a progress bar on a terminal, plain lines elsewhere, nothing when quiet.

    `advance` may be called at every step from the training thread; rows arrive as at any other sink.
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
    ) -> None:
        self._total, self._unit, self._quiet = total, unit, quiet
        self._stream = stream or sys.stderr or open_nothing()
        self._marks = deque([(time.monotonic(), start)], maxlen=10)
        self._shown: dict[str, float] = {}
        self._bar: rich.progress.Progress | None = None
        self._next_advance = start
        if not quiet and self._stream.isatty():
            self._bar = rich.progress.Progress(
                rich.progress.BarColumn(bar_width=24),
                rich.progress.MofNCompleteColumn(),
                rich.progress.TextColumn("{task.description}", markup=False),
                rich.progress.TimeRemainingColumn(),
                console=Console(file=self._stream),
                redirect_stdout=False,
            )
            self._task = self._bar.add_task("", total=total, completed=start)
            self._bar.start()

    def advance(self, step: int) -> None:
        """Move the bar; cheap, since only every thousandth of the way reaches the terminal."""
        if self._bar is not None and step >= self._next_advance:
            self._next_advance = step + max(1, self._total // 1_000)
            self._bar.update(self._task, completed=step)

    def say(self, text: str) -> None:
        """Print a line of its own, above the bar where there is one, and also when quiet: for warnings.

        A stream that cannot be written to (a closed pipe, a full disk) is no reason to stop.
        """
        with contextlib.suppress(OSError, ValueError):
            if self._bar is not None:
                self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
            else:
                print(text, file=self._stream, flush=True)

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        if self._quiet:
            return
        self._shown |= _headlines(values)
        self._marks.append((time.monotonic(), step))
        (since, first), (now, _) = self._marks[0], self._marks[-1]
        rate = (step - first) / max(now - since, 1e-9)
        parts = [f"{name} {value:.4g}" for name, value in self._shown.items()]
        parts.append(f"{rate:,.0f} {self._unit}/s")
        if self._bar is not None:
            self._bar.update(self._task, completed=step, description="  ".join(parts))
            return
        left = timedelta(seconds=round((self._total - step) / rate)) if rate > 0 else "unknown time"
        self.say("  ".join([f"{step:,}/{self._total:,} {self._unit}", *parts, f"{left} left"]))

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


_RETURNS = {"rollout/ep_rew_mean": "return", "eval/mean_reward": "eval"}


def _headlines(values: Mapping[str, float]) -> dict[str, float]:
    """What a person watches: returns and losses, by their short names."""
    names = {name: _RETURNS.get(name) or name.rpartition("/")[2] for name in values}
    return {short: values[name] for name, short in names.items() if name in _RETURNS or short.endswith("loss")}
