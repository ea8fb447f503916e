"""Which algorithms a test runs by default: one of each regime, since the loops are shared; `slow` runs all."""

from __future__ import annotations

from typing import Any

from tests.runs import ALL, mostly_slow

REGIMES = ["sac", "iql", "rlpd"]  # online, offline, and both in one run
EACH: list[Any] = mostly_slow(ALL, *REGIMES)
