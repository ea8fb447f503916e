"""A short real run of DQN: 60 steps, with updates from the 20th step on."""

from __future__ import annotations

from tests.runs import ShortRun
from tests.smoke import OnlineFacts


class TestShortRun(OnlineFacts):
    algo = "dqn"
    metrics = (
        "loss",
        "q_mean",
        "target_q_mean",
    )

    def test_predicted_actions_are_legal(self, run: ShortRun) -> None:
        actions = run.actions()
        assert actions.shape == (64,)
        assert set(actions) <= {0, 1}
