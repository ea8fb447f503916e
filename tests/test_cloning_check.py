"""The check of cloning weights in offline runs of AWAC and CRR."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import TransitionDataset
from rl_training.runtime.cloning import CloningCallback, largest_return
from tests.runs import logged, tiny, train


def data(terminals: list[bool], rewards: list[float]) -> TransitionDataset:
    """Rows that end with an episode's end, by termination or by a cut."""
    obs = np.arange(len(rewards), dtype=np.float32)[:, None]
    return TransitionDataset.from_arrays(
        observations=obs,
        actions=0 * obs,
        rewards=np.array(rewards, np.float32),
        terminals=np.array(terminals),
        timeouts=np.arange(len(rewards)) == len(rewards) - 1,
        next_observations=obs + 1,
        action_low=-1.0,
        action_high=1.0,
    )


@pytest.mark.parametrize(("terminates", "expected"), [(True, 3.5), (False, 4.2)], ids=["terminated", "cut"])
def test_the_largest_return_to_go(terminates: bool, expected: float) -> None:
    """Rewards 1 2 | 3 1 with gamma 0.5: 3 + 0.5 · 1.

    A cut episode continues with the mean reward, 1.75, and ends in one of four steps, as the data do:
    3 + 0.5 · (1 + 0.5 · 1.75 / (1 - 0.5 · 0.75)).
    """
    rows = data([False, True, False, terminates], [1.0, 2.0, 3.0, 1.0])
    assert largest_return(rows, 0.5) == pytest.approx(expected)


class FakeSession(SimpleNamespace):
    """The parts of a session that the check uses."""

    def __init__(self, target: float, share: float) -> None:
        terms = {"target_q_mean": torch.tensor(target), "small_weight_share": torch.tensor(share)}
        super().__init__(clock=SimpleNamespace(now=0), said=[], values={})
        self.learner = SimpleNamespace(terms=terms, updates=1_000)
        self.say, self.log = self.said.append, self.values.__setitem__


def said(callback: CloningCallback, target: float, share: float, ticks: tuple[int, ...] = (100,)) -> list[str]:
    session: Any = FakeSession(target, share)
    for session.clock.now in ticks:
        callback.on_step(session)
    assert session.values == {"dataset/max_return_to_go": 50.0}
    return list(session.said)


def test_it_names_the_failure_and_the_settings_to_change() -> None:
    (text,) = said(CloningCallback(50.0, "beta", 100), target=60.0, share=0.1)
    assert text == (
        "warning: update 1,000: the critics overestimate: their mean target, 60, exceeds the largest return-to-go "
        "of the data, 50; use layer_norm: true, or a larger beta"
    )
    (text,) = said(CloningCallback(50.0, "awac_lambda", 100), target=40.0, share=0.9)
    assert "cloning has stopped: 90% of the weights are below 0.01" in text
    assert text.endswith("or a larger awac_lambda")


def test_it_warns_once_per_run_even_if_the_run_is_resumed() -> None:
    before, after = CloningCallback(50.0, "beta", 100), CloningCallback(50.0, "beta", 100)
    assert len(said(before, 60.0, 0.9, ticks=(100, 150, 200))) == 1
    after.load_state_dict(before.state_dict())
    assert said(after, 60.0, 0.9, ticks=(300,)) == []


def test_a_healthy_run_is_not_warned_about() -> None:
    assert said(CloningCallback(50.0, "beta", 100), target=40.0, share=0.3) == []


def warned_at(callback: CloningCallback, targets: list[float]) -> list[int]:
    """The intervals with a warning."""
    session: Any = FakeSession(0.0, 0.1)
    found: list[int] = []
    for session.clock.now, target in enumerate(targets, start=1):
        session.learner.terms["target_q_mean"] = torch.tensor(target)
        callback.on_step(session)
        found += [session.clock.now] * len(session.said[len(found) :])
    return found


def test_critics_that_still_fall_towards_negative_returns_do_not_overestimate() -> None:
    assert warned_at(CloningCallback(-50.0, "beta", 1), [-10.0, -30.0, -29.0, -40.0, -60.0]) == []
    assert warned_at(CloningCallback(-50.0, "beta", 1), [-10.0, -60.0, -40.0]) == [3]
    assert warned_at(CloningCallback(-50.0, "beta", 1), [-10.0, -30.0, -29.0, -28.0, -29.0, -28.0, -29.0]) == [7]


def test_the_lowest_mean_target_is_kept_in_the_checkpoint() -> None:
    before, after = CloningCallback(-50.0, "beta", 1), CloningCallback(-50.0, "beta", 1)
    assert warned_at(before, [-60.0]) == []
    after.load_state_dict(before.state_dict())
    after.cadence.last = 0
    assert warned_at(after, [-40.0]) == [1]
    after.load_state_dict({"last": 0, "warned": False})  # of an earlier version
    assert warned_at(after, [-40.0]) == []


def test_terms_are_read_only_when_metrics_are_logged() -> None:
    session: Any = FakeSession(60.0, 0.9)
    session.clock.now = 99
    CloningCallback(50.0, "beta", 100).on_step(session)
    assert session.said == []
    assert session.values == {}


@pytest.mark.parametrize("settings", [{}, {"n_step": 2}], ids=["one step", "n steps"])
def test_a_run_logs_the_largest_return_to_go(tmp_path: Path, settings: dict[str, Any]) -> None:
    result = train(tiny("crr", tmp_path, kwargs=settings))
    rows = [row for row in logged(result.run_dir) if "train/n_updates" in row]
    values = {row.get("dataset/max_return_to_go") for row in rows}
    if settings:
        assert values == {None}
    else:
        (value,) = values
        assert value is not None
        assert float(value) < 0  # rewards of Pendulum-v1 are negative
