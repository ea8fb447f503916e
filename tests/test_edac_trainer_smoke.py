"""A short real run of EDAC: 60 updates on 100 random transitions."""

from __future__ import annotations

from tests.smoke import OfflineFacts


class TestShortRun(OfflineFacts):
    algo = "edac"
    metrics = (
        "critic_loss",
        "critic_mse_loss",
        "diversity_loss",
        "q_data_std",
        "q_policy_std",
        "actor_loss",
        "target_q_mean",
        "entropy_term",
    )
