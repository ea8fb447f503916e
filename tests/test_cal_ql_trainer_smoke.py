"""A short real run of Cal-QL: 60 updates on 100 random transitions."""

from __future__ import annotations

from tests.smoke import OfflineFacts


class TestShortRun(OfflineFacts):
    algo = "cal_ql"
    metrics = (
        "critic_loss",
        "actor_loss",
        "floored_share",
        "target_q_mean",
    )
