"""A short real run of IQL: 60 updates on 100 random transitions."""

from __future__ import annotations

from tests.smoke import OfflineFacts


class TestShortRun(OfflineFacts):
    algo = "iql"
    metrics = (
        "critic_loss",
        "actor_loss",
        "value_loss",
        "advantage_mean",
    )
