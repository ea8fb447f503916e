"""Which algorithms a test runs by default: one of each regime, since the loops are shared; `slow` runs all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runs import ALL

REGIMES = ["sac", "iql", "rlpd"]  # online, offline, and both in one run
EACH: list[Any] = [algo if algo in REGIMES else pytest.param(algo, marks=pytest.mark.slow) for algo in ALL]
