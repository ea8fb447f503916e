"""Messages to an environment process arrive unchanged, whichever transport is used."""

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
    found = form.read(message)
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
def test_an_answer_arrives_bit_for_bit(reward: float, ends: tuple[bool, bool]) -> None:
    obs = np.array([1.5, np.nan, -0.0], dtype=np.float32)
    message = frames.answer_message(7, "ok", (obs, reward, *ends))
    status, (seen, number, *flags) = frames.answer_of(message, 7, 3)
    assert status == "ok"
    assert seen.tobytes() == obs.tobytes()
    assert np.float64(number).tobytes() == np.float64(reward).tobytes()
    assert tuple(flags) == ends
    assert all(isinstance(flag, bool) for flag in flags)
    status, first = frames.answer_of(frames.answer_message(7, "ok", obs), 7, None)
    assert (status, first.tobytes()) == ("ok", obs.tobytes())


def test_an_error_arrives_with_its_traceback() -> None:
    value = ("RuntimeError: \ud800 …", "Traceback")
    assert frames.answer_of(frames.answer_message(1 << 32, "error", value), 1 << 32, 3) == ("error", value)


def test_pickles_and_bytes_are_distinguished() -> None:
    message = bytes(frames.pickled(("step", {"camera": np.zeros(2)})))
    assert not frames.is_bare(message)


WRONG = {
    "nothing": b"",
    "a pickle": bytes(frames.pickled(("ok", np.zeros(3, np.float32)))),
    "an earlier answer": frames.answer_message(6, "ok", np.zeros(3, np.float32)),
    "a longer observation": frames.answer_message(7, "ok", np.zeros(4, np.float32)),
    "part of a number": frames.answer_message(7, "ok", np.zeros(3, np.float32))[:-1],
    "an error that is none": frames.answer_message(7, "error", ("a", "b"))[:-2],
    "an error of one word": frames.answer_message(7, "error", "a"),
}


@pytest.mark.parametrize("message", WRONG.values(), ids=WRONG)
def test_an_unexpected_answer_is_refused(message: bytes) -> None:
    with pytest.raises(frames.WrongMessage, match=r"^its process sent "):
        frames.answer_of(message, 7, 3)
