"""The numpy runner of exported policies: observations with parts, and files that are damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.export.policy_runner import Policy
from rl_training.export.program import npz_bytes, program_of
from rl_training.observation_spaces import Flattening, describe, layout
from rl_training.spaces import SpaceSpec
from tests.exports import SKEWED, untrained

BOX = gym.spaces.Box(-9.0, 9.0, (2,), np.float32)
SPACES = {
    # The keys are not in alphabetical order, which is how `Dict(a=…)` keeps them.
    "dict": gym.spaces.Dict(
        [
            ("wind", BOX),
            ("arm", gym.spaces.Discrete(3, start=4)),
            ("deep", gym.spaces.Dict(z=gym.spaces.MultiBinary(2), a=gym.spaces.MultiDiscrete([2, 3]))),
            ("a.b", gym.spaces.Box(-1.0, 1.0, (2, 2), np.float32)),
        ]
    ),
    "tuple": gym.spaces.Tuple([gym.spaces.Discrete(2), BOX]),
    "discrete": gym.spaces.Discrete(5, start=-1),
    "multidiscrete": gym.spaces.MultiDiscrete([3, 2], start=[1, 7]),
    "bits": gym.spaces.MultiBinary([2, 3]),
}


def exported(space: gym.Space[Any], folder: Path) -> Policy:
    """A policy for observations of `space`, as it is written to a file."""
    description = describe(space)
    size = Flattening(description).size
    loaded = untrained("sac", SpaceSpec(size, SKEWED.low, SKEWED.high, observation=description))
    observation = {"size": size, "parts": layout(description)}
    path = folder / "policy.npz"
    path.write_bytes(
        npz_bytes(program_of(loaded, sampled=False), {"observation": observation, "stochastic": False})
    )
    return Policy(path)


def test_whole_numbers_of_a_discrete_space_are_a_batch(tmp_path: Path) -> None:
    policy, states = (
        exported(SPACES["discrete"], tmp_path),
        np.arange(-1, 4),
    )  # as many as a flat vector has numbers
    assert np.array_equal(policy(states), np.stack([policy(int(state)) for state in states]))
    assert np.array_equal(policy(states.tolist()), policy(states))


@pytest.mark.parametrize("name", SPACES)
def test_observations_with_parts_are_flattened_as_gymnasium_does(name: str, tmp_path: Path) -> None:
    space, flatten = SPACES[name], Flattening(describe(SPACES[name]))
    policy = exported(space, tmp_path)
    assert [part["part"] for part in policy.parts] == {
        "dict": ["wind", "arm", "deep.z", "deep.a", "a.b"],
        "tuple": ["0", "1"],
    }.get(name, [""])
    space.seed(1)
    drawn = [space.sample() for _ in range(6)]
    wanted = policy(np.stack([flatten(one) for one in drawn]))
    found = np.stack([policy(one) for one in drawn])
    assert found.shape == wanted.shape == (6, 2)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    if name in ("dict", "tuple"):
        np.testing.assert_allclose(policy(drawn), wanted, atol=1e-6)
    else:
        np.testing.assert_allclose(policy(np.stack(drawn)), wanted, atol=1e-6)


def test_a_dictionary_of_batches_in_any_order(tmp_path: Path) -> None:
    space = gym.spaces.Dict([("wind", BOX), ("arm", gym.spaces.Discrete(3))])
    policy, flatten = exported(space, tmp_path), Flattening(describe(space))
    drawn = [space.sample() for _ in range(4)]
    batch = {key: np.stack([one[key] for one in drawn]) for key in ("arm", "wind")}
    np.testing.assert_allclose(policy(batch), policy(np.stack([flatten(one) for one in drawn])), atol=1e-6)


@pytest.mark.parametrize("name", ["discrete", "multidiscrete", "bits"])
def test_an_empty_batch_has_no_actions(name: str, tmp_path: Path) -> None:
    space = SPACES[name]
    assert space.shape is not None
    empty = np.zeros((0, *space.shape), np.int64)
    assert exported(space, tmp_path)(empty).shape == (0, 2)
    spaces = SpaceSpec(Flattening(describe(space)).size, SKEWED.low, SKEWED.high, observation=describe(space))
    assert spaces.observations(empty).shape == (0, spaces.obs_dim)
    assert not spaces.is_single(empty)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"wind": [0.0, 0.0]}, r"must be a dictionary of wind, arm, got a dictionary of wind$"),
        ({"wind": [0.0, 0.0], "arm": 1, "more": 2}, r"got a dictionary of arm, more, wind$"),
        ({"wind": [0.0], "arm": 1}, r"must have the shapes wind \[2\], arm \[\], or batches of them"),
        ({"wind": [[0.0, 0.0]] * 2, "arm": [1]}, r"must have the shapes"),
        ({"wind": [0.0, 0.0], "arm": 3}, r"arm must be whole numbers of its Discrete space"),
        ({"wind": [0.0, 0.0], "arm": 0.5}, r"arm must be whole numbers of its Discrete space"),
        ({"wind": [0.0, np.nan], "arm": 1}, r"must be finite numbers \[5\]"),
        ({"wind": [0.0, 1j], "arm": 1}, r"wind must be real numbers"),
        (np.array([0.0, 1j, 0.0, 0.0, 1.0]), r"must be numbers, got array"),
        ([0.0, 0.0, 1.0], r"must be finite numbers \[5\] or \[B, 5\], got \[3\]"),
        ([{"wind": [0.0, 0.0], "arm": 1}, {"wind": [0.0, 0.0]}], r"must be a dictionary of wind, arm"),
    ],
)
def test_observations_that_do_not_fit_are_refused(wrong: Any, message: str, tmp_path: Path) -> None:
    policy = exported(gym.spaces.Dict([("wind", BOX), ("arm", gym.spaces.Discrete(3))]), tmp_path)
    with pytest.raises(ValueError, match=f"^observation.*{message}"):
        policy(wrong)


def test_a_policy_for_vectors_has_no_parts(tmp_path: Path) -> None:
    info = {"observation": {"size": 3, "parts": None}, "stochastic": False}
    (tmp_path / "policy.npz").write_bytes(npz_bytes(program_of(untrained("sac"), sampled=False), info))
    policy = Policy(tmp_path / "policy.npz")
    assert policy.parts == []
    np.testing.assert_array_equal(policy((0.0, 1.0, 2.0)), policy([0.0, 1.0, 2.0]))
    with pytest.raises(ValueError, match=r"^observation must be numbers \[3\], got a dictionary of x$"):
        policy({"x": [0.0, 1.0, 2.0]})


GOOD = {"info": json.dumps({"observation": {"size": 1}, "stochastic": False}), "steps": "[]"}
DAMAGE: dict[str, dict[str, Any]] = {
    "deep": {"info": "[" * 100_000},
    "deep steps": {"steps": "[" * 100_000},
    "nan": {"info": '{"observation": {"size": NaN}, "stochastic": false}'},
    "empty": {"info": ""},
    "empty steps": {"steps": ""},
    "a list": {"info": "[]"},
    "no size": {"info": "{}"},
    "size": {"info": '{"observation": {"size": "3"}, "stochastic": false}'},
    "parts": {"info": '{"observation": {"size": 3, "parts": [{"count": 2}]}, "stochastic": false}'},
    "operation": {"steps": '[{"operation": "eval", "arrays": []}]'},
    "array": {"steps": '[{"operation": "affine", "arrays": ["weight"]}]'},
    "number": {"steps": "3"},
    "no info": {"info": None},
    "no steps": {"steps": None},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_policy_is_one_line(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.npz"
    texts = {name: text for name, text in (GOOD | DAMAGE[damage]).items() if text is not None}
    np.savez(path, **{name: np.asarray(text) for name, text in texts.items()})
    refuse(path)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut"])
def test_a_file_that_is_no_policy_is_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "policy.npz"
    path.write_bytes(content)
    refuse(path)
    np.save(tmp_path / "array.npy", np.zeros(3))
    refuse(tmp_path / "array.npy")
    with pytest.raises(FileNotFoundError):
        Policy(tmp_path / "missing.npz")


def refuse(path: Path) -> None:
    with pytest.raises(ValueError, match="not a policy that rl-training exported, or damaged") as found:
        Policy(path)
    assert type(found.value) is ValueError
    assert str(found.value).startswith(f"{path}: ")
    assert "\n" not in str(found.value)
