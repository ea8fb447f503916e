"""An environment that fails on request, in every way environments fail. Importable by other processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

FAULTY = "Faulty-v0"
IMPORTABLE = f"tests.reliability.faulty_worlds:{FAULTY}"


class Faulty(gym.Env[NDArray[np.float32], Any]):
    """Random walk with episodes of 25 steps; its step number `at`, counted over all episodes, fails.

    `how`: obs, reward, raise, shout (long, with control characters), exit, sys.exit, kill, hang. In a separate
    process also `bytes` followed by a hexadecimal number, which is sent to the run, or fork: both processes return
    from this step, first the copy, which ends three steps later. `wait`: seconds per step. With `endless`, episodes
    never end.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(
        self, at: int = -1, how: str = "", discrete: bool = False, wait: float = 0.0, endless: bool = False
    ) -> None:
        self.at, self.how, self.pause, self.endless = at, how, wait, endless
        self.action_space = gym.spaces.Discrete(3) if discrete else gym.spaces.Box(-1.0, 3.0, (1,), np.float32)
        self.steps, self.is_copy = 0, False

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
        if broken == "shout":
            raise RuntimeError("\x1b[31mfire\x1b[0m\r\n" + 5_000_000 * "!")
        if self.is_copy and self.steps == self.at + 3:
            os._exit(0)
        if broken == "fork":
            copy = os.fork()
            self.is_copy = copy == 0
            if copy:
                os.waitpid(copy, 0)
        if broken.startswith("bytes"):
            os.write(_connection(), bytes.fromhex(broken.removeprefix("bytes")))
            time.sleep(600)
        if broken == "exit":
            os._exit(7)
        if broken == "sys.exit":
            sys.exit(0)
        if broken == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if broken == "hang":
            time.sleep(600)
        obs = self.np_random.standard_normal(3).astype(np.float32)
        if broken == "obs":
            obs[1] = np.nan
        reward = np.inf if broken == "reward" else float(np.sum(action))
        return obs, reward, False, self.t == 25 and not self.endless, {}


def _connection() -> int:
    """The file descriptor through which this process answers."""
    frame = sys._getframe()
    while frame.f_code.co_name != "_serve":
        assert frame.f_back is not None
        frame = frame.f_back
    handle: int = frame.f_locals["connection"].fileno()
    return handle


class WrongForm(gym.Env[Any, Any]):
    """Returns a malformed result: `answer` names the method of this class that produces it."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    right = np.array([1.0, 2.0, 3.0], np.float32)

    def __init__(self, answer: str) -> None:
        self.answer, self.taken = answer, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        forms: dict[str, Any] = {
            "reset: observation alone": self.right,
            "reset: three values": (self.right, {}, {}),
            "reset: scalar": (1.0, {}),
            "reset: too long": (np.zeros(4), {}),
        }
        return forms.get(self.answer, (self.right, {}))

    def step(self, action: Any) -> Any:
        self.taken += 1
        good = (self.right, 0.5, False, self.taken % 25 == 0, {})
        if self.taken < 30:
            return good
        forms: dict[str, Any] = {
            "step: old interface": (self.right, 0.5, False, {}),
            "step: observation alone": self.right,
            "step: column": (self.right[:, None], *good[1:]),
            "step: too short": (self.right[:2], *good[1:]),
            "step: words": (["a", "b", "c"], *good[1:]),
            "step: no reward": (self.right, None, *good[2:]),
            "step: reward in a list": (self.right, [0.5], *good[2:]),
            "step: reward of shape 1": (self.right, np.array([0.5]), *good[2:]),
            "step: terminated is None": (self.right, 0.5, None, False, {}),
            "step: truncated is a number": (self.right, 0.5, False, 0, {}),
            "right: lists and NumPy's scalars": (
                [1, 2, 3],
                np.int64(1),
                np.False_,
                np.array(good[3]),
                {},
            ),
        }
        return forms.get(self.answer, good)


WRONG_FORM = "WrongForm-v0"
for _name, _world in ((FAULTY, Faulty), (WRONG_FORM, WrongForm)):
    if _name not in gym.registry:
        gym.register(_name, entry_point=_world)
