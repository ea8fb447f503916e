"""A short real run of CQL: 60 updates on 100 random transitions."""

from __future__ import annotations

from tests.smoke import OfflineFacts


class TestShortRun(OfflineFacts):
    algo = "cql"
    metrics = (
        "critic_loss",
        "actor_loss",
        "target_q_mean",
    )
