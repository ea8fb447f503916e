"""Counting environments: an observation is one more than the last, and each episode starts at a random number.

Their episodes are short, end in the same and in consecutive steps, and some have a single step. `Counters` is
wrapped in stand-ins that behave at the end of an episode as the libraries do.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

# Episodes of a simulation in order: their length and whether they terminate; others are truncated.
EPISODES = ((1, True), (3, False), (1, False), (1, True), (2, True), (9, False))
ROWS = 5
OBSERVATIONS = gym.spaces.Box(0.0, np.inf, (1,), np.float32)
ACTIONS = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)


def episode(number: int) -> tuple[int, bool]:
    return EPISODES[number % len(EPISODES)]


class Counting(gym.Env[Any, Any]):
    """One counter. It returns its action as its reward."""

    observation_space, action_space = OBSERVATIONS, ACTIONS

    def __init__(self, first: int = 0) -> None:
        self.number = first - 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.number, self.t = self.number + 1, 0
        self.value = 1000.0 * self.np_random.integers(1, 1000)
        return np.array([self.value], dtype=np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t, self.value = self.t + 1, self.value + 1.0
        length, terminates = episode(self.number)
        ends = self.t >= length
        obs = np.array([self.value], dtype=np.float32)
        return obs, float(action[0]), ends and terminates, ends and not terminates, {}


class Counters:
    """`ROWS` counters. All tensors change in place, as in a simulator."""

    num_envs, device = ROWS, "cpu"

    def __init__(self) -> None:
        self.numbers = torch.arange(ROWS) - 1
        self.values, self.steps = torch.zeros(ROWS, 1), torch.zeros(ROWS, dtype=torch.int64)
        self.rewards, self.terminated, self.timed_out = (torch.zeros(ROWS) for _ in range(3))
        self.reset_buf = torch.zeros(ROWS, dtype=torch.bool)
        self.random = torch.Generator()

    def seed(self, seed: int | None) -> None:
        if seed is not None:
            self.random.manual_seed(seed)

    def start(self, rows: Tensor) -> None:
        self.numbers[rows] += 1
        self.steps[rows] = 0
        self.reset_buf[rows] = False
        self.values[rows] = 1000.0 * torch.randint(1, 1000, (len(rows), 1), generator=self.random).float()

    def advance(self, actions: Tensor) -> Tensor:
        """Advance by one step; returns the rows whose episodes ended."""
        self.values += 1.0
        self.steps += 1
        self.rewards.copy_(actions[:, 0])
        lengths, terminates = torch.tensor([episode(int(number)) for number in self.numbers]).unbind(1)
        self.reset_buf = self.steps >= lengths
        self.terminated.copy_(self.reset_buf & terminates.bool())
        self.timed_out.copy_(self.reset_buf & ~terminates.bool())
        return self.reset_buf.nonzero()[:, 0]

    def close(self) -> None:
        self.closed = True


class ManiSkillStandIn(Counters):
    """As `ManiSkillVectorEnv` 3.0.1."""

    single_observation_space, single_action_space = OBSERVATIONS, ACTIONS
    spec = types.SimpleNamespace(max_episode_steps=9)

    def __init__(self, auto_reset: bool = True) -> None:
        super().__init__()
        self.auto_reset = auto_reset

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Tensor, dict[str, Any]]:
        self.seed(seed)
        self.start((options or {}).get("env_idx", torch.arange(ROWS)))
        return self.values, {}

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        rows, info = self.advance(actions), {}
        flags = self.terminated.bool(), self.timed_out.bool()
        if len(rows):
            last = self.values.clone()
            self.reset(options={"env_idx": rows})
            info = {"final_observation": last, "_final_observation": flags[0] | flags[1]}
        return self.values, self.rewards, *flags, info


class IsaacLabStandIn(Counters):
    """As `ManagerBasedRLEnv` of Isaac Lab 3.0: in-place buffers, `final_obs` stays after the step it belongs to."""

    single_observation_space: Any = gym.spaces.Dict(
        policy=gym.spaces.Box(-np.inf, np.inf, (1,)), terms=gym.spaces.Dict(a=OBSERVATIONS)
    )
    single_action_space: Any = gym.spaces.Box(-np.inf, np.inf, (1,))
    max_episode_length = 9

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.cfg = types.SimpleNamespace(**{"compute_final_obs": True, "is_finite_horizon": False, **settings})
        self.extras: dict[str, Any] = {}
        self.unwrapped = self

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.seed(seed)
        self.start(torch.arange(ROWS))
        return {"policy": self.values}, self.extras

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        rows = self.advance(actions)
        if len(rows):
            if self.cfg.compute_final_obs:
                self.extras["final_obs"] = {"policy": self.values.clone()}
            self.start(rows)
        return {"policy": self.values}, self.rewards, self.terminated, self.timed_out, self.extras


class MjlabBox:
    """As `mjlab.utils.spaces.Box`, whose bounds are numbers."""

    shape, low, high = (1,), -np.inf, np.inf


class MjlabStandIn(Counters):
    """As `ManagerBasedRlEnv` of mjlab 1.6 with `auto_reset=False`: a step before the resets is an error."""

    single_observation_space = types.SimpleNamespace(spaces={"actor": MjlabBox(), "critic": MjlabBox()})
    single_action_space = MjlabBox()
    max_episode_length = 9

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.cfg = types.SimpleNamespace(**{"auto_reset": False, "is_finite_horizon": False, **settings})
        self.pending: list[int] = []
        self.unwrapped = self

    def reset(self, *, seed: int | None = None, env_ids: Tensor | None = None) -> tuple[Any, dict[str, Any]]:
        self.seed(seed)
        rows = torch.arange(ROWS) if env_ids is None else env_ids
        self.start(rows)
        self.pending = [row for row in self.pending if row not in rows.tolist()]
        return {"actor": self.values, "critic": self.values}, {}

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        assert not self.pending, "must be reset via reset(env_ids=...)"
        self.pending = self.advance(actions).tolist()
        return {"actor": self.values}, self.rewards, self.terminated, self.timed_out, {}


@dataclasses.dataclass
class State:
    """As `brax.envs.State`."""

    obs: Any
    reward: Any
    done: Any
    info: dict[str, Any]


class BraxStandIn:
    """As a Brax environment: pure functions of one simulation. With `truncates`, as in an `EpisodeWrapper`."""

    action_size = 1

    def __init__(self, truncates: bool = False, grouped: bool = False) -> None:
        self.truncates, self.grouped = truncates, grouped

    def reset(self, rng: Any) -> State:
        import jax

        number = jax.random.randint(rng, (), 0, len(EPISODES) * 1000)
        zero = jax.numpy.zeros((), "float32")
        return self._state(1000.0 * (1 + number // len(EPISODES)) + zero, zero, number, zero)

    def _state(self, value: Any, reward: Any, number: Any, steps: Any) -> State:
        import jax

        lengths, terminates = (jax.numpy.asarray(column)[number % len(EPISODES)] for column in zip(*EPISODES))
        ends = (steps >= lengths) * 1.0
        done = ends if self.truncates else ends * terminates
        info = {"number": number, "steps": steps}
        if self.truncates:
            info["truncation"] = ends * (1.0 - terminates)
        obs = value.reshape(1)
        return State({"state": obs, "privileged_state": obs} if self.grouped else obs, reward, done, info)

    def step(self, state: State, action: Any) -> State:
        value = (state.obs["state"] if self.grouped else state.obs)[0]
        return self._state(value + 1.0, action[0], state.info["number"], state.info["steps"] + 1.0)
