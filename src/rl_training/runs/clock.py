"""How far a run has come, and what is due: a boundary counts when it is crossed, not only when it is hit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Clock:
    """`now` is what intervals count in the present phase; `ticks`, the sum of both counts, never goes back.

    One tick is an environment step online and a gradient update offline. `phase` is online, offline, or pretrain
    (RLPD before its first environment step).
    """

    phase: str = "online"
    global_step: int = 0
    pretrain_updates: int = 0

    @property
    def now(self) -> int:
        return self.pretrain_updates if self.phase == "pretrain" else self.global_step

    @property
    def ticks(self) -> int:
        return self.pretrain_updates + self.global_step


class Cadence:
    """Fires when the clock crosses a multiple of `interval`, however far it jumps."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.last = 0

    def due(self, now: int) -> bool:
        """Whether a boundary lies in (last, now]; asking moves `last`."""
        crossed = now // self.interval > self.last // self.interval
        self.last = now
        return crossed

    def next(self, now: int) -> int:
        """The next boundary after `now`."""
        return (now // self.interval + 1) * self.interval
