"""`Collector`: act, step every environment, store the transitions, reset environments whose episode has ended.

The last transition of an episode contains its final observation, not the first of the next episode. `done` is 1
only if the episode terminated, so that truncated episodes bootstrap. A reset does not add a row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training import seeding
from rl_training.algorithms.base import Learner
from rl_training.algorithms.execution import Draws, HeldNoise
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.environments.pool import too_long
from rl_training.environments.running import BATCH, Episode, Pool, Steps, not_finite
from rl_training.errors import DivergedError, EnvironmentFailure
from rl_training.experience.acting import ActingPolicy
from rl_training.experience.base import WINDOW, Experience
from rl_training.experiment.checkpointing import Saved
from rl_training.spaces import SpaceSpec

MANY = 64  # rows for which a forward pass on a GPU, with both copies, is faster than one on a CPU
LARGEST_REWARD = float(np.finfo(np.float32).max)  # larger rewards overflow to infinity in a row


def random_actions(rng: Draws, spaces: SpaceSpec, count: int) -> Any:
    """Uniform internal actions: `[n, A]` in [-1, 1], or `[n]` integers from 0; as `rng` draws them."""
    if spaces.discrete:
        return rng.integers(spaces.num_actions, size=count)
    actions = rng.uniform(-1.0, 1.0, (count, spaces.action_dim))
    return actions if isinstance(actions, torch.Tensor) else actions.astype(np.float32)


class Collector(Experience):
    """Steps a `Pool` with the exploration policy of a learner and fills a replay buffer."""

    draws: np.random.Generator | HeldNoise
    inexact_remedy = "end episodes with wrappers: [{TimeLimit: {max_episode_steps: 1000}}]"

    def __init__(
        self, envs: Pool, spaces: SpaceSpec, learner: Learner, buffer: ReplayBuffer, **options: Any
    ) -> None:
        """`options`: those of `Experience`."""
        self.envs, self.rng = envs, seeding.exploration(envs.seed)
        super().__init__(spaces, learner, buffer, envs.width, self.rng, **options)
        self.acting = ActingPolicy(learner, copies=None if self.width < MANY else False)
        self.returns: deque[float] = deque(maxlen=WINDOW)
        self.lengths: deque[int] = deque(maxlen=WINDOW)
        self.obs: NDArray[np.float32] = np.empty((0, spaces.obs_dim), dtype=np.float32)
        self._chosen: NDArray[Any] = np.empty(0)  # internal actions that were sent to the environments

    def start(self) -> None:
        self._set_obs(self._reset(range(self.width)))

    def step(self) -> None:
        """Step every environment once."""
        self.act()
        self.receive()

    def act(self) -> None:
        self.send(self._actions())

    def send(self, actions: NDArray[Any], converted: NDArray[Any] | None = None) -> None:
        """Send internal `actions` to the environments; `converted`: the same in the environments' units."""
        if not np.isfinite(actions).all():
            self._raise_bad_action()
        self._chosen = actions
        try:
            self.envs.send(self.spaces.to_env(actions) if converted is None else converted)
        except EnvironmentFailure:
            self.envs.forget_step()
            raise

    def receive(self) -> None:
        try:
            steps = self.envs.receive()
        except EnvironmentFailure:
            self.envs.forget_step()
            raise
        scale, shift = self.reward_map
        with np.errstate(over="ignore", invalid="ignore"):  # `_check_rows` raises
            rewards = scale * steps.rewards.astype(np.float32) + shift
        dones = self.buffer.dones(steps.terminated, steps.truncated)
        rows = self.layout.pack(self.obs, self._chosen, rewards, steps.obs, dones)
        self._check_rows(rows, steps, rewards)
        self.buffer.add(rows)
        self.steps += self.width
        over = steps.terminated | steps.truncated
        self._scale_rewards(steps.rewards, over)
        ended = over.nonzero()[0].tolist()
        if ended:
            self.returns.extend(self.envs.totals[ended].tolist())
            self.lengths.extend(self.envs.lengths[ended].tolist())
            for index in ended:
                self.buffer.end_episode(index, int(self.envs.lengths[index]), self.reward_map)
            self.obs = steps.obs  # if a reset fails, a resumed run continues the other episodes
            steps.obs[ended] = self._reset(ended)
        self._set_obs(steps.obs)

    def _set_obs(self, obs: NDArray[np.float32]) -> None:
        """Set the observations to act on and add them to `moments`; the last one of an episode is not added."""
        self.obs = obs
        self._count(obs)

    def _count(self, obs: NDArray[np.float32]) -> None:
        if self.moments is not None:
            self.moments.add(obs)
            mean, std = (torch.from_numpy(m.astype(np.float32)) for m in (self.moments.mean, self.moments.std))
            self.learner.normalize_by(mean, std)

    def _actions(self) -> NDArray[Any]:
        """Internal actions, uniform or from the exploration policy."""
        if self.acts_randomly:
            return random_actions(self.rng, self.spaces, len(self.obs))
        with torch.inference_mode():
            obs = torch.from_numpy(self.obs)
            if self.acting.device.type != "cpu":
                obs = obs.to(self.acting.device)
            return self.learner.explore(self.acting.current(), obs, self.draws, self.progress).cpu().numpy()

    def _check_rows(self, rows: NDArray[np.float32], steps: Steps, rewards: NDArray[np.float32]) -> None:
        """Raise if `rows` are not finite; `rewards` are those of `steps` after `reward_map`."""
        if np.isfinite(rows).all():
            return
        self._require_finite(steps.obs, range(self.width), steps.rewards.tolist())
        index = int(np.argmin(np.isfinite(rewards)))
        scale, shift = self.reward_map
        raise DivergedError(
            f"environment {index} returned the reward {steps.rewards[index]:g} at step {self.steps}, which the "
            f"scaling of the data's rewards (scale {scale:g}, shift {shift:g}) makes infinite; lower reward_scale",
            first_bad=f"scaled reward of environment {index}",
        )

    def _require_finite(self, obs: NDArray[Any], indices: Sequence[int], rewards: Sequence[float] = ()) -> None:
        """Raise if an observation or reward of the environments `indices` is not finite."""
        finite, when = np.isfinite(obs).all(axis=1), f" at step {self.steps}"
        if not finite.all():
            raise not_finite(f"environment {indices[int(finite.argmin())]}", "observation", when=when)
        for index, reward in zip(indices, rewards):
            if not abs(reward) <= LARGEST_REWARD:
                raise not_finite(f"environment {index}", "reward", f"the reward {reward}", when)

    def _reset(self, indices: Sequence[int]) -> NDArray[np.float32]:
        obs = self.envs.reset_all(indices)
        self._require_finite(obs, indices)
        return obs

    def statistics(self) -> dict[str, float]:
        if not self.returns:
            return {}
        return {
            "rollout_return_mean": float(np.mean(self.returns)),
            "rollout_length_mean": float(np.mean(self.lengths)),
        }

    def unreplayable(self) -> list[str]:
        return self.envs.unreplayable()

    def record(self) -> dict[str, Any]:
        return self._record(
            rng=self.rng.bit_generator.state,
            returns=list(self.returns),
            lengths=list(self.lengths),
            episodes=self.envs.record(),
        )

    def save(self) -> Saved:
        own = {name: torch.from_numpy(values) for name, values in self.envs.save().items()}
        return self._saved({"obs": torch.from_numpy(self.obs)} | own)

    def _restore(self, record: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> list[str]:
        """Restore the random state of exploration, and continue or replay the running episodes."""
        self.rng.bit_generator.state = record["rng"]
        self.returns.extend(record["returns"])
        self.lengths.extend(record["lengths"])
        saved = {name: tensor.numpy() for name, tensor in tensors.items()}
        episodes = [_restored(episode, saved.get(f"actions.{i}")) for i, episode in enumerate(record["episodes"])]
        obs = saved["obs"].copy()
        if len(episodes) != self.width or len(obs) != self.width:
            raise ValueError(f"{len(episodes)} running episodes for {self.width} environments")
        if f"{BATCH}state" in saved:
            return self._load_episodes(obs, episodes, saved)
        return self.replay_episodes(obs, episodes)

    def _load_episodes(
        self, obs: NDArray[np.float32], episodes: Sequence[Episode], saved: Mapping[str, NDArray[Any]]
    ) -> list[str]:
        """Continue episodes that a batched pool saved, or reset all environments."""
        if self.envs.load(episodes, saved):
            self.obs = obs
            return []
        self._cut(range(self.width))
        self.start()
        return ["running episodes are the state of batched environments, which these cannot load: all were reset"]

    def replay_episodes(self, obs: NDArray[np.float32], episodes: Sequence[Episode]) -> list[str]:
        """Replay `episodes`, whose last observations are `obs`; returns a phrase for each that was not exact."""
        self.obs = obs
        problems = []
        for i, episode in enumerate(episodes):
            reached = self.envs.replay(i, episode)
            if reached is None or not np.array_equal(reached, obs[i]):
                cause = too_long(episode.steps) if reached is None else "did not replay its episode exactly"
                problems.append(f"environment {i} {cause} and was reset")
                self._cut([i])
                obs[i] = self._reset([i])[0]
                self._count(obs[i : i + 1])
        return problems

    def close(self) -> None:
        self.envs.close()


def _restored(saved: Mapping[str, Any], actions: NDArray[Any] | None) -> Episode:
    steps = int(saved["steps"])
    replayed: list[Any] | None = None
    if saved.get("replayable", True):
        replayed = [] if actions is None else list(actions)
        if len(replayed) != steps:
            raise ValueError(f"an episode of {steps} steps has {len(replayed)} actions")
    return Episode(int(saved["number"]), int(saved["seed"]), replayed, float(saved["total"]), steps)


def step_together(experiences: Sequence[Experience]) -> None:
    """Step the batched environments of several collectors in one call, without any effect on the results."""
    from rl_training.environments.batched import join

    join([one.envs for one in experiences if isinstance(one, Collector)])
