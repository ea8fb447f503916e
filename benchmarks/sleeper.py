"""An environment whose steps take time and no CPU; slim, because every process that has one imports this module."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray


class Sleeper(gym.Env[NDArray[np.float32], Any]):
    """Episodes of 50 steps, each of which takes `sleep` seconds of no CPU."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, sleep: float) -> None:
        self.pause, self.t = sleep, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        time.sleep(self.pause)
        self.t += 1
        return self._obs(), float(np.sum(action)), False, self.t == 50, {}

    def _obs(self) -> NDArray[np.float32]:
        return self.np_random.standard_normal(3).astype(np.float32)
