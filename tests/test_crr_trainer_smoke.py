"""A short real run of CRR: 60 updates on 100 random transitions."""

from __future__ import annotations

from tests.smoke import OfflineFacts


class TestShortRun(OfflineFacts):
    algo = "crr"
    metrics = (
        "critic_loss",
        "actor_loss",
        "target_q_mean",
        "advantage_mean",
        "advantage_weight_mean",
        "behavior_logprob_mean",
    )
