"""Small environments with known values in closed form, their logged data, and policies given by formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rl_training.data.datasets import TransitionDataset
from rl_training.models.policies import Normalizer, Policy

Floats = NDArray[np.float64]


class Formula(nn.Module):
    """An actor that is a function of observations."""

    def __init__(self, mode: Callable[[Tensor], Tensor], spread: float = 0.0) -> None:
        super().__init__()
        self.mode, self.spread = mode, spread
        self.stochastic = spread > 0

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        return self.mode(obs) + self.spread * noise


class Weighted(nn.Module):
    """A discrete actor that takes the second of two actions with the same probability in every state."""

    stochastic = True

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.chance = chance

    def mode(self, obs: Tensor) -> Tensor:
        return torch.full((len(obs),), int(self.chance > 0.5))

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        return (torch.special.ndtr(noise[:, 0]) < self.chance).long()

    def log_prob(self, obs: Tensor, actions: Tensor) -> Tensor:
        return torch.where(actions == 1, self.chance, 1.0 - self.chance).log()


def policy(actor: nn.Module, size: int) -> Policy:
    return Policy(Normalizer(size, enabled=False), actor)


class Chain:
    """A chain of states. Action 0 returns to the first state; action 1 moves to the next one, and terminates from
    the last.

    Terminating pays 10, moving forward costs 1, returning costs nothing. Observations are one-hot.
    """

    def __init__(self, states: int = 5, gamma: float = 0.9) -> None:
        self.states, self.gamma = states, gamma

    def step(self, state: int, action: int) -> tuple[int, float, bool]:
        if action == 0:
            return 0, 0.0, False
        if state == self.states - 1:
            return state, 10.0, True
        return state + 1, -1.0, False

    def value(self, chance: Callable[[int], float]) -> Floats:
        """V of a policy that moves forward with probability `chance(state)`, from Bellman's equation."""
        matrix, rewards = np.eye(self.states), np.zeros(self.states)
        for state in range(self.states):
            for action, weight in ((0, 1.0 - chance(state)), (1, chance(state))):
                following, reward, over = self.step(state, action)
                rewards[state] += weight * reward
                matrix[state, following] -= 0.0 if over else weight * self.gamma
        return np.linalg.solve(matrix, rewards)

    def data(self, episodes: int, seed: int = 0, chance: float = 0.6, limit: int = 12) -> dict[str, Any]:
        """Logged episodes, with action probabilities, of a policy that moves forward with `chance`; truncated at a
        time limit."""
        rng = np.random.default_rng(seed)
        columns: dict[str, list[Any]] = {
            name: [] for name in ("observations", "actions", "rewards", "terminals", "timeouts", "action_probs")
        }
        columns["next_observations"] = []
        one_hot = np.eye(self.states, dtype=np.float32)
        for _ in range(episodes):
            state = 0
            for step in range(limit):
                action = int(rng.random() < chance)
                following, reward, over = self.step(state, action)
                row = {
                    "observations": one_hot[state],
                    "actions": action,
                    "rewards": reward,
                    "terminals": over,
                    "timeouts": step == limit - 1 and not over,
                    "action_probs": chance if action else 1.0 - chance,
                    "next_observations": one_hot[following],
                }
                for name, value in row.items():
                    columns[name].append(value)
                state = following
                if over:
                    break
        return {name: np.array(column) for name, column in columns.items()}

    def policy(self, goes_on: Callable[[int], bool]) -> Policy:
        chosen = torch.tensor([int(goes_on(state)) for state in range(self.states)])
        return policy(Formula(lambda obs: chosen[obs.argmax(-1)]), self.states)


class Linear:
    """x' = a x + b u, reward -(x^2 + c u^2): without noise and termination, the value of u = -k x is -p x^2."""

    a, b, c = 0.9, 0.5, 0.5

    def __init__(self, gamma: float = 0.9) -> None:
        self.gamma = gamma

    def value(self, gain: float, x: Floats, spread: float = 0.0) -> Floats:
        """Value of u = -k x + spread · noise."""
        closed = self.a - self.b * gain
        p = (1.0 + self.c * gain**2) / (1.0 - self.gamma * closed**2)
        constant = (self.c + self.gamma * p * self.b**2) * spread**2 / (1.0 - self.gamma)
        return -p * x**2 - constant

    def data(self, episodes: int, length: int = 10, seed: int = 0) -> TransitionDataset:
        """Random actions from random initial states; every episode is truncated."""
        rng = np.random.default_rng(seed)
        x = rng.uniform(-1.0, 1.0, episodes)
        columns: list[list[NDArray[Any]]] = [[], [], [], []]
        for _ in range(length):
            u = rng.uniform(-1.0, 1.0, episodes)
            following = self.a * x + self.b * u
            for column, values in zip(columns, (x, u, -(x**2 + self.c * u**2), following)):
                column.append(values)
            x = following
        obs, actions, rewards, next_obs = (np.stack(column, axis=1).reshape(-1) for column in columns)
        cut = np.tile(np.arange(length) == length - 1, episodes)
        return TransitionDataset.from_arrays(
            obs[:, None],
            actions[:, None],
            rewards,
            np.zeros(len(obs), bool),
            cut,
            next_obs[:, None],
            action_low=-1.0,
            action_high=1.0,
            name="linear",
        )

    @staticmethod
    def policy(gain: float, spread: float = 0.0) -> Policy:
        return policy(Formula(lambda obs: -gain * obs, spread), 1)
