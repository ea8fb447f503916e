"""`rl-training check-env`: tests what training relies on, and lists all problems in one table."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from typer.testing import CliRunner

from rl_training import cli
from rl_training.environments.checking import check_environment
from rl_training.environments.user_environments import UserEnvironments, resolve_env
from rl_training.experiment.config import TrainConfig


class World(gym.Env[Any, Any]):
    """A valid environment, which subclasses break."""

    observation_space: gym.Space[Any] = gym.spaces.Box(-100.0, 100.0, (2,), np.float32)
    action_space: gym.Space[Any] = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state, self.t = self.np_random.uniform(-1, 1, 2).astype(np.float32), 0
        return self.state.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.state = (0.9 * self.state + 0.1 * np.float32(action[0])).astype(np.float32)
        return self.state.copy(), float(self.state[0]), self.t >= 20, False, {}


class Unseeded(World):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = np.random.default_rng().uniform(-1, 1, 2).astype(np.float32)
        return self.state.copy(), {}


class Drifting(World):
    """Its state depends on the total number of steps."""

    steps = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        _, reward, *rest = super().step(action)
        return self.state + np.float32(0.01 * self.steps), reward, *rest  # type: ignore[return-value]


class Reused(World):
    """Returns the array that it changes in place."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.state, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        before = self.state
        _, *rest = super().step(action)
        before[:] = self.state
        self.state = before
        return self.state, *rest  # type: ignore[return-value]


class Drifted(Reused, Drifting):
    """Changes what it returned before, which only callers that copied it can notice."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.state += np.float32(0.01 * self.steps)
        return Reused.step(self, action)


class Halving(World):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        action *= 0.5
        return super().step(action)


class Deaf(World):
    """Ignores its seed: every episode is the same."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=0)


class Endless(World):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, False, info


class Wrong(World):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(3, np.float32), 0.0, False, False, {}


class Bad(World):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.full(2, np.nan, np.float32), 0.0, False, False, {}


class Raising(World):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        raise RuntimeError("the motor is on fire")


class Spaceless(gym.Env[Any, Any]):
    """Its author forgot both spaces."""


class Tupled(World):
    action_space = (1,)  # type: ignore[assignment]


class Infinite(World):
    action_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)


def checks(env: Any, **fields: Any) -> dict[str, tuple[str, str]]:
    brought = resolve_env(env)
    config = TrainConfig(algo="sac", env_id=brought.name, total_timesteps=1, **fields)
    return {
        check.subject: (check.state, check.text)
        for check in check_environment(config, UserEnvironments(brought.maker))
    }


def test_valid_environments_pass_the_check() -> None:
    found = checks(World)
    assert {state for state, _ in found.values()} == {"ok"}
    assert list(found) == ["making", "spaces", "answers", "seeds", "replaying", "time limit", "gymnasium"]


@pytest.mark.parametrize(
    ("env", "subject", "state", "words"),
    [
        (Unseeded, "seeds", "warning", "another first observation"),
        (Drifting, "replaying", "warning", "lead to another transition at step 1"),
        (Reused, "observations", "warning", "changes after it was returned"),
        (Drifted, "replaying", "warning", "lead to another transition at step 1"),
        (Halving, "actions", "warning", "changes its action in place"),
        (Deaf, "seeds", "warning", "another seed gives the same episode"),
        (Endless, "time limit", "warning", "wrappers: [{TimeLimit: {max_episode_steps: 1000}}]"),
        (Wrong, "answers", "broken", "at step 1: an observation has shape [3], its space [2]"),
        (Bad, "answers", "broken", "NaN or infinite"),
        (Raising, "answers", "broken", "at step 1: RuntimeError: the motor is on fire"),
        (Raising, "gymnasium", "broken", "the motor is on fire"),
        (Infinite, "spaces", "broken", "unbounded actions"),
        (Spaceless, "spaces", "broken", "Spaceless has the observation_space None; set it to a gymnasium.Space in"),
        (Tupled, "spaces", "broken", "Tupled has the action_space (1,); set it to a gymnasium.Space in __init__"),
        (lambda: 3, "making", "broken", "not a gymnasium.Env"),
    ],
)
def test_what_is_wrong_is_found(env: Any, subject: str, state: str, words: str) -> None:
    found = checks(env)[subject]
    assert found[0] == state
    assert words in found[1]


def test_wrappers_are_checked() -> None:
    limited = checks(Endless, wrappers=[{"TimeLimit": {"max_episode_steps": 1000}}])
    assert limited["time limit"] == ("ok", "1,000 steps")


def test_the_command() -> None:
    good = CliRunner().invoke(cli.main, ["check-env", "Pendulum-v1"])
    assert good.exit_code == 0
    assert [line.split()[0] for line in good.stdout.splitlines()] == ["ok"] * 7
    bad = CliRunner().invoke(cli.main, ["check-env", "Pendulum-v9"])
    assert bad.exit_code == 1
    assert bad.stdout.startswith("broken  making")
    changed = CliRunner().invoke(
        cli.main, ["check-env", "Pendulum-v1", "--set", "wrappers=[{TimeLimit: {max_episode_steps: 9}}]"]
    )
    assert "ok  time limit  9 steps" in changed.stdout


def test_a_class_by_name_needs_permission() -> None:
    refused = CliRunner().invoke(cli.main, ["check-env", "worlds:World"])
    assert refused.exit_code == 1
    text = "would import the module 'worlds'; allow it with --allow-import\n"
    assert refused.stdout == f"broken  making  'worlds:World' {text}"


@pytest.mark.parametrize(("own", "wrapper", "text"), [(None, 500, "200"), (None, 50, "50"), (-1, 500, "500")])
def test_the_smaller_of_two_time_limits_is_reported(own: int | None, wrapper: int, text: str) -> None:
    """A wrapper does not extend the limit that `gymnasium.make` has applied."""
    config = TrainConfig(
        algo="sac",
        env_id="Pendulum-v1",
        total_timesteps=1,
        env_kwargs={} if own is None else {"max_episode_steps": own},
        wrappers=[{"TimeLimit": {"max_episode_steps": wrapper}}],
    )
    told = [check.text for check in check_environment(config) if check.subject == "time limit"]
    assert told == [f"{text} steps"]
