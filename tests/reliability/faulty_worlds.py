"""An environment that breaks when told, in every way environments break. Importable by a process of its own."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

FAULTY = "Faulty-v0"
IMPORTABLE = f"tests.reliability.faulty_worlds:{FAULTY}"


class Faulty(gym.Env[NDArray[np.float32], Any]):
    """Walks at random for episodes of 25 steps; its step number `at`, counted over all episodes, goes wrong.

    `how`: obs, reward, raise, exit, kill, hang; `wait` are seconds every step takes.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(self, at: int = -1, how: str = "", discrete: bool = False, wait: float = 0.0) -> None:
        self.at, self.how, self.pause = at, how, wait
        self.action_space = gym.spaces.Discrete(3) if discrete else gym.spaces.Box(-1.0, 3.0, (1,), np.float32)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.standard_normal(3).astype(np.float32), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        time.sleep(self.pause)
        self.steps += 1
        self.t += 1
        broken = self.how if self.steps == self.at else ""
        if broken == "raise":
            raise RuntimeError("the motor is on fire")
        if broken == "exit":
            os._exit(7)
        if broken == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if broken == "hang":
            time.sleep(600)
        obs = self.np_random.standard_normal(3).astype(np.float32)
        if broken == "obs":
            obs[1] = np.nan
        reward = np.inf if broken == "reward" else float(np.sum(action))
        return obs, reward, False, self.t == 25, {}


if FAULTY not in gym.registry:
    gym.register(FAULTY, entry_point=Faulty)
