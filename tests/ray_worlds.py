"""Environments that report where they run; importable on every node."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray


class Forgetful(gym.Env[NDArray[np.float32], Any]):
    """Its observations depend on the process they come from."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        return self._obs(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        return self._obs(), 0.0, False, False, {}

    def _obs(self) -> NDArray[np.float32]:
        return np.full(3, os.getpid(), np.float32)


class Meeting(Forgetful):
    """A step returns once `number` environments have started theirs."""

    def __init__(self, folder: str, number: int) -> None:
        self.folder, self.number = Path(folder), number

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        (self.folder / f"arrived-{os.getpid()}").touch()
        while len(list(self.folder.glob("arrived-*"))) < self.number:
            time.sleep(0.01)
        return super().step(action)
