"""A short real run of AWAC: 60 updates on 100 random transitions."""

from __future__ import annotations

from tests.smoke import CLONING_METRICS, OfflineFacts


class TestShortRun(OfflineFacts):
    algo = "awac"
    metrics = CLONING_METRICS
