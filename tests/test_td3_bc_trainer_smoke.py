"""A short real run of TD3+BC: 60 updates on 100 random transitions."""

from __future__ import annotations

from tests.smoke import OfflineFacts


class TestShortRun(OfflineFacts):
    algo = "td3_bc"
    metrics = (
        "critic_loss",
        "actor_loss",
        "bc_loss",
        "target_q_mean",
    )
