"""A short real run of DDPG: 60 steps, with updates from the 20th step on."""

from __future__ import annotations

from tests.smoke import OnlineFacts


class TestShortRun(OnlineFacts):
    algo = "ddpg"
    metrics = (
        "critic_loss",
        "actor_loss",
        "target_q_mean",
    )
