"""A short real run of BC: 60 updates on 100 random transitions."""

from __future__ import annotations

from tests.smoke import OfflineFacts


class TestShortRun(OfflineFacts):
    algo = "bc"
    metrics = ("actor_loss",)
