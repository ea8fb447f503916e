"""Collecting experience: act, step every environment, store what happened, reset what ended.

What is stored is what happened: the final observation of an episode, never the first of the next; `done` only where
the episode terminated, so that a time limit bootstraps; and no row for a reset.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.algorithms.base import Learner
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.transitions import RowLayout
from rl_training.errors import DivergedError, EnvironmentFailure
from rl_training.runtime.acting import ActingPolicy
from rl_training.runtime.envs import EnvPool, Episode
from rl_training.runtime.finite import check_finite
from rl_training.spaces import SpaceSpec

_WINDOW = 100


class Collector:
    """Steps an `EnvPool` with a learner's exploring policy and fills a replay buffer."""

    def __init__(
        self,
        envs: EnvPool,
        spaces: SpaceSpec,
        learner: Learner,
        buffer: ReplayBuffer,
        *,
        learning_starts: int,
        total_steps: int,
        reward_map: tuple[float, float] = (1.0, 0.0),
    ) -> None:
        """`reward_map`: the (scale, shift) of the data that experience is mixed with; returns stay the game's."""
        self.envs = envs
        self.spaces = spaces
        self.learner = learner
        self.buffer = buffer
        self.layout = RowLayout.of(spaces)
        self.learning_starts = learning_starts
        self.total_steps = total_steps
        self.reward_map = reward_map
        self.acting = ActingPolicy(learner)
        self.rng = np.random.default_rng(np.random.SeedSequence((envs.seed, 0xAC7)))
        self.steps = 0
        self.returns: deque[float] = deque(maxlen=_WINDOW)
        self.lengths: deque[int] = deque(maxlen=_WINDOW)
        self.obs: NDArray[np.float32] = np.empty((0, spaces.obs_dim), dtype=np.float32)

    def start(self) -> None:
        """Reset every environment."""
        self.obs = np.stack([self._checked(i, self.envs.reset(i)) for i in range(len(self.envs.envs))])

    def step(self) -> None:
        """One step of every environment."""
        actions = self._actions()
        try:
            transitions = self.envs.step(self.spaces.to_env(actions))
        except EnvironmentFailure:
            self.envs.forget_step()
            raise
        next_obs = np.stack([self._checked(i, t.obs) for i, t in enumerate(transitions)])
        rewards = np.array([t.reward for t in transitions], dtype=np.float32)
        if not np.all(np.isfinite(rewards)):
            bad = int(np.flatnonzero(~np.isfinite(rewards))[0])
            raise DivergedError(
                f"environment {bad} returned the reward {transitions[bad].reward} at step {self.steps}; "
                "mend the environment",
                first_bad=f"reward of environment {bad}",
            )
        dones = np.array([t.terminated for t in transitions], dtype=np.float32)
        scale, shift = self.reward_map
        self.buffer.add(self.layout.pack(self.obs, actions, scale * rewards + shift, next_obs, dones))
        self.steps += len(transitions)
        for i, transition in enumerate(transitions):
            if transition.terminated or transition.truncated:
                episode = self.envs.episodes[i]
                self.returns.append(episode.total)
                self.lengths.append(len(episode.actions))
                next_obs[i] = self._checked(i, self.envs.reset(i))
        self.obs = next_obs

    def _actions(self) -> NDArray[Any]:
        """Internal actions: uniform before `learning_starts`, the learner's exploration after."""
        n = len(self.obs)
        if self.steps < self.learning_starts:
            if self.spaces.discrete:
                return self.rng.integers(self.spaces.num_actions, size=n)
            return self.rng.uniform(-1.0, 1.0, (n, self.spaces.action_dim)).astype(np.float32)
        progress = min(self.steps / self.total_steps, 1.0)
        with torch.inference_mode():
            obs = torch.from_numpy(self.obs)
            actions: NDArray[Any] = self.learner.explore(self.acting.current(), obs, self.rng, progress).numpy()
        if not np.all(np.isfinite(actions)):
            # The networks are to blame, not the environment that would be stepped with this.
            check_finite(self.learner, f"by step {self.steps}")
            raise DivergedError(
                f"the policy's action is not finite at step {self.steps}; lower learning_rate", first_bad="action"
            )
        return actions

    def _checked(self, index: int, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        if not np.all(np.isfinite(obs)):
            raise DivergedError(
                f"environment {index} returned a non-finite observation at step {self.steps}; mend the environment",
                first_bad=f"observation of environment {index}",
            )
        return obs

    def statistics(self) -> dict[str, float]:
        """Means over the last episodes, by the names of the TensorBoard tags."""
        if not self.returns:
            return {}
        return {
            "rollout/ep_rew_mean": float(np.mean(self.returns)),
            "rollout/ep_len_mean": float(np.mean(self.lengths)),
        }

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain values of the collecting state, running episodes included."""
        tensors = {"obs": torch.from_numpy(self.obs)}
        for i, episode in enumerate(self.envs.episodes):
            if episode.actions:
                tensors[f"actions.{i}"] = torch.from_numpy(np.stack(episode.actions))
        record = {
            "steps": self.steps,
            "rng": self.rng.bit_generator.state,
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "episodes": [
                {"number": e.number, "seed": e.seed, "total": e.total, "steps": len(e.actions)}
                for e in self.envs.episodes
            ],
        }
        return tensors, record

    def load_state_dict(self, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> list[str]:
        """Restore, replaying unfinished episodes; returns what could not be restored exactly."""
        self.steps = int(record["steps"])
        self.rng.bit_generator.state = record["rng"]
        self.returns.extend(record["returns"])
        self.lengths.extend(record["lengths"])
        self.obs = tensors["obs"].numpy().copy()
        if len(record["episodes"]) != len(self.envs.envs) or len(self.obs) != len(self.envs.envs):
            raise ValueError(f"{len(record['episodes'])} running episodes for {len(self.envs.envs)} environments")
        problems = []
        for i, saved in enumerate(record["episodes"]):
            actions = tensors[f"actions.{i}"].numpy() if saved["steps"] else ()
            episode = Episode(int(saved["number"]), int(saved["seed"]), list(actions), float(saved["total"]))
            if not np.array_equal(self.envs.replay(i, episode), self.obs[i]):
                problems.append(f"environment {i} did not replay its episode exactly and was reset")
                self.obs[i] = self._checked(i, self.envs.reset(i))
        return problems
