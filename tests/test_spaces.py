"""Actions are legal: they have the environment's dtype and shape and are within its bounds, for all bounds."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rl_training.environments.making import read_spaces
from rl_training.errors import ConfigError
from rl_training.spaces import SpaceSpec

DTYPES = ["float32", "float64", "float16"]
FINITE = st.floats(-1e4, 1e4, allow_subnormal=False)


@st.composite
def boxes(draw: st.DrawFn) -> gym.spaces.Box:
    """Asymmetric, tiny and huge boxes of every floating type, bounds as that type holds them."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    size = draw(st.integers(1, 4))
    pairs = []
    for _ in range(size):
        ends = sorted(np.array([draw(FINITE), draw(FINITE)]).astype(dtype).tolist())
        if ends[0] == ends[1]:
            ends[1] = float(np.nextafter(dtype.type(ends[0]), dtype.type(np.inf)))
        pairs.append(ends)
    low, high = np.array(pairs, dtype=dtype).T
    return gym.spaces.Box(low, high, dtype=dtype.type)


def spec_of(box: gym.spaces.Box) -> SpaceSpec:
    return SpaceSpec(
        3, tuple(map(float, box.low)), tuple(map(float, box.high)), action_dtype=np.dtype(str(box.dtype)).name
    )


@given(box=boxes(), rows=st.integers(1, 5), seed=st.integers(0, 99), scale=st.floats(0, 1e6))
def test_actions_are_inside_the_box(box: gym.spaces.Box, rows: int, seed: int, scale: float) -> None:
    spec = spec_of(box)
    internal = np.random.default_rng(seed).standard_normal((rows, spec.action_dim)).astype(np.float32) * scale
    actions = spec.to_env(internal)
    assert actions.shape == internal.shape
    assert actions.dtype == box.dtype
    assert all(box.contains(action) for action in actions)
    assert box.contains(spec.to_env(internal[0]))


@given(low=st.floats(-100, 100), width=st.floats(0.1, 100), dtype=st.sampled_from(["float32", "float64"]))
@example(low=0.1, width=0.2, dtype="float32")  # the nearest float32 is above 0.1, and also above 0.3
def test_bounds_the_dtype_cannot_hold_are_kept_from_inside(low: float, width: float, dtype: str) -> None:
    """Bounds given as numbers, by a file or a configuration, need not be float32."""
    high = low + width
    actions = SpaceSpec(1, (low,), (high,), action_dtype=dtype).to_env(np.array([-1.0, 1.0], np.float32)[:, None])
    assert low <= float(actions[0, 0]) < float(actions[1, 0]) <= high


@given(box=boxes())
def test_the_ends_of_the_box_can_be_reached(box: gym.spaces.Box) -> None:
    spec = spec_of(box)
    ones = np.ones(spec.action_dim, np.float32)
    room = 1e-6 * (box.high.astype(float) - box.low) + np.finfo(np.float16).tiny
    assert np.all(np.abs(spec.to_env(-ones).astype(float) - box.low) <= room)
    assert np.all(np.abs(spec.to_env(ones).astype(float) - box.high) <= room)


@given(low=st.floats(-100, 100), width=st.floats(0.1, 100), units=st.lists(st.floats(-1, 1, width=32), min_size=1))
@example(low=-2.0, width=3.5, units=[0.0])
def test_actions_are_converted_there_and_back(low: float, width: float, units: list[float]) -> None:
    spec = SpaceSpec(1, (low,), (low + width,), action_dtype="float64")
    internal = np.array(units, np.float32)[:, None]
    assert np.allclose(spec.from_env(spec.to_env(internal)), internal, atol=1e-5)


@given(n=st.integers(1, 9), start=st.integers(-5, 5))
def test_discrete_actions_respect_their_start(n: int, start: int) -> None:
    space = gym.spaces.Discrete(n, start=start)
    spec = SpaceSpec(2, num_actions=n, start=start, action_dtype="int64")
    actions = spec.to_env(np.arange(n))
    assert actions.tolist() == list(range(start, start + n))
    assert all(space.contains(action) for action in actions)
    assert spec.from_env(actions).tolist() == list(range(n))


@given(ends=st.sampled_from([(0.0, math.inf), (-math.inf, 0.0), (math.nan, 1.0), (1.0, 1.0), (2.0, 1.0)]))
def test_bounds_that_bound_nothing_are_refused(ends: tuple[float, float]) -> None:
    with pytest.raises(ConfigError):
        SpaceSpec(1, (ends[0],), (ends[1],))


@pytest.mark.parametrize(
    ("obs", "shape"), [([1.0, 2.0, 3.0], (1, 3)), ([[1, 2, 3]], (1, 3)), (np.zeros((4, 3)), (4, 3))]
)
def test_one_observation_or_a_batch(obs: object, shape: tuple[int, ...]) -> None:
    batch = SpaceSpec(3, (-1.0,), (1.0,)).observations(obs)  # type: ignore[arg-type]
    assert batch.shape == shape
    assert batch.dtype == np.float32


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ([1.0, 2.0], r"obs must have shape \[3\] or \[B, 3\], got \[2\]"),
        (1.0, "obs must have shape"),
        (np.zeros((2, 2, 3)), "obs must have shape"),
        ([1.0, np.nan, 0.0], "obs must be finite"),
        ([1.0, np.inf, 0.0], "obs must be finite"),
        ("abc", r"obs must be numbers of shape \[3\] or \[B, 3\]: could not convert string to float: 'abc'"),
        ([[1.0, 2.0, 3.0], [1.0]], "obs must be numbers of shape .* inhomogeneous"),
        ({"obs": 1.0}, "obs must be numbers of shape"),
        (np.array([1 + 2j, 0, 0]), r"obs must be numbers of shape \[3\] or \[B, 3\]: they are complex"),
        ([np.array([1 + 2j, 0, 0])], "obs must be numbers of shape .*: they are complex; pass real numbers"),
        ([10**400, 0, 0], "obs must be numbers of shape"),
    ],
)
def test_invalid_observations_are_refused(obs: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        SpaceSpec(3, (-1.0,), (1.0,)).observations(obs)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


class Shaped(gym.Env[object, object]):
    def __init__(self, obs: gym.Space[object], action: gym.Space[object]) -> None:
        self.observation_space, self.action_space = obs, action


FLAT = gym.spaces.Box(-1, 1, (3,))


@pytest.mark.parametrize(
    ("obs", "action", "discrete", "message"),
    [
        (gym.spaces.Box(-1, 1, (3, 3)), FLAT, False, "FlattenObservation"),
        (gym.spaces.Text(4), FLAT, False, "FlattenObservation"),
        (gym.spaces.Box(0, 255, (8, 8, 3), np.uint8), FLAT, False, r"images .* wrappers: \[FlattenObservation\]"),
        (FLAT, gym.spaces.Discrete(4), False, "use dqn"),
        (FLAT, FLAT, True, "needs discrete ones"),
        (FLAT, gym.spaces.Box(-np.inf, np.inf, (2,)), False, "unbounded"),
        (FLAT, gym.spaces.Box(-1, 1, (2, 2)), False, "a flat Box or Discrete"),
        (
            FLAT,
            gym.spaces.Box(-np.eye(2), np.ones((2, 2)), dtype=np.float64),
            False,
            "use an action wrapper of your own",
        ),
        (FLAT, gym.spaces.MultiDiscrete([2, 2]), False, "a flat Box or Discrete"),
        (FLAT, gym.spaces.Box(0, 9, (2,), np.int32), False, "floating-point Box"),
        (gym.spaces.Box(-1, 1, (0,)), FLAT, False, "the observation space is empty"),
        (gym.spaces.Dict({}), FLAT, False, "the observation space is empty"),
    ],
)
def test_spaces_no_network_takes_are_refused(
    obs: gym.Space[object], action: gym.Space[object], discrete: bool, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_spaces(Shaped(obs, action), discrete=discrete)
    assert "\n" not in str(caught.value)


def test_differences_of_spaces_are_reported() -> None:
    one, other = SpaceSpec(3, (-1.0,), (1.0,)), SpaceSpec(4, (-1.0,), (2.0,))
    assert one.difference(one) == ""
    assert one.difference(other) == (
        "the environment has observations of 3 numbers and actions from -1.0 to 1.0, "
        "the policy was trained on observations of 4 numbers and actions from -1.0 to 2.0"
    )


def test_bounds_may_be_rounded() -> None:
    """Bounds of 0.4 are those of an environment whose bounds are float32, and 0.4001 is another one."""
    given, other = SpaceSpec(3, (-0.4,), (0.4,)), SpaceSpec(3, (-0.4,), (0.4001,))
    env = read_spaces(Shaped(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Box(-0.4, 0.4, (1,), np.float32)))
    assert env.high != given.high
    assert env.difference(given) == given.difference(env) == ""
    assert env.difference(other)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (
            SpaceSpec(1, (-1.0,), (1.0,)),
            SpaceSpec(4, (-1.0,), (1.0,)),
            "observations of 1 number, b observations of 4 numbers",
        ),
        (
            SpaceSpec(3, (-1.0,) * 2, (1.0, 2.0)),
            SpaceSpec(3, (-1.0,) * 2, (1.0, 3.0)),
            "actions from -1.0 to [1.0, 2.0], b actions from -1.0 to [1.0, 3.0]",
        ),
        (
            SpaceSpec(3, (-1.0,) * 2, (1.0,) * 2),
            SpaceSpec(3, (-2.0,), (2.0,)),
            "actions of 2 numbers, b actions of 1 number",
        ),
        (SpaceSpec(3, (-1.0,), (1.0,)), SpaceSpec(3, num_actions=1), "actions of 1 number, b 1 discrete action"),
        (SpaceSpec(3, num_actions=2), SpaceSpec(3, num_actions=4), "2 discrete actions, b 4 discrete actions"),
        (
            SpaceSpec(3, num_actions=2),
            SpaceSpec(3, num_actions=2, start=1),
            "2 discrete actions from 0, b 2 discrete actions from 1",
        ),
    ],
)
def test_every_difference_names_its_side(one: SpaceSpec, other: SpaceSpec, words: str) -> None:
    assert one.difference(other, "a", "b") == f"a {words}"
