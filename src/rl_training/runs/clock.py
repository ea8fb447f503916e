"""`Clock`, the progress of a run, and `Cadence`, which triggers periodic work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Clock:
    """Progress of a run in ticks: environment steps online, gradient updates offline.

    `phase` is online, offline, or pretrain (RLPD before its first environment step). `now` counts the ticks of the
    current phase, to which intervals refer; `ticks` counts all phases and never decreases.
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
        """Whether (last, now] contains a multiple of `interval`; sets `last` to `now`."""
        crossed = now // self.interval > self.last // self.interval
        self.last = now
        return crossed

    def next(self, now: int) -> int:
        """The next multiple of `interval` after `now`."""
        return (now // self.interval + 1) * self.interval
