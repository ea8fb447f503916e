"""Environments whose every number is known, registered under names of their own."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

IDENTITY, CHOICES, SCRIPTED, REUSING = "Identity-v0", "IdentityChoices-v0", "Scripted-v0", "Reusing-v0"


class Identity(gym.Env[NDArray[np.float32], NDArray[np.float32]]):
    """One step: see x in [-1, 1], answer a, be rewarded with -(a - x)^2. The best return is 0."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Box(-2.0, 1.5, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.x = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        return self.x, {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        return self.x, -float((action[0] - self.x[0]) ** 2), True, False, {}


class IdentityChoices(gym.Env[NDArray[np.float32], np.int64]):
    """One step: see one of three numbers, name it (5, 6 or 7), be rewarded with 1 if right."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(3, start=5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.answer = int(self.np_random.integers(3))
        return self._obs(), {}

    def _obs(self) -> NDArray[np.float32]:
        return np.array([self.answer - 1.0], np.float32)

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        return self._obs(), float(action - 5 == self.answer), True, False, {}


class Scripted(gym.Env[NDArray[np.float32], Any]):
    """Plays the episode that `script` holds for its seed; without one, 1 + seed % 7 steps and a termination.

    `script` maps str(seed) to `{label, length, end}` with `end` "terminated", "truncated" or "both", and
    optionally `broken`: `{"at": t, "how": "obs" | "reward" | "raise"}` (t = 0 is the reset). The observation is
    [label, t, sum of the actions so far], the reward of step t is label + t / 8. The key `reports` of `info` is 1
    in odd steps; with `at_end` only the last step has it.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(
        self,
        script: dict[str, dict[str, Any]] | None = None,
        discrete: bool = False,
        reports: str | None = None,
        at_end: bool = False,
    ) -> None:
        self.script, self.reports, self.at_end = script or {}, reports, at_end
        self.action_space = (
            gym.spaces.Discrete(3, start=5) if discrete else gym.spaces.Box(-1.0, 3.0, (1,), np.float32)
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        assert seed is not None
        default = {"label": seed % 16 / 8, "length": 1 + seed % 7, "end": "terminated"}
        self.episode = self.script.get(str(seed), default)
        self.t, self.total = 0, 0.0
        return self._obs(), {}

    def _broken(self, how: str) -> bool:
        broken: dict[str, Any] = self.episode.get("broken", {})
        return broken.get("at") == self.t and broken.get("how") == how

    def _obs(self) -> NDArray[np.float32]:
        if self._broken("raise"):
            raise RuntimeError("the motor is on fire")
        label = np.nan if self._broken("obs") else self.episode["label"]
        return np.array([label, self.t, self.total], np.float32)

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.t += 1
        self.total += float(np.sum(action))
        assert self.t <= self.episode["length"], "stepped after its end"
        reward = self.episode["label"] + self.t / 8
        over, end = self.t == self.episode["length"], self.episode["end"]
        return (
            self._obs(),
            np.nan if self._broken("reward") else reward,
            over and end in ("terminated", "both"),
            over and end in ("truncated", "both"),
            {} if self.reports is None or (self.at_end and not over) else {self.reports: float(self.t % 2)},
        )


class Reusing(gym.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Adds up the actions it gets. Unless `careful` it has one buffer for observations and one for pictures, halves
    the action it is given, and overwrites all that it was given before."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self, careful: bool = False, marks: Any = (), render_mode: str | None = None) -> None:
        self.careful, self.render_mode = careful, render_mode
        self.state = np.zeros(3, np.float32)
        self.picture = np.zeros((2, 2, 3), np.uint8)
        self.given: list[NDArray[np.float32]] = []
        if not careful and isinstance(marks, list):
            marks.append("changed")

    def _answer(self) -> NDArray[np.float32]:
        return self.state.copy() if self.careful else self.state

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.state[:] = self.np_random.uniform(), 0.0, 0.0
        return self._answer(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        for old in self.given:
            old[...] = -0.75
        self.state[1] += 1.0
        self.state[2] += action[0]
        self.picture[...] = int(self.state[1])
        if not self.careful:
            action *= 0.5
            self.given = [*self.given[-20:], action]
        return self._answer(), float(self.state[2]), False, bool(self.state[1] == 7), {}

    def render(self) -> NDArray[np.uint8]:  # type: ignore[override]
        return self.picture


_WORLDS = {IDENTITY: Identity, CHOICES: IdentityChoices, SCRIPTED: Scripted, REUSING: Reusing}
for _name, _world in _WORLDS.items():
    if _name not in gym.registry:
        gym.register(_name, entry_point=f"{__name__}:{_world.__name__}")
