"""Messages to an environment's process: what comes out is what went in, whichever way it travelled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl_training.environments import frames

ACTIONS = [
    np.linspace(-1, 1, 6, dtype=np.float32),
    np.linspace(-1, 1, 6).reshape(2, 3),
    np.array([3, 1], dtype=np.int32),
    np.int64(4),
    np.array(2),
]


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: f"{action.dtype}-{action.shape}")
def test_an_action_arrives_as_it_was(action: Any) -> None:
    form = frames.Form()
    assert not form.fits(action)
    form.learn(action)
    assert form.fits(action)
    message = frames.action_message(action)
    assert frames.is_bare(message)
    found = frames.action_of(message, form)
    assert (found.dtype, found.shape) == (action.dtype, action.shape)
    assert np.array_equal(found, action)
    if action.shape:
        found += 1  # an environment may change what it is given


def test_only_what_has_the_known_form_goes_as_bytes() -> None:
    form = frames.Form()
    form.learn(np.zeros(3, np.float32))
    assert not form.fits(np.zeros(3))
    assert not form.fits(np.zeros(4, np.float32))
    assert not form.fits([0.0, 0.0, 0.0])
    form.learn("an action that is no array")
    assert not form.fits(np.zeros(3, np.float32))


@pytest.mark.parametrize("reward", [0.1, -0.0, float("nan"), 1e300])
@pytest.mark.parametrize("ends", [(False, True), (True, False)])
def test_an_answer_arrives_to_the_bit(reward: float, ends: tuple[bool, bool]) -> None:
    form, obs = frames.Form(), np.array([1.5, np.nan, -0.0], dtype=np.float32)
    form.learn(obs)
    message = frames.answer_message((obs, reward, *ends))
    assert frames.is_bare(message)
    seen, number, *flags = frames.answer_of(message, form)
    assert seen.tobytes() == obs.tobytes()
    assert np.float64(number).tobytes() == np.float64(reward).tobytes()
    assert tuple(flags) == ends
    assert all(isinstance(flag, bool) for flag in flags)


def test_a_pickle_is_told_from_bytes() -> None:
    message = bytes(frames.pickled(("step", {"camera": np.zeros(2)})))
    assert not frames.is_bare(message)
    assert frames.unpickled(message)[0] == "step"
