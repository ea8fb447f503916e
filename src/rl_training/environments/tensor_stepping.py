"""`CheckedEnv`: a `TensorEnv` whose answers must have the promised form.

Only shapes, types and devices are checked, so the host reads nothing from a GPU. Values are checked elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_training.environments.running import WrongAnswer
from rl_training.environments.tensor_env import TensorEnv, TensorStep
from rl_training.spaces import SpaceSpec

_TYPES = {
    "rewards": (torch.float32, torch.float64),
    "terminated": (torch.bool,),
    "truncated": (torch.bool,),
}


class CheckedEnv:
    """Raises `WrongAnswer`; otherwise a tensor with one row, for example, would be broadcast to all simulations."""

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
