"""Environments as users have them: an id, an object, its class, or a callable that constructs it."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from typer.testing import CliRunner, Result

from rl_training import IQL, SAC, cli, load
from rl_training.environments.torch_envs import TorchPendulum
from rl_training.environments.user_environments import resolve_env
from rl_training.errors import ConfigError, EnvironmentFailure
from rl_training.runtime.workflows import resume_training
from tests.runs import TINY, fingerprint, owned
from tests.worlds import Identity


class Point(gym.Env[Any, Any]):
    """A point that is pushed; 12 steps, which it ends itself. Counts how many were made."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    made = 0
    closed = False

    def __init__(self, push: float = 0.1) -> None:
        type(self).made += 1
        self.push = push

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state, self.t = self.np_random.normal(size=2).astype(np.float32), 0
        return self.state.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.state = self.state + np.float32(self.push) * np.array([action[0], self.state[0]], np.float32)
        return self.state.copy(), -float(np.square(self.state).sum()), False, self.t >= 12, {}

    def close(self) -> None:
        self.closed = True


def tiny(folder: Path, algo: str = "sac", **fields: Any) -> dict[str, Any]:
    defaults = {"seed": 3, "output_dir": folder, "device": "cpu", "eval_episodes": 2, "log_interval": 20}
    return owned(algo, TINY) | defaults | {"checkpoint_interval": 15} | fields


def make_point() -> Point:
    return Point()


@pytest.mark.parametrize("env", [Point, make_point, lambda: Point()], ids=["class", "function", "lambda"])
def test_a_class_or_a_callable_makes_as_many_as_are_needed(env: Any, tmp_path: Path) -> None:
    model = SAC(env, **tiny(tmp_path, num_envs=3))
    result = model.learn(30, progress_bar=False)
    assert result.metrics["eval_episodes"] == 2
    assert model.evaluate()["eval_return_mean"] == result.metrics["eval_return_mean"]
    named = env is Point  # by its module: another process can make it
    assert model.config.given_envs == (() if named else ("env_id",))
    assert model.config.env_id == (f"{__name__}:Point" if named else env.__name__.strip("<>"))
    assert result.run_dir.name.startswith(f"{model.config.env_id.replace(':', '-')}__sac")


def test_the_same_run_from_class_callable_and_object(tmp_path: Path) -> None:
    """A single object is not evaluated, but learns the same."""
    runs = [SAC(env, **tiny(tmp_path / str(i))) for i, env in enumerate([Point, make_point, lambda: Point()])]
    first, *others = [model.learn(40, progress_bar=False) for model in runs]
    alone = SAC(Point(), **tiny(tmp_path / "alone"), eval_env=Point).learn(40, progress_bar=False)
    for other in [*others, alone]:
        assert other.metrics == first.metrics


def test_env_kwargs_go_to_the_class(tmp_path: Path) -> None:
    model = SAC(Point, **tiny(tmp_path, env_kwargs={"push": 0.0}, eval_episodes=1))
    still = model.learn(30, progress_bar=False).metrics["eval_return_mean"]
    assert (
        still
        != SAC(Point, **tiny(tmp_path, eval_episodes=1)).learn(30, progress_bar=False).metrics["eval_return_mean"]
    )


class Emptying(TorchPendulum):
    """Takes its time limit out of its arguments."""

    def __init__(self, num_envs: int, device: Any = "cpu", *, options: dict[str, Any]) -> None:
        super().__init__(num_envs, device, options.pop("limit"))


@pytest.mark.parametrize("env", [lambda options: TimeLimit(Point(), options.pop("limit")), Emptying])
def test_each_environment_has_its_own_arguments(env: Any, tmp_path: Path) -> None:
    model = SAC(env, **tiny(tmp_path, env_kwargs={"options": {"limit": 7}}))
    assert model.learn(30, progress_bar=False).metrics["eval_length_mean"] == 7
    assert model.config.env_kwargs == {"options": {"limit": 7}}


@pytest.mark.parametrize("brought", ["object", "lambda"])
def test_an_object_that_cannot_be_duplicated_is_used_for_training_only(
    brought: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    env = Point()
    Point.made = 0
    model = SAC(env if brought == "object" else lambda: env, **tiny(tmp_path))
    result = model.learn(30)
    assert "cannot be duplicated, so it is used for training only; pass eval_env=" in capfd.readouterr().err
    assert "eval_return_mean" not in result.metrics
    assert Point.made == 0
    assert not env.closed  # it belongs to the caller
    assert model.evaluate(3)["eval_episodes"] == 3  # nothing trains in it any more
    with pytest.raises(
        ConfigError, match=r"^num_envs: \w+ cannot be made again; set num_envs to 1, or give its class"
    ):
        SAC(env if brought == "object" else lambda: env, **tiny(tmp_path, num_envs=2)).learn(60, progress_bar=False)


def test_wrappers_of_one_object_are_one_environment(tmp_path: Path) -> None:
    """Each would continue the episodes of the others: an evaluation would reset those of training."""
    env = Point()

    def limited() -> gym.Env[Any, Any]:
        return gym.wrappers.TimeLimit(env, 9)

    result = SAC(limited, **tiny(tmp_path, eval_interval=10)).learn(30, progress_bar=False)
    assert "eval_return_mean" not in result.metrics
    with pytest.raises(ConfigError, match=r"^num_envs: limited cannot be made again"):
        SAC(limited, **tiny(tmp_path, num_envs=2)).learn(60, progress_bar=False)
    apart = r"^eval_env: an evaluation would reset the episodes of training"
    with pytest.raises(ConfigError, match=apart):
        SAC(limited(), eval_env=limited(), **tiny(tmp_path))
    for judge in (limited, lambda: env):
        with pytest.raises(ConfigError, match=apart):
            SAC(limited, eval_env=judge, **tiny(tmp_path)).learn(30, progress_bar=False)
    judged = SAC(limited, eval_env=Point(), **tiny(tmp_path)).learn(30, progress_bar=False)
    assert judged.metrics["eval_episodes"] == 2


def test_an_object_is_evaluated_in_eval_env(tmp_path: Path) -> None:
    results = [
        SAC(Point(), **tiny(tmp_path), eval_env=judge).learn(30, progress_bar=False).metrics["eval_return_mean"]
        for judge in (Point, Point(), make_point)
    ]
    assert len(set(results)) == 1
    words = r"^eval_env: Pendulum-v1 does not fit the run's spaces \(it has observations of 3 .* trains on .* of 2 "
    with pytest.raises(ConfigError, match=words):
        SAC(Point(), **tiny(tmp_path / "x"), eval_env="Pendulum-v1").learn(40, progress_bar=False)
    assert not (tmp_path / "x").exists()


def test_early_stopping_needs_an_environment_to_evaluate_in(tmp_path: Path) -> None:
    stopping = {"patience": 2}
    with pytest.raises(ConfigError, match=r"early_stopping needs evaluations, and Point cannot be duplicated"):
        SAC(Point(), **tiny(tmp_path), early_stopping=stopping, eval_interval=10).learn(40, progress_bar=False)


def test_offline_an_object_is_free_to_be_evaluated_in(tmp_path: Path) -> None:
    model = IQL(Point(), **tiny(tmp_path, "iql") | {"dataset_kind": "random"})
    assert model.learn(20, progress_bar=False).metrics["eval_episodes"] == 2


def test_a_registered_object_is_duplicated_from_its_spec(tmp_path: Path) -> None:
    env = gym.make("Pendulum-v1", g=3.0, max_episode_steps=17)
    model = SAC(env, **tiny(tmp_path, num_envs=2))
    assert model.config.env_id == "Pendulum-v1"
    assert model.config.env_kwargs == {"g": 3.0, "max_episode_steps": 17}
    assert model.config.given_envs == ()
    result = model.learn(40, progress_bar=False)
    assert result.metrics["eval_length_mean"] == 17
    by_name = SAC("Pendulum-v1", **tiny(tmp_path, num_envs=2, env_kwargs={"g": 3.0, "max_episode_steps": 17}))
    assert by_name.learn(40, progress_bar=False).metrics == result.metrics
    assert SAC.load(result.run_dir).evaluate()["eval_length_mean"] == 17
    with pytest.raises(ConfigError, match=r"^env_kwargs: the environment is made already"):
        SAC(env, env_kwargs={"g": 1.0})


@pytest.mark.parametrize(
    "env",
    [Point, lambda: gym.make_vec("Pendulum-v1", num_envs=2, vectorization_mode="sync")],
    ids=["one", "vector"],
)
def test_an_object_takes_no_arguments(env: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^env_kwargs: the environment is made already"):
        SAC(env(), **tiny(tmp_path, env_kwargs={"push": 0.2}))
    assert SAC(env(), **tiny(tmp_path, env_kwargs={})).config.env_kwargs == {}


def test_wrappers_of_a_registered_object_are_duplicated(tmp_path: Path) -> None:
    env = gym.wrappers.RescaleAction(gym.make("Pendulum-v1"), -1.0, 0.5)
    model = SAC(env, **tiny(tmp_path, num_envs=2))
    result = model.learn(40, progress_bar=False)
    assert model.config.given_envs == ("env_id",)
    assert result.metrics["eval_episodes"] == 2
    assert model._loaded is None
    assert model.predict([1.0, 0.0, 0.0]) <= 0.5


class Loose(gym.Wrapper[Any, Any, Any, Any]):
    """Does not record its arguments."""


def test_an_object_in_a_wrapper_that_records_nothing_is_alone() -> None:
    brought = resolve_env(Loose(gym.make("Pendulum-v1")))
    assert brought.maker is not None
    assert brought.maker.single_instance
    assert brought.name == "PendulumEnv"


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (3, "got int$"),
        (dict, "got dict$"),
    ],
)
def test_objects_that_are_not_environments_are_refused(env: Any, message: str) -> None:
    with pytest.raises(
        ConfigError, match=f"^env_id must be a Gymnasium id, a gymnasium.Env, its class .*{message}"
    ):
        SAC(env)


class Several(Point):
    num_envs = 4


def test_an_environment_of_several_simulations_needs_an_adapter() -> None:
    with pytest.raises(ConfigError, match="Several steps several simulations in one call; wrap it in an adapter"):
        SAC(Several())


def test_a_vector_environment(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is adapted; the number of its environments is that of the run."""
    model = SAC(gym.vector.SyncVectorEnv([Point, Point]), **tiny(tmp_path))
    assert model.config.num_envs == 2
    assert model.learn(60, progress_bar=False).metrics["global_step"] == 60
    assert "do not save their state; pass an id or a class, and num_envs" in capfd.readouterr().err


def test_a_vector_environment_of_one_object_is_refused() -> None:
    env = Point()
    for make in (lambda: env, lambda: gym.wrappers.TimeLimit(env, 9)):
        with pytest.raises(ConfigError, match=r"^SyncVectorEnv: several of its environments are one object"):
            SAC(gym.vector.SyncVectorEnv([make, make]))


def test_a_callable_that_makes_something_else(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lambda could not be made .* it made a int, not a gymnasium\.Env"):
        SAC(lambda: 3, **tiny(tmp_path, eval_episodes=0)).learn(20, progress_bar=False)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("given", [Point, "object"])
def test_such_a_run_resumes_exactly_when_it_is_given_again(given: Any, tmp_path: Path) -> None:
    options = tiny(tmp_path / "short", eval_env=Point)
    whole = SAC(Point() if given == "object" else given, **tiny(tmp_path / "whole", eval_env=Point))
    whole = whole.learn(60, progress_bar=False)
    short = SAC(Point() if given == "object" else given, **options).learn(30, progress_bar=False)
    refused = r"Point was given as a Python object and cannot be made by its name"
    if given is Point:
        refused = rf"'{__name__}:Point' would import the module '{__name__}'; allow it with --allow-import"
    with pytest.raises(ConfigError, match=rf"^env_id: {refused}, or|^env_id: {refused}; give it again"):
        resume_training(short.run_dir, changes={"total_timesteps": 60}, quiet=True)
    with pytest.raises(ConfigError, match=rf"^env_id: {refused}.* rl_training\.load\(path, env=…\)"):
        SAC.load(short.run_dir).resume(60, progress_bar=False)
    with pytest.raises(ConfigError, match=r"^eval_env: .*:Point' would .* rl_training\.load\(path, eval_env=…\)"):
        SAC.load(short.run_dir, env=Point).evaluate(num_episodes=1)
    model = SAC.load(short.run_dir)
    resumed = model.resume(60, progress_bar=False, env=Point() if given == "object" else given, eval_env=Point)
    assert resumed.run_dir == short.run_dir
    assert resumed.metrics["eval_return_mean"] == whole.metrics["eval_return_mean"]
    before, after = fingerprint(whole.checkpoint_path), fingerprint(resumed.checkpoint_path)
    told = {name for name in before if before[name] != after[name]}
    assert told == {"config/output_dir", "trainer/log_rows", "trainer/best_return"}  # evaluated once more


def test_a_loaded_one_is_evaluated_in_what_is_given(tmp_path: Path) -> None:
    result = SAC(Point, **tiny(tmp_path)).learn(40, progress_bar=False)
    model = SAC.load(result.run_dir, env=Point)
    assert model.evaluate()["eval_return_mean"] == result.metrics["eval_return_mean"]
    assert SAC.load(result.run_dir, eval_env=Point()).evaluate() == model.evaluate()
    assert SAC.load(result.run_dir).predict([0.0, 0.0]).shape == (1,)
    with pytest.raises(ConfigError, match="does not fit the policy"):
        SAC.load(result.run_dir, env=Identity).evaluate()


class Unplugged(Point):
    """Its connection is lost after `steps` steps, and cannot be closed."""

    def __init__(self, steps: int = 1000) -> None:
        super().__init__()
        self.steps = steps

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps -= 1
        if self.steps < 0:
            raise RuntimeError("the cable is off")
        return super().step(action)

    def close(self) -> None:
        raise RuntimeError("not connected")


def test_an_environment_that_cannot_be_closed_hides_neither_results_nor_its_first_error(tmp_path: Path) -> None:
    warned = "^Unplugged could not be closed: RuntimeError: not connected; correct its method close$"
    model = SAC(Unplugged, **tiny(tmp_path))
    with pytest.warns(UserWarning, match=warned):
        assert model.learn(30, progress_bar=False).metrics["eval_episodes"] == 2
    with pytest.warns(UserWarning, match=warned):
        assert model.evaluate(3)["eval_episodes"] == 3
    with pytest.warns(UserWarning, match=warned), pytest.raises(EnvironmentFailure, match="the cable is off"):
        SAC(Unplugged, **tiny(tmp_path, env_kwargs={"steps": 9})).learn(30, progress_bar=False)


@pytest.mark.slow
def test_in_processes_only_what_is_importable(tmp_path: Path) -> None:
    here = SAC(Point, **tiny(tmp_path)).learn(30, progress_bar=False)
    there = SAC(Point, **tiny(tmp_path, env_processes=True)).learn(30, progress_bar=False)
    assert there.metrics == here.metrics
    for env in (lambda: Point(), Point()):
        with pytest.raises(ConfigError, match=r"^environments: .* cannot be made in another process; give a class"):
            SAC(env, **tiny(tmp_path, env_processes=True)).learn(30, progress_bar=False)


def test_the_time_limit_of_an_environment_is_detected(tmp_path: Path) -> None:
    class Endless(Point):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return np.zeros(2, np.float32), 0.0, False, False, {}

    limited = SAC(lambda: gym.wrappers.TimeLimit(Endless(), 9), **tiny(tmp_path))
    assert limited.learn(30, progress_bar=False).metrics["eval_length_mean"] == 9
    bounded = SAC(Endless, **tiny(tmp_path, eval_max_steps=11))
    assert bounded.learn(30, progress_bar=False).metrics["eval_length_mean"] == 11


VALVE = """
import gymnasium as gym
from tests.test_given_environments import Point
class Tank(Point): pass
class Outer:
    class Tank(Point): pass
class Listed(Point): pass
gym.register("Listed-v0", entry_point=Listed, max_episode_steps=3)
"""


@pytest.fixture
def valve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A user's module in the current folder."""
    (tmp_path / "valve.py").write_text(VALVE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("valve", None)
    yield importlib.import_module("valve")
    sys.modules.pop("valve", None)
    gym.registry.pop("Listed-v0", None)


def command(*arguments: object) -> Result:
    return CliRunner().invoke(cli.main, [str(argument) for argument in arguments])


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the module from the imports, as in a new process."""
    monkeypatch.delitem(sys.modules, "valve")


@pytest.mark.parametrize("name", ["Tank", "Outer.Tank"])
def test_the_command_line_finds_a_class_by_its_module(
    name: str, valve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = valve.Tank if name == "Tank" else valve.Outer.Tank
    result = SAC(env, **tiny(tmp_path / "runs", env_kwargs={"push": 0.2})).learn(30, progress_bar=False)
    forget(monkeypatch)
    refused = command("evaluate", result.run_dir)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 2)  # what is evaluated, and the error
    assert f"error: env_id: 'valve:{name}' would import the module 'valve'; allow it with" in refused.stderr
    assert "valve" not in sys.modules
    found = command("evaluate", result.run_dir, "--allow-import", "--json", "--episodes", 2)
    assert json.loads(found.stdout)["eval_return_mean"] == result.metrics["eval_return_mean"]
    forget(monkeypatch)
    assert command("resume", result.run_dir).exit_code == 2
    assert "valve" not in sys.modules
    resumed = command("resume", result.run_dir, "--allow-import", "--set", "total_timesteps=40")
    assert resumed.exit_code == 0, resumed.output


def test_a_run_whose_environment_has_no_name_gets_one(
    valve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = SAC(lambda: valve.Tank(), **tiny(tmp_path / "runs")).learn(30, progress_bar=False)
    forget(monkeypatch)
    assert (
        "or name its class: --set env_id=module:Class --allow-import" in command("evaluate", result.run_dir).stderr
    )
    named = ("--set", "env_id=valve:Tank")
    assert "allow it with --allow-import" in command("evaluate", result.run_dir, *named).stderr
    assert "valve" not in sys.modules
    found = command("evaluate", result.run_dir, *named, "--allow-import", "--json", "--episodes", 2)
    assert json.loads(found.stdout)["eval_return_mean"] == result.metrics["eval_return_mean"]


def test_only_what_another_process_finds_is_recorded_by_its_module(valve: Any) -> None:
    class Local(Point):
        pass

    main = type("Main", (Point,), {"__module__": "__main__"})
    sys.modules["__main__"].Main = main
    try:
        assert [resolve_env(env).name for env in (Local, main)] == ["Local", "Main"]
        assert not any(resolve_env(env).by_name for env in (Local, main))
    finally:
        delattr(sys.modules["__main__"], "Main")
    # Gymnasium would make `valve:Listed` with the time limit of Listed-v0.
    assert (resolve_env(valve.Listed).name, resolve_env(valve.Listed).by_name) == ("Listed", False)
    assert (resolve_env(valve.Tank).name, resolve_env(valve.Tank).by_name) == ("valve:Tank", True)


def test_loading_replaces_env_kwargs(tmp_path: Path) -> None:
    settings = tiny(tmp_path, env_kwargs={"push": 0.2}, eval_episodes=1)
    result = SAC(Point, **settings).learn(30, progress_bar=False)
    words = (
        r"^env_id: lambda could not be made with env_kwargs \{'push': 0\.2\}: TypeError: .*'push'; give others "
        r"with env_kwargs=\{…\}$"
    )
    for clash in (lambda **options: Point(push=0.0, **options), lambda: Point(0.0)):
        with pytest.raises(ConfigError, match=words):
            SAC.load(result.run_dir, env=clash).evaluate(2)
        still = load(result.run_dir, env=clash, env_kwargs={}).evaluate(2)
        assert still == SAC.load(result.run_dir, env=Point, env_kwargs={"push": 0.0}).evaluate(2)
    made = gym.make("Pendulum-v1", g=3.0)
    with pytest.raises(ConfigError, match=r"^env_kwargs: the environment is made already"):
        SAC.load(result.run_dir, env=made, env_kwargs={"g": 1.0})
