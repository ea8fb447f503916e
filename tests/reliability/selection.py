"""The algorithms that a test runs by default; `slow` runs all.

The training loops are shared, so one algorithm of each regime is enough. Behaviour of a run as a whole (signals,
failures, logs, pruning) is tested with RLPD only, because its run uses both the offline and the online loop.
"""

from __future__ import annotations

from typing import Any

from tests.runs import ALL, mostly_slow

REGIMES = ["sac", "iql", "rlpd"]  # online, offline, and both in one run
EACH: list[Any] = mostly_slow(ALL, *REGIMES)
BOTH_LOOPS: list[Any] = mostly_slow(ALL, "rlpd")
REGIMES_IN_ONE: list[Any] = mostly_slow(REGIMES, "rlpd")
