"""Functional JAX environments: Brax (interface of 0.14) and MuJoCo Playground (0.2). Run on a CPU, not on a GPU.

Their own wrappers overwrite the last observation of an episode and reset to a cached first state. Here `step` and
`reset` of one simulation are vectorised and compiled, rows that ended are reset with new keys, and both
observations are kept.

Tensors are exchanged by DLPack without copies; each side waits for the stream of the other. Results are then copied
at once: JAX may overwrite their memory as soon as the next step runs, which waits for its actions, which come after
these copies.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from rl_training.environments.adapters.base import as_flags, copied
from rl_training.environments.tensor_env import TensorStep
from rl_training.errors import ConfigError

# JAX would reserve three quarters of the GPU; it reads this before its first computation.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


class BraxAdapter:
    """`num_envs` simulations of an environment with `reset(rng) -> State` and `step(state, action) -> State`.

    Import this module before jax on a GPU. Actions are in [-1, 1].
    """

    def __init__(
        self, env: Any, num_envs: int, *, max_episode_steps: int | None = None, group: str = "state"
    ) -> None:
        """`max_episode_steps` truncates episodes; `group` names the observations to use if there are several."""
        _require_single(env)
        import jax

        self._jax: Any = jax
        outline = jax.eval_shape(env.reset, jax.random.PRNGKey(0))
        self.group = group if isinstance(outline.obs, Mapping) else None
        shape = self._observations(outline).shape
        if len(shape) != 1:
            raise ConfigError(f"Brax: an observation has shape {list(shape)}; flat vectors are needed")
        self.env, self.num_envs, self.max_episode_steps = env, num_envs, max_episode_steps
        self.device = torch.device("cuda:0" if jax.default_backend() == "gpu" else "cpu")
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.single_action_space = gym.spaces.Box(-1.0, 1.0, (env.action_size,), np.float32)
        self._start, self._advance = jax.jit(self._started), jax.jit(self._advanced)
        self._carried: Any = None  # states, steps of the running episodes, key

    def reset(self, seed: int) -> Tensor:
        """Start an episode in every simulation; later episodes draw keys from the one that `seed` makes."""
        jax = self._jax
        key = jax.device_put(jax.random.PRNGKey(seed), jax.devices()[0])  # as actions are; else JAX compiles twice
        self._carried, obs = self._start(key)
        return copied(from_dlpack(obs), self.device)

    def step(self, actions: Tensor) -> TensorStep:
        given = self._jax.dlpack.from_dlpack(actions.detach().to(self.device).contiguous())
        self._carried, answer = self._advance(self._carried, given)
        obs, rewards, terminated, truncated, final_obs = map(from_dlpack, answer)
        return TensorStep(
            copied(obs, self.device),
            copied(rewards, self.device),
            as_flags(terminated, self.device),
            as_flags(truncated, self.device),
            copied(final_obs, self.device),
        )

    def close(self) -> None:
        """Free the states."""
        self._carried = None

    def _observations(self, state: Any) -> Any:
        return state.obs if self.group is None else state.obs[self.group]

    def _initial_states(self, key: Any) -> Any:
        return self._jax.vmap(self.env.reset)(self._jax.random.split(key, self.num_envs))

    def _started(self, key: Any) -> tuple[Any, Any]:
        key, subkey = self._jax.random.split(key)
        states = self._initial_states(subkey)
        return (states, self._jax.numpy.zeros(self.num_envs, "int32"), key), self._observations(states)

    def _advanced(self, carried: Any, actions: Any) -> tuple[Any, Any]:
        """One step of all simulations, and the resets of those that ended; flags are bytes, as DLPack needs."""
        jax = self._jax
        states, steps, key = carried
        after = jax.vmap(self.env.step)(states, actions)
        steps = steps + 1
        done = after.done.astype(bool)
        truncated = after.info["truncation"].astype(bool) if "truncation" in after.info else done & False
        terminated = done & ~truncated
        if self.max_episode_steps is not None:
            truncated = truncated | (steps >= self.max_episode_steps)
        ended = terminated | truncated
        key, subkey = jax.random.split(key)

        def chosen(first: Any, other: Any) -> Any:
            return jax.numpy.where(ended.reshape(-1, *[1] * (first.ndim - 1)), first, other)

        states = jax.lax.cond(
            ended.any(), lambda: jax.tree.map(chosen, self._initial_states(subkey), after), lambda: after
        )
        flags = terminated.astype("uint8"), truncated.astype("uint8")
        answer = self._observations(states), after.reward, *flags, self._observations(after)
        return (states, steps * ~ended, key), answer


def _require_single(env: Any) -> None:
    """Raise for an environment that resets itself or is vectorised already."""
    layer = env
    while layer is not None:
        name = type(layer).__name__
        if "AutoReset" in name or "Vmap" in name:
            raise ConfigError(
                f"Brax: {name} loses the last observation of an episode or vectorises a second time; pass the "
                "environment without it, as from brax.envs.get_environment or mujoco_playground.registry.load"
            )
        layer = vars(layer).get("env")
