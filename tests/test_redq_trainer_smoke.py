"""A short real run of REDQ: 60 steps, with updates from the 20th step on."""

from __future__ import annotations

from tests.smoke import OnlineFacts


class TestShortRun(OnlineFacts):
    algo = "redq"
    metrics = (
        "critic_loss",
        "actor_loss",
        "target_q_mean",
        "entropy_term",
    )
