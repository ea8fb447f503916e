"""Dictionaries, tuples, choices and bits as observations: flattened by Gymnasium, kept with the policy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces.utils import flatten, flatten_space
from typer.testing import CliRunner

from rl_training import DQN, SAC, cli, load
from rl_training.console.observations import parse_observations
from rl_training.environments.making import read_spaces
from rl_training.errors import CheckpointError, ConfigError, EnvironmentFailure
from rl_training.experiment.checkpointing import read_checkpoint
from rl_training.experiment.config import load_config
from rl_training.runs.session import TrainResult
from rl_training.runs.state import spaces_from
from rl_training.spaces import SpaceSpec
from tests.test_given_environments import tiny

ACTIONS = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
SPACES: dict[str, gym.Space[Any]] = {
    "dict": gym.spaces.Dict(
        {
            "zoom": gym.spaces.Box(-1.0, 1.0, (2, 3), np.float64),
            "arm": gym.spaces.Discrete(3, start=4),
            "inner": gym.spaces.Dict({"b": gym.spaces.MultiBinary(2), "a": gym.spaces.Box(0, 9, (), np.int32)}),
        }
    ),
    "unsorted": gym.spaces.Dict([("z", gym.spaces.Box(-1, 1, (1,))), ("a", gym.spaces.Discrete(2))]),
    "tuple": gym.spaces.Tuple([gym.spaces.Box(-1.0, 1.0, (2,)), gym.spaces.Discrete(2)]),
    "discrete": gym.spaces.Discrete(5, start=-2),
    "bits": gym.spaces.MultiBinary(4),
    "grid of bits": gym.spaces.MultiBinary([2, 3]),
    "choices": gym.spaces.MultiDiscrete([2, 3], start=[1, 0]),
}


class Sampled(gym.Env[Any, Any]):
    """Observations are samples of its space; 5 steps."""

    action_space: gym.Space[Any] = ACTIONS

    def __init__(self, space: str = "dict") -> None:
        self.observation_space = SPACES[space]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.observation_space.sample(), 1.0, self.t == 5, False, {}


class Shaped(gym.Env[Any, Any]):
    def __init__(self, obs: gym.Space[Any]) -> None:
        self.observation_space, self.action_space = obs, ACTIONS


@pytest.mark.parametrize("name", SPACES)
def test_they_become_gymnasium_s_flat_vectors(name: str) -> None:
    space = SPACES[name]
    spaces = read_spaces(Shaped(space))
    assert spaces.obs_dim == flatten_space(space).shape[0]
    assert SpaceSpec(**json.loads(json.dumps(spaces.record()), object_hook=_tuples)) == spaces
    space.seed(0)
    for obs in [space.sample() for _ in range(5)]:
        flat = np.asarray(flatten(space, obs), np.float32)
        assert np.array_equal(spaces.observations(obs), flat[None])
        assert np.array_equal(spaces.observations(flat), flat[None])
        assert spaces.is_single(obs)
        assert spaces.is_single(flat)
        assert not spaces.is_single(flat[None])
        if name in ("dict", "unsorted", "tuple"):
            assert np.array_equal(spaces.observations([obs, obs]), np.stack([flat, flat]))
            assert not spaces.is_single([obs, obs])


@pytest.mark.parametrize("name", ["dict", "unsorted"])
def test_a_dictionary_of_batches_is_a_batch(name: str) -> None:
    """As vector environments give them, in Python and as JSON."""
    spaces, space = read_spaces(Shaped(SPACES[name])), SPACES[name]
    space.seed(0)
    several = [space.sample() for _ in range(3)]
    stacked = _stacked(several)
    flat = np.stack([np.asarray(flatten(space, one), np.float32) for one in several])
    assert np.array_equal(spaces.observations(stacked), flat)
    assert not spaces.is_single(stacked)
    typed = parse_observations(json.dumps(stacked, default=lambda value: value.tolist()), spaces)
    assert np.array_equal(spaces.observations(typed), flat)
    assert not spaces.is_single(typed)
    alone = _stacked(several[:1])
    assert spaces.observations(alone).shape == (1, spaces.obs_dim)
    assert not spaces.is_single(alone)


def test_complex_numbers_are_refused() -> None:
    spaces = read_spaces(Shaped(SPACES["unsorted"]))
    good = {"z": np.array([0.5]), "a": 1}
    assert spaces.observations(good).shape == (1, spaces.obs_dim)
    message = "obs does not fit the policy: an observation of z has complex numbers; pass real ones"
    with pytest.raises(ConfigError, match=message):
        spaces.observations(good | {"z": np.array([0.5 + 1j])})


@pytest.mark.parametrize("count", [1, 4, 5])
def test_whole_numbers_of_a_discrete_space_are_a_batch(count: int) -> None:
    """Also if there are as many as a flat vector has numbers."""
    space = gym.spaces.Discrete(5, start=-2)
    spaces, states = read_spaces(Shaped(space)), np.arange(-2, 3)[:count]
    flat = np.stack([np.asarray(flatten(space, one), np.float32) for one in states])
    for obs in (states, states.tolist(), parse_observations(json.dumps(states.tolist()), spaces)):
        assert np.array_equal(spaces.observations(obs), flat)
        assert not spaces.is_single(obs)
    assert spaces.is_single(flat[0])
    with pytest.raises(ConfigError, match="which its Discrete space does not contain"):
        spaces.observations(np.array([0, 9]))


@pytest.mark.parametrize("name", ["choices", "grid of bits", "tuple"])
def test_batches_of_other_spaces_as_vector_environments_return_them(name: str) -> None:
    spaces, space = read_spaces(Shaped(SPACES[name])), SPACES[name]
    space.seed(0)
    for count in (1, 2, 3, 5):
        several = [space.sample() for _ in range(count)]
        flat = np.stack([np.asarray(flatten(space, one), np.float32) for one in several])
        batch = tuple(map(np.stack, zip(*several))) if name == "tuple" else np.stack(several)
        assert np.array_equal(spaces.observations(batch), flat)
        assert not spaces.is_single(batch)
    with pytest.raises(ConfigError, match="obs"):
        spaces.observations([[1, 0], [1]])


def test_a_dictionary_of_unequal_or_empty_batches_is_refused() -> None:
    spaces = read_spaces(Shaped(SPACES["unsorted"]))
    for obs in ({"z": [[0.5], [0.1]], "a": [1]}, {"z": np.zeros((0, 1)), "a": np.zeros(0, int)}):
        with pytest.raises(ConfigError, match="an observation of z has shape"):
            spaces.observations(obs)
    with pytest.raises(ConfigError, match=r"an observation of a is .*7.*, which its Discrete space"):
        spaces.observations({"z": [[0.5], [0.1]], "a": [1, 7]})


def _stacked(several: list[Any]) -> Any:
    if isinstance(several[0], dict):
        return {key: _stacked([one[key] for one in several]) for key in several[0]}
    return np.stack(several)


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if key in ("low", "high") else value for key, value in values.items()}


@pytest.mark.parametrize("name", SPACES)
def test_a_run_predicts_for_the_environment_s_own_observations(name: str, tmp_path: Path) -> None:
    model = SAC(Sampled, **tiny(tmp_path, env_kwargs={"space": name}))
    result = model.learn(30, progress_bar=False)
    assert result.metrics["eval_length_mean"] == 5
    obs = SPACES[name].sample()
    loaded = SAC.load(result.run_dir)
    action = loaded.predict(obs)
    assert action.shape == (1,)
    assert np.array_equal(action, loaded.predict(np.asarray(flatten(SPACES[name], obs), np.float32)))
    assert "observation" in read_checkpoint(result.checkpoint_path).records["spaces"]


def test_flat_observations_are_recorded_as_ever(tmp_path: Path) -> None:
    result = SAC("Pendulum-v1", **tiny(tmp_path)).learn(30, progress_bar=False)
    record = read_checkpoint(result.checkpoint_path).records["spaces"]
    assert record.keys() == {"obs_dim", "low", "high", "num_actions", "start", "action_dtype"}


def test_discrete_worlds_can_be_learned(tmp_path: Path) -> None:
    result = DQN("FrozenLake-v1", **tiny(tmp_path, "dqn")).learn(40, progress_bar=False)
    assert DQN.load(result.run_dir).predict(3) in range(4)


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (
            {"zoom": np.zeros((2, 3)), "arm": 4},
            "a mapping with the keys zoom, arm, its space has the keys arm, inner, zoom",
        ),
        (
            {"zoom": np.zeros(6), "arm": 4, "inner": {"a": 1, "b": [0, 1]}},
            r"of zoom has shape \[6\], its space \[2, 3\]",
        ),
        (
            {"zoom": np.zeros((2, 3)), "arm": 3, "inner": {"a": 1, "b": [0, 1]}},
            "of arm is 3, which its Discrete space",
        ),
        (
            {"zoom": np.zeros((2, 3)), "arm": 4, "inner": {"a": 1, "b": [0, 2]}},
            r"of inner.b is \[0, 2\], which its Multi",
        ),
        ([1.0, 2.0], r"obs must have shape \[12\]"),
    ],
)
def test_what_does_not_fit_is_one_line(obs: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_spaces(Shaped(SPACES["dict"])).observations(obs)
    assert "\n" not in str(caught.value)


class Forgetful(Sampled):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, *rest = super().step(action)
        del obs["arm"]
        return (obs, *rest)  # type: ignore[return-value]


def test_an_environment_that_answers_in_another_form_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        EnvironmentFailure, match=r"environment 0 failed \(seed \d+, step 1\): an observation is a map"
    ):
        SAC(Forgetful, **tiny(tmp_path)).learn(30, progress_bar=False)


@pytest.mark.parametrize("name", SPACES)
def test_the_command_line_takes_them_as_json(name: str, tmp_path: Path) -> None:
    """One, and several where they are dictionaries or tuples; a file holds the same."""
    spaces = read_spaces(Sampled(name))
    space = SPACES[name]
    space.seed(1)
    several = [space.sample() for _ in range(3)]
    typed = [json.dumps(one, default=lambda value: value.tolist()) for one in several]
    (tmp_path / "obs.json").write_text(typed[0])
    expected = np.asarray(flatten(space, several[0]), np.float32)
    for text in (typed[0], f"@{tmp_path}/obs.json", ",".join(map(str, expected))):
        assert spaces.observations(parse_observations(text, spaces)).tolist() == [expected.tolist()]
    assert spaces.is_single(parse_observations(typed[0], spaces))
    if name in ("dict", "unsorted", "tuple"):
        batch = parse_observations(f"[{', '.join(typed)}]", spaces)
        assert not spaces.is_single(batch)
        rows = [np.asarray(flatten(space, one), np.float32).tolist() for one in several]
        assert spaces.observations(batch).tolist() == rows


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("dict", '{"zoom": [[1, 2, 3]]}', "a mapping with the keys zoom, its space has the keys arm, inner, zoom"),
        ("unsorted", '{"z": [0.5, 1.0], "a": 1}', r"an observation of z has shape \[2\], its space \[1\]"),
        ("unsorted", '{"z": [0.5], "a": 7}', "which its Discrete space does not contain"),
        ("unsorted", '{"z": ["x"], "a": 1}', "does not fit the policy"),
        ("unsorted", '[{"z": [0.5], "a": 1}, {"z": [0.5]}]', "its space has the keys z, a"),
        ("unsorted", '{"z": [[0.5], [1, 2]], "a": 1}', "does not fit the policy"),
        ("tuple", "[[0.5, 0.5], 2]", r"an observation of \[1\] is 2, which its Discrete space does not contain"),
        ("tuple", "[[0.5, 0.5]]", "obs must have shape"),
        ("discrete", '{"a": 1}', "does not fit the policy: an observation is"),
        ("choices", "[3, 0]", "which its MultiDiscrete space does not contain"),
        ("unsorted", '{"z": [0.5], "a": 1', "write .* JSON"),
    ],
)
def test_json_that_does_not_fit_is_one_line(name: str, text: str, message: str) -> None:
    spaces = read_spaces(Sampled(name))
    with pytest.raises(ConfigError, match=message) as caught:
        spaces.observations(parse_observations(text, spaces))
    assert "\n" not in str(caught.value)


def test_a_mapping_for_a_policy_of_vectors_is_one_line() -> None:
    spaces = SpaceSpec(3, (-1.0,), (1.0,))
    for text in ('{"a": 1}', '[{"a": 1}]'):
        with pytest.raises(ConfigError, match="the policy's observations are 3 numbers, not a mapping"):
            parse_observations(text, spaces)
    assert parse_observations("1,2,-3", spaces).tolist() == [1.0, 2.0, -3.0]
    assert parse_observations("-0.5", SpaceSpec(1, (-1.0,), (1.0,))).tolist() == [-0.5]


def test_predict_on_the_command_line(tmp_path: Path) -> None:
    result = SAC(Sampled, **tiny(tmp_path, eval_episodes=0, env_kwargs={"space": "unsorted"})).learn(
        20, progress_bar=False
    )
    obs = {"z": [0.5], "a": 1}
    answer = CliRunner().invoke(cli.main, ["predict", str(result.run_dir), "--obs", json.dumps(obs)])
    expected = load(result.run_dir).predict({"z": np.array([0.5], np.float32), "a": 1})
    assert json.loads(answer.stdout) == pytest.approx(expected.tolist())


def test_the_order_of_keys_is_part_of_the_policy() -> None:
    one, other = (
        read_spaces(Shaped(gym.spaces.Dict([(k, gym.spaces.Discrete(2)) for k in keys]))) for keys in ("ab", "ba")
    )
    assert one.difference(one) == ""
    first, second = (f"observations of 4 numbers as {spaces.observation}" for spaces in (one, other))
    assert one.difference(other, "it has", "the run has") == f"it has {first}, the run has {second}"


IMAGE = gym.spaces.Box(0, 255, (4, 4, 3), np.uint8)


@pytest.mark.parametrize(
    "space",
    [
        IMAGE,
        gym.spaces.Dict({"camera": IMAGE, "arm": ACTIONS}),
        gym.spaces.Dict({"left": IMAGE, "arm": ACTIONS, "right": IMAGE}),
        gym.spaces.Dict({"left": IMAGE, "right": IMAGE}),
        gym.spaces.Dict({"camera": IMAGE, "1": ACTIONS, "a: b, [c]": ACTIONS, "null": ACTIONS}),
        gym.spaces.Dict({"head": gym.spaces.Dict({"camera": IMAGE, "angle": ACTIONS}), "arm": ACTIONS}),
        gym.spaces.Tuple((IMAGE, ACTIONS)),
    ],
    ids=["image", "dict", "two", "two-alone", "odd-names", "nested", "tuple"],
)
def test_images_are_refused_with_a_remedy_that_works(space: gym.Space[Any], tmp_path: Path) -> None:
    class Seeing(Sampled):
        def __init__(self) -> None:
            self.observation_space = space

    with pytest.raises(ConfigError, match="images among its observations") as caught:
        SAC(Seeing, **tiny(tmp_path)).learn(30, progress_bar=False)
    remedy = "wrappers: " + str(caught.value).partition("wrappers: ")[2]
    (tmp_path / "remedy.yaml").write_text(f"algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: 1\n{remedy}\n")
    wrappers = load_config(tmp_path / "remedy.yaml").config.wrappers
    result = SAC(Seeing, **tiny(tmp_path, eval_episodes=0), wrappers=wrappers).learn(20, progress_bar=False)
    assert result.metrics["global_step"] == 20


@pytest.mark.parametrize(
    "space", [gym.spaces.Sequence(ACTIONS), gym.spaces.Dict({"seen": gym.spaces.Sequence(ACTIONS)})]
)
def test_what_no_wrapper_of_gymnasium_s_flattens_is_not_sent_to_one(space: gym.Space[Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"their length varies, .* a wrapper of your own: wrappers: \[module:Class\]$"
    ):
        read_spaces(Shaped(space))


@pytest.mark.parametrize(
    "observation",
    [
        3,
        [],
        {},
        {"kind": "Boxes"},
        {"kind": "Box"},
        {"kind": "Discrete", "n": 7, "start": 0},
        {"kind": "Dict", "spaces": 3},
    ],
)
def test_a_description_that_is_none_is_refused(observation: Any, finished: Callable[[str], TrainResult]) -> None:
    checkpoint = read_checkpoint(finished("sac").checkpoint_path)
    checkpoint.records["spaces"]["observation"] = observation
    with pytest.raises(CheckpointError, match=r"spaces\.json is not understood"):
        spaces_from(checkpoint)
