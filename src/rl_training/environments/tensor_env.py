"""`TensorEnv`: N simulations stepped in one call that exchanges tensors `[N, …]`, on a CPU or a GPU.

An environment that resets itself overwrites the last observation of an episode. A stored transition needs that
observation, so `TensorStep` has it as `final_obs`, and an environment that cannot provide it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import gymnasium as gym
import torch
from torch import Tensor

from rl_training.environments.running import WrongAnswer
from rl_training.spaces import SpaceSpec


class TensorStep(NamedTuple):
    """The answers of N simulations; those whose episode ended are already reset."""

    obs: Tensor  # [N, O] to act on next: where an episode ended, the first observation of the next one
    rewards: Tensor  # [N]
    terminated: Tensor  # [N] bool
    truncated: Tensor  # [N] bool
    final_obs: Tensor  # [N, O] the true successor in every row; equals `obs` where no episode ended


@runtime_checkable
class TensorEnv(Protocol):
    """N simulations of one environment. Every reset draws a new initial state.

    Two optional methods make a resumed run exact: `state_dict()` returns tensors by name, everything that later
    steps depend on, including random states, and `load_state_dict(state)` restores them in place. An optional
    attribute `capturable = True` declares that `step` runs only PyTorch operations on `device`, with fixed shapes,
    changes its tensors in place and draws from `generator`, its `torch.Generator`; then it becomes part of a CUDA
    graph.
    """

    num_envs: int
    device: torch.device
    single_observation_space: gym.Space[Any]
    single_action_space: gym.Space[Any]
    max_episode_steps: int | None

    def reset(self, seed: int) -> Tensor:
        """Start an episode in every simulation; returns the first observations `[N, O]`."""

    def step(self, actions: Tensor) -> TensorStep:
        """Step every simulation; `actions` are in the environment's units, `[N, A]` or `[N]` integers."""

    def close(self) -> None:
        """Free what the environment holds."""


class ActionScaling:
    """`SpaceSpec.to_env` for tensors on one device, with bit-identical results."""

    def __init__(self, spaces: SpaceSpec, device: torch.device) -> None:
        self._start = spaces.start if spaces.discrete else None
        self._dtype = getattr(torch, spaces.action_dtype)
        if not spaces.discrete:
            self._low, self._high, self._least, self._most = (
                torch.from_numpy(bound).to(device) for bound in spaces.scaling
            )

    def __call__(self, actions: Tensor) -> Tensor:
        if self._start is not None:
            return (actions + self._start).to(self._dtype)
        share = actions.double().clamp(-1.0, 1.0) * 0.5 + 0.5
        scaled = (1.0 - share) * self._low + share * self._high
        return scaled.to(self._dtype).clamp(self._least, self._most)


_TYPES = {"rewards": (torch.float32, torch.float64), "terminated": (torch.bool,), "truncated": (torch.bool,)}


class CheckedEnv:
    """A `TensorEnv` whose answers must have the promised shapes, types and devices; reads nothing from a GPU.

    Raises `WrongAnswer`; otherwise a tensor with one row, for example, would be broadcast to all simulations.
    """

    def __init__(self, env: TensorEnv, spaces: SpaceSpec) -> None:
        self.env = env
        self.device = torch.empty(0, device=env.device).device
        self._shapes = {True: (env.num_envs, spaces.obs_dim), False: (env.num_envs,)}

    def reset(self, seed: int) -> Tensor:
        obs = self.env.reset(seed)
        self._require_form({"obs": obs})
        return obs

    def step(self, actions: Tensor) -> TensorStep:
        step: Any = self.env.step(actions)
        if not isinstance(step, TensorStep):
            raise WrongAnswer(f"step returned a {type(step).__name__}, not a TensorStep")
        self._require_form(step._asdict())
        return step

    def state_dict(self) -> dict[str, Tensor]:
        """The state of an environment that has `state_dict`."""
        state: dict[str, Any] = self.env.state_dict()  # type: ignore[attr-defined]
        for name, value in state.items():
            if not isinstance(value, Tensor):
                kind = type(value).__name__
                raise WrongAnswer(f"state_dict has values that are not tensors: {name!r} is a {kind}")
        return state

    def _require_form(self, parts: Mapping[str, Any]) -> None:
        for name, part in parts.items():
            if not isinstance(part, Tensor):
                raise WrongAnswer(f"{name} is a {type(part).__name__}, not a tensor")
            if part.shape != (shape := self._shapes[name.endswith("obs")]):
                raise WrongAnswer(f"{name} has shape {list(part.shape)}, expected {list(shape)}")
            if part.dtype not in (types := _TYPES.get(name, (torch.float32,))):
                raise WrongAnswer(f"{name} has type {part.dtype}, expected {types[0]}")
            if part.device != self.device:
                raise WrongAnswer(f"{name} is on {part.device}, the environment on {self.device}")
