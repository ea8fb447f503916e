"""Wrappers in YAML and in Python: applied in order in training and evaluation, and kept by checkpoints."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training import SAC
from rl_training.environments.making import make_env, read_spaces, spaces_of, time_limit
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import read_checkpoint
from rl_training.experiment.config import TrainConfig, load_config
from rl_training.runtime.workflows import evaluate_checkpoint
from tests.test_given_environments import Point, tiny

NARROW = {"RescaleAction": {"min_action": -0.5, "max_action": 0.25}}


def config(*wrappers: Any, **fields: Any) -> TrainConfig:
    defaults: dict[str, Any] = {"algo": "sac", "env_id": "Pendulum-v1", "total_timesteps": 1}
    return TrainConfig(**defaults | fields, wrappers=list(wrappers))


class Halved(gym.RewardWrapper[Any, Any]):
    """Half the reward."""

    def reward(self, reward: Any) -> float:
        return 0.5 * float(reward)


class Boundless(Point):
    action_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)


def test_the_first_is_innermost() -> None:
    env = make_env(config({"TimeLimit": {"max_episode_steps": 9}}, NARROW))
    assert isinstance(env, gym.wrappers.RescaleAction)
    assert isinstance(env.env, gym.wrappers.TimeLimit)
    spaces = spaces_of(config(NARROW))
    assert (spaces.low, spaces.high) == ((-0.5,), (0.25,))


def test_bounds_may_be_one_per_action(tmp_path: Path) -> None:
    bounds = {"min_action": [-1.0, -2.0], "max_action": [1.0, 3.0]}
    model = SAC(Boundless, **tiny(tmp_path), wrappers=[{"RescaleAction": bounds}])
    assert model.learn(30, progress_bar=False).metrics["global_step"] == 30
    assert np.all(np.abs(model.predict(np.ones((9, 2)) * 100)) <= [1.0, 3.0])


def test_unbounded_actions_and_the_remedy_that_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unbounded actions") as caught:
        SAC(Boundless, **tiny(tmp_path)).learn(30, progress_bar=False)
    remedy = str(caught.value).partition("finite bounds: ")[2]
    (tmp_path / "remedy.yaml").write_text(f"algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: 1\n{remedy}\n")
    wrappers = load_config(tmp_path / "remedy.yaml").config.wrappers
    model = SAC(Boundless, **tiny(tmp_path), wrappers=wrappers)
    model.learn(30, progress_bar=False)
    spaces = spaces_of(model.config, given=model._given)
    assert (spaces.low, spaces.high) == ((-1.0, -1.0), (1.0, 1.0))
    env = make_env(model.config, model._given)
    env.reset(seed=0)
    before = env.unwrapped.state.copy()  # type: ignore[attr-defined]
    env.step(np.array([0.5, 0.0], np.float32))
    assert env.unwrapped.state[0] == pytest.approx(before[0] + 0.05)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ([5.0, -np.inf], [np.inf, np.inf]),
        ([-np.inf, -1.0], [-3.0, np.inf]),
        ([-np.inf, -2.0], [np.inf, 2.0]),
        ([0.0, 0.0], [np.inf, 1e6]),
    ],
)
def test_the_remedy_fits_bounds_on_one_side(low: list[float], high: list[float], tmp_path: Path) -> None:
    class Lopsided(Point):
        action_space = gym.spaces.Box(np.array(low, np.float32), np.array(high, np.float32))

    with pytest.raises(ConfigError, match="unbounded actions") as caught:
        read_spaces(Lopsided())
    remedy = "wrappers: " + str(caught.value).partition("wrappers: ")[2]
    (tmp_path / "remedy.yaml").write_text(f"algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: 1\n{remedy}\n")
    wrappers = load_config(tmp_path / "remedy.yaml").config.wrappers
    model = SAC(Lopsided, **tiny(tmp_path), wrappers=wrappers)
    assert model.learn(30, progress_bar=False).metrics["global_step"] == 30


def test_a_partial_of_gymnasium_s_is_kept_by_name_where_it_can_be(tmp_path: Path) -> None:
    """`RescaleAction` then gives bounds to what has none, which Gymnasium's own refuses."""
    narrow = functools.partial(gym.wrappers.RescaleAction, min_action=-0.5, max_action=0.25)
    model = SAC(Boundless, **tiny(tmp_path), wrappers=[narrow])
    assert model.config.wrappers == (NARROW,)
    assert model.learn(30, progress_bar=False).metrics["global_step"] == 30
    arrays = functools.partial(gym.wrappers.RescaleAction, min_action=np.zeros(1), max_action=np.ones(1))
    ours = functools.partial(Halved)
    assert [":" in str(entry) for entry in SAC("Pendulum-v1", wrappers=[arrays, ours]).config.wrappers] == [
        True
    ] * 2


def test_a_range_of_repeats_is_the_same_as_a_list_and_in_a_partial() -> None:
    arguments: dict[str, Any] = {"repeat_action_probability": 0.5, "repeat_action_duration": (2, 4)}
    model = SAC("Pendulum-v1", wrappers=[functools.partial(gym.wrappers.StickyAction, **arguments)])
    listed = {"StickyAction": {**arguments, "repeat_action_duration": [2, 4]}}
    assert model.config.wrappers == (listed,)
    sticky: Any = make_env(model.config)
    assert sticky.repeat_action_duration_range == (2, 4)


@pytest.mark.parametrize("wrapper", ["ClipAction", gym.wrappers.ClipAction])
def test_clipping_keeps_the_bounds_there_are(wrapper: Any, tmp_path: Path) -> None:
    """Gymnasium's declares them infinite, which leaves nothing to scale actions to."""
    model = SAC("Pendulum-v1", **tiny(tmp_path), wrappers=[wrapper])
    assert model.learn(30, progress_bar=False).metrics["global_step"] == 30
    spaces = spaces_of(model.config)
    assert (spaces.low, spaces.high) == ((-2.0,), (2.0,))
    env = make_env(config("ClipAction"))
    env.reset(seed=0)
    assert np.isfinite(env.step(np.array([9.0], np.float32))[1])


def test_the_error_for_clipped_actions_names_the_wrapper_that_removed_the_bounds() -> None:
    clipped = gym.wrappers.TimeLimit(gym.wrappers.ClipAction(gym.make("Pendulum-v1")), 9)
    with pytest.raises(ConfigError, match=r"^env_id: Pendulum-v1 .* because ClipAction takes .*; leave it out"):
        read_spaces(clipped)


def test_they_hold_in_training_and_evaluation_and_come_back_with_the_checkpoint(tmp_path: Path) -> None:
    limit = {"TimeLimit": {"max_episode_steps": 7}}
    plain = SAC("Pendulum-v1", **tiny(tmp_path), wrappers=["ClipAction", limit, NARROW])
    result = plain.learn(40, progress_bar=False)
    assert result.metrics["eval_length_mean"] == 7
    assert read_checkpoint(result.checkpoint_path).records["config"]["wrappers"] == ["ClipAction", limit, NARROW]
    assert evaluate_checkpoint(result.run_dir)["eval_length_mean"] == 7
    assert SAC.load(result.run_dir).resume(50, progress_bar=False).metrics["global_step"] == 50
    assert time_limit(plain.config) == 7


def limited(env: Any, options: dict[str, Any]) -> Any:
    return gym.wrappers.TimeLimit(env, options.pop("limit"))


def test_each_environment_has_its_own_arguments() -> None:
    settings = config({f"{__name__}:limited": {"options": {"limit": 7}}}, allow_import=True)
    assert [make_env(settings)._max_episode_steps for _ in range(2)] == [7, 7]  # type: ignore[attr-defined]


def test_classes_and_callables_of_one_s_own(tmp_path: Path) -> None:
    whole = SAC(Point, **tiny(tmp_path)).learn(30, progress_bar=False)
    model = SAC(Point, **tiny(tmp_path), wrappers=[gym.wrappers.OrderEnforcing, Halved, lambda env: Halved(env)])
    result = model.learn(30, progress_bar=False)
    assert result.metrics["eval_return_mean"] != whole.metrics["eval_return_mean"]
    ours = f"{__name__}:Halved"
    assert model.config.wrappers[:2] == ("OrderEnforcing", ours)
    assert model.evaluate()["eval_return_mean"] == result.metrics["eval_return_mean"]
    with pytest.raises(ConfigError, match=rf"^wrappers: '{ours}' would import the module '{__name__}'; allow"):
        SAC.load(result.run_dir, env=Point).evaluate()
    again = SAC.load(result.run_dir, env=Point, wrappers=["OrderEnforcing", Halved, Halved])
    assert again.evaluate()["eval_return_mean"] == result.metrics["eval_return_mean"]


def test_an_importable_one_with_permission() -> None:
    ours = f"{__name__}:Halved"
    with pytest.raises(ConfigError, match=r"would import the module .* --allow-import$"):
        make_env(config(ours))
    assert isinstance(make_env(config(ours, allow_import=True)), Halved)


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        ("RescaleActions", r"^wrappers: unknown wrapper 'RescaleActions'; did you mean 'RescaleAction'\?"),
        ("NormalizeObservation", r"^wrappers: NormalizeObservation .* holds; set normalize_observations: true$"),
        ("NormalizeReward", r"^wrappers: NormalizeReward cannot be used here: it keeps statistics"),
        ("RecordVideo", r"^wrappers: RecordVideo cannot be used here: it writes files"),
        ("vector", r"^wrappers: unknown wrapper 'vector'"),
        (
            {"TimeLimit": {"steps": 3}},
            r"^wrappers: TimeLimit with {'steps': 3} does not fit Pendulum-v1: TypeError",
        ),
        ("nowhere.at.all:X", r"^wrappers: the module 'nowhere' cannot be imported; is it importable from here \("),
        ("gymnasium:Nothing", r"^wrappers: the module gymnasium has no 'Nothing'$"),
        ("builtins:repr", r"^wrappers: builtins:repr made a str, not a gymnasium.Env$"),
    ],
)
def test_invalid_wrappers_are_one_line(wrapper: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make_env(config(wrapper, allow_import=True))
    assert "\n" not in str(caught.value)


class Centred(gym.wrappers.NormalizeObservation[Any, Any, Any]):
    """A class of the user's own."""


@pytest.mark.parametrize("kind", [Centred, gym.wrappers.NormalizeReward])
def test_running_statistics_are_refused_in_every_form(kind: Any, tmp_path: Path) -> None:
    """Evaluation would have statistics of its own, and `predict` none; returns would be those of scaled rewards."""

    def limited() -> Any:
        return gym.wrappers.TimeLimit(kind(Point()), 9)

    refused = r"^wrappers: Normalize(Reward|Observation) cannot be used here: it keeps statistics"
    registered = kind(gym.make("Pendulum-v1"))
    for env, wrappers in ((Point, [kind, Halved]), (limited, []), (limited(), []), (registered, [])):
        with pytest.raises(ConfigError, match=refused):
            SAC(env, **tiny(tmp_path), wrappers=wrappers).learn(30, progress_bar=False)
    with pytest.raises(ConfigError, match=refused):
        make_env(config(f"{kind.__module__}:{kind.__qualname__}", allow_import=True))
    fixed = kind(Point())
    fixed.update_running_mean = False
    assert SAC(fixed, **tiny(tmp_path)).learn(30, progress_bar=False).metrics["global_step"] == 30


@pytest.mark.parametrize("wrappers", ["ClipAction", [3], [{"A": {}, "B": {}}], [{"A": 3}], [""], [None]])
def test_their_form_is_checked_with_the_configuration(wrappers: Any) -> None:
    with pytest.raises(ConfigError, match="wrappers"):
        TrainConfig(algo="sac", env_id="Pendulum-v1", total_timesteps=1, wrappers=wrappers)


def test_in_a_process_they_must_be_importable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^environments: .*<lambda> cannot be made in another process"):
        SAC(Point, **tiny(tmp_path, env_processes=True), wrappers=[lambda env: env]).learn(30, progress_bar=False)
