"""A short real run of TD3: 60 steps, with updates from the 20th step on."""

from __future__ import annotations

from tests.smoke import OnlineFacts


class TestShortRun(OnlineFacts):
    algo = "td3"
    metrics = (
        "critic_loss",
        "actor_loss",
        "target_q_mean",
    )
