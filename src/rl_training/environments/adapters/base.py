"""Shared by the adapters: conversion to tensors, and the two observations of a row whose episode ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rl_training.environments.tensor_env import TensorStep
from rl_training.errors import ConfigError


def copied(values: Any, device: torch.device) -> Tensor:
    """A float32 copy of an array or tensor; libraries reuse their buffers."""
    return torch.as_tensor(values).to(device, torch.float32, copy=True)


def as_flags(values: Any, device: torch.device) -> Tensor:
    """A boolean copy of an array or tensor `[N]`."""
    return torch.as_tensor(values).to(device, torch.bool, copy=True)


def by_end(ended: Tensor, at_end: Tensor, otherwise: Tensor) -> Tensor:
    """The rows of `at_end` whose episode ended, and all other rows of `otherwise`."""
    return torch.where(ended.unsqueeze(1), at_end, otherwise)


def flat_box(space: Any, name: str, remedy: str) -> gym.spaces.Box:
    """A float32 Box with the shape and bounds of a space, which need not be of Gymnasium's class."""
    if not hasattr(space, "low") or len(space.shape) != 1:
        raise ConfigError(f"{name}: {space} is not a flat vector: {remedy}")
    low, high = (np.broadcast_to(bound, space.shape).astype(np.float32) for bound in (space.low, space.high))
    return gym.spaces.Box(low, high, dtype=np.float32)


class Adapter:
    """A `TensorEnv` made of an environment with `reset(seed=…)` and `step(actions)` as in Gymnasium, on batches.

    A subclass defines what happens when episodes end.
    """

    def __init__(
        self,
        env: Any,
        *,
        observation_space: gym.spaces.Box,
        action_space: gym.Space[Any],
        device: torch.device,
        max_episode_steps: int | None,
    ) -> None:
        self.env, self.device = env, device
        self.num_envs = int(env.num_envs)
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.max_episode_steps = max_episode_steps

    def episode_ends(self, after: Tensor, ended: Tensor, info: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """The observations to act on and the true successors; `after` is what the environment returned."""
        raise NotImplementedError

    def observations(self, obs: Any) -> Any:
        """The part of the environment's observations that is used."""
        return obs

    def actions(self, actions: Tensor) -> Any:
        """Actions in the form that the environment expects."""
        return actions

    def reset(self, seed: int) -> Tensor:
        """Start an episode in every simulation; later episodes draw from the random state that `seed` sets."""
        return copied(self.observations(self.env.reset(seed=seed)[0]), self.device)

    def step(self, actions: Tensor) -> TensorStep:
        # A later reset may change tensors of this step in place, which tensors of inference mode do not allow.
        with torch.inference_mode(False), torch.no_grad():
            answer = self.env.step(self.actions(actions.to(self.device, copy=True)))
            after = copied(self.observations(answer[0]), self.device)
            rewards = copied(answer[1], self.device)
            terminated, truncated = (as_flags(flags, self.device) for flags in answer[2:4])
            obs, final_obs = self.episode_ends(after, terminated | truncated, answer[4])
        return TensorStep(obs, rewards, terminated, truncated, final_obs)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


class ManagerBasedAdapter(Adapter):
    """What Isaac Lab and mjlab have in common: observations in groups, and usually actions without bounds."""

    def __init__(self, env: Any, name: str, group: str, action_limit: float | None) -> None:
        """`group` names the observations to use; actions without bounds are bounded by ±`action_limit`."""
        bare, self.group = env.unwrapped, group
        groups = bare.single_observation_space.spaces
        if group not in groups:
            raise ConfigError(f"{name}: no observations {group!r}; pass group=…, one of {', '.join(groups)}")
        actions = flat_box(bare.single_action_space, name, "continuous actions are needed")
        if not actions.is_bounded():
            if action_limit is None:
                raise ConfigError(f"{name}: the actions have no bounds; pass action_limit=1.0 for [-1, 1]")
            actions = gym.spaces.Box(-action_limit, action_limit, actions.shape, np.float32)
        super().__init__(
            env,
            observation_space=flat_box(groups[group], name, "set concatenate_terms=True in its configuration"),
            action_space=actions,
            device=torch.device(bare.device),
            max_episode_steps=int(bare.max_episode_length) or None,
        )
        self.finite_horizon = bool(bare.cfg.is_finite_horizon)

    def observations(self, obs: Any) -> Any:
        return obs[self.group]

    def step(self, actions: Tensor) -> TensorStep:
        """With `is_finite_horizon` the time limit is part of the task: reaching it terminates the episode."""
        step = super().step(actions)
        if not self.finite_horizon:
            return step
        ended = step.terminated | step.truncated
        return step._replace(terminated=ended, truncated=torch.zeros_like(ended))
