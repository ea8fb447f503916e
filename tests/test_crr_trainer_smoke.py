"""A short real run of CRR: 60 updates on 100 random transitions."""

from __future__ import annotations

from tests.smoke import CLONING_METRICS, OfflineFacts


class TestShortRun(OfflineFacts):
    algo = "crr"
    metrics = CLONING_METRICS
