"""A user's module in the current folder is found with permission; errors name what is missing."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from rl_training.environments.making import make_env
from rl_training.environments.pool import EnvPool
from rl_training.errors import ConfigError, MissingDependencyError
from rl_training.experiment.config import TrainConfig

MODULE = """
import gymnasium as gym
import numpy as np

class Point(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}

class Same(gym.Wrapper):
    pass

gym.register("OwnPoint-v0", "own_module_of_a_user:Point")
"""


def config(env_id: str, **fields: Any) -> TrainConfig:
    return TrainConfig(**{"algo": "sac", "env_id": env_id, "total_timesteps": 1, "allow_import": True, **fields})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module in it, seen as a console script sees it."""
    (tmp_path / "own_module_of_a_user.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.delitem(sys.modules, "own_module_of_a_user", raising=False)
    monkeypatch.delitem(gym.registry, "OwnPoint-v0", raising=False)
    return tmp_path


@pytest.mark.parametrize("processes", [False, True])
def test_a_module_in_the_current_folder(folder: Path, processes: bool) -> None:
    before = list(sys.path)
    own = config(
        "own_module_of_a_user:OwnPoint-v0", env_processes=processes, wrappers=["own_module_of_a_user:Same"]
    )
    with pytest.raises(ConfigError, match="--allow-import"):
        make_env(own.replace(allow_import=False))
    pool = EnvPool(own)
    try:
        assert pool.reset(0).shape == (2,)
    finally:
        pool.close()
    assert sys.path == before


@pytest.mark.parametrize("processes", [False, True])
def test_a_class_needs_no_registering(folder: Path, processes: bool) -> None:
    pool = EnvPool(config("own_module_of_a_user:Point", env_processes=processes))
    try:
        assert pool.reset(0).shape == (2,)
    finally:
        pool.close()
    with pytest.raises(ConfigError, match="--allow-import"):
        make_env(config("own_module_of_a_user:Point", allow_import=False))
    with pytest.raises(ConfigError, match=r"could not be made with env_kwargs {'size': 3}: TypeError"):
        make_env(config("own_module_of_a_user:Point", env_kwargs={"size": 3}))
    for name in ("np", "Pointt"):
        with pytest.raises(ConfigError, match=r"neither registers such an id nor has a gymnasium\.Env of"):
            make_env(config(f"own_module_of_a_user:{name}"))


def test_a_module_that_is_not_there(folder: Path) -> None:
    with pytest.raises(
        MissingDependencyError,
        match=r"^env_id: the module 'myenvs' cannot be imported; is it importable from here \(/",
    ):
        make_env(config("myenvs:Point-v0"))
    (folder / "needs_more.py").write_text("import package_nobody_has\n")
    with pytest.raises(
        MissingDependencyError, match=r"^env_id: the module 'package_nobody_has', which needs_more needs, cannot be"
    ):
        make_env(config("needs_more:Point-v0"))
    (folder / "fails.py").write_text("1 / 0\n")
    with pytest.raises(
        ConfigError, match=r"^env_id: fails:Point-v0 could not be made .* ZeroDivisionError: division by zero$"
    ):
        make_env(config("fails:Point-v0"))


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("LunarLander-v3", r"pip install 'gymnasium\[box2d\]'$"),
        ("BipedalWalker-v3", r"pip install 'gymnasium\[box2d\]'$"),
        ("HalfCheetah-v5", r"pip install 'gymnasium\[mujoco\]'$"),
        ("Taxi-v3", r"is it importable from here\?$"),
    ],
)
def test_the_right_extra_is_named(env_id: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise gym.error.DependencyNotInstalled("something\nis not installed")

    monkeypatch.setattr(gym, "make", missing)
    with pytest.raises(MissingDependencyError, match=message) as caught:
        make_env(config(env_id))
    assert "\n" not in str(caught.value)


def test_what_cannot_be_had() -> None:
    with pytest.raises(ConfigError, match=r"Hopper-v2 needs .* use Hopper-v5$"):
        make_env(config("Hopper-v2"))
    with pytest.raises(ConfigError, match=r"ALE/Pong-v5: Atari is not supported, its observations are images$"):
        make_env(config("ALE/Pong-v5"))


def test_the_extras_that_are_named_exist() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert {"mujoco", "box2d"} <= project["optional-dependencies"].keys()


def test_a_wrapper_of_a_module_around_any_environment(folder: Path) -> None:
    """Its module is found in the current folder and imported, if that is permitted."""
    own = config("Pendulum-v1", wrappers=["own_module_of_a_user:Same"])
    with pytest.raises(ConfigError, match=r"would import the module 'own_module_of_a_user'; allow"):
        make_env(own.replace(allow_import=False))
    assert "own_module_of_a_user" not in sys.modules
    assert type(make_env(own)).__name__ == "Same"
    assert str(folder) not in sys.path
    assert type(make_env(own.replace(env_id="own_module_of_a_user:Pendulum-v1"))).__name__ == "Same"


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        ("lacking:Same", r"^wrappers: the module 'nobody_has_it', which lacking needs, cannot be imported; is it"),
        ("failing:Same", r"^wrappers: the module failing cannot be imported: ZeroDivisionError: division by zero$"),
        ("own_module_of_a_user:Nothing", r"^wrappers: the module own_module_of_a_user has no 'Nothing'$"),
        (":Same", r"^wrappers: the module  cannot be imported: ValueError"),
    ],
)
def test_a_wrapper_whose_module_is_none_is_one_line(wrapper: str, message: str, folder: Path) -> None:
    (folder / "lacking.py").write_text("import nobody_has_it\n")
    (folder / "failing.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match=message) as caught:
        make_env(config("Pendulum-v1", wrappers=[wrapper]))
    assert "\n" not in str(caught.value)
