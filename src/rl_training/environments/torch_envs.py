"""Pendulum and CartPole in PyTorch: thousands of simulations on any device, stepped in one call.

Their dynamics, rewards and limits are those of Gymnasium's Pendulum-v1 and CartPole-v1, in float64 as there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rl_training.environments.tensor_env import TensorStep


class TorchEnv:
    """Base class: time limit, resets, random numbers and the saved state. All tensors change in place.

    A subclass defines the bounds of initial states and the dynamics, in float64.
    """

    capturable = True
    max_episode_steps: int
    # Initial states are uniform between minus this and this.
    initial: ClassVar[tuple[float, ...]]
    single_observation_space: gym.Space[Any]
    single_action_space: gym.Space[Any]

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", max_episode_steps: int = 0) -> None:
        """`max_episode_steps`: 0 for the usual time limit."""
        self.num_envs, self.device = num_envs, torch.device(device)
        self.max_episode_steps = max_episode_steps or type(self).max_episode_steps
        self.generator = torch.Generator(self.device)
        self._bounds = torch.tensor(self.initial, dtype=torch.float64, device=self.device)
        self._state = torch.zeros((num_envs, len(self.initial)), dtype=torch.float64, device=self.device)
        self._steps = torch.zeros(num_envs, dtype=torch.int64, device=self.device)

    def dynamics(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The next states `[N, S]`, rewards `[N]` and whether the episodes terminate `[N]`."""
        raise NotImplementedError

    def observation(self, state: Tensor) -> Tensor:
        """The observations `[N, O]` of states, in float64."""
        raise NotImplementedError

    def reset(self, seed: int) -> Tensor:
        self.generator.manual_seed(seed)
        self._state.copy_(self._initial_states())
        self._steps.zero_()
        return self.observation(self._state).float()

    def step(self, actions: Tensor) -> TensorStep:
        state, rewards, terminated = self.dynamics(self._state, actions)
        steps = self._steps + 1
        truncated = steps >= self.max_episode_steps
        ended = terminated | truncated
        final_obs = self.observation(state).float()
        self._state.copy_(torch.where(ended[:, None], self._initial_states(), state))
        self._steps.copy_(steps.masked_fill(ended, 0))
        obs = self.observation(self._state).float()
        return TensorStep(obs, rewards.float(), terminated, truncated, final_obs)

    def _initial_states(self) -> Tensor:
        drawn = torch.rand(self._state.shape, generator=self.generator, dtype=torch.float64, device=self.device)
        return (2.0 * drawn - 1.0) * self._bounds

    def state_dict(self) -> dict[str, Tensor]:
        return {"state": self._state, "steps": self._steps, "random": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._state.copy_(state["state"])
        self._steps.copy_(state["steps"])
        random = state["random"]
        if random.numel() == self.generator.get_state().numel():  # otherwise it was saved on another kind of device
            self.generator.set_state(random)

    def close(self) -> None: ...


def _box(*bounds: float) -> gym.spaces.Box:
    """Observations between minus and plus these bounds."""
    high = np.array(bounds, dtype=np.float32)
    return gym.spaces.Box(-high, high, dtype=np.float32)


class TorchPendulum(TorchEnv):
    """Pendulum-v1: swing a pendulum up with a torque in [-2, 2]. The state is its angle and its speed."""

    max_episode_steps = 200
    initial = (math.pi, 1.0)
    single_observation_space = _box(1.0, 1.0, 8.0)
    single_action_space = gym.spaces.Box(-2.0, 2.0, (1,), dtype=np.float32)

    def dynamics(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        angle, speed = state.unbind(1)
        torque = actions[:, 0].clamp(-2.0, 2.0)  # stays in float32, as in Gymnasium
        from_top = torch.remainder(angle + math.pi, 2.0 * math.pi) - math.pi
        costs = from_top**2 + 0.1 * speed**2 + 0.001 * torque**2
        speed = (speed + (15.0 * angle.sin() + 3.0 * torque) * 0.05).clamp(-8.0, 8.0)
        after = torch.stack([angle + speed * 0.05, speed], 1)
        return after, -costs, torch.zeros_like(self._steps, dtype=torch.bool)

    def observation(self, state: Tensor) -> Tensor:
        angle, speed = state.unbind(1)
        return torch.stack([angle.cos(), angle.sin(), speed], 1)


class TorchCartPole(TorchEnv):
    """CartPole-v1: balance a pole by pushing its cart left (0) or right (1). The state is the observation."""

    max_episode_steps = 500
    initial = (0.05, 0.05, 0.05, 0.05)
    single_observation_space = _box(4.8, math.inf, 24.0 * 2.0 * math.pi / 360.0, math.inf)
    single_action_space = gym.spaces.Discrete(2)

    def dynamics(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        place, speed, angle, turning = state.unbind(1)
        force = 20.0 * actions.double() - 10.0
        cosine, sine = angle.cos(), angle.sin()
        push = (force + 0.05 * turning**2 * sine) / 1.1  # pole's mass times half its length; total mass
        turn = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
        drive = push - 0.05 * turn * cosine / 1.1
        place, speed = place + 0.02 * speed, speed + 0.02 * drive
        angle, turning = angle + 0.02 * turning, turning + 0.02 * turn
        terminated = (place.abs() > 2.4) | (angle.abs() > 12.0 * 2.0 * math.pi / 360.0)
        return torch.stack([place, speed, angle, turning], 1), torch.ones_like(place), terminated

    def observation(self, state: Tensor) -> Tensor:
        return state
