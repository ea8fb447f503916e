"""Evaluation: an environment of its own, fixed seeds, exactly n episodes, nothing of the training touched."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.data.scores import normalized_score
from rl_training.errors import DivergedError
from rl_training.experiment.config import TrainConfig
from rl_training.models.policies import Policy
from rl_training.runtime.envs import EVALUATION, EnvPool
from rl_training.spaces import SpaceSpec

# Evaluation seeds are the same for every run, so that runs are compared on the same episodes. An episode's place
# decides its seed, so the columns stay as they are, however many environments share the work.
_SEED, _COLUMNS = 20_240_229, 8
_SIDE_BY_SIDE = 10


class Evaluator:
    """Runs episodes with the deterministic policy; its environments are made once and kept."""

    def __init__(self, config: TrainConfig, spaces: SpaceSpec) -> None:
        self.config = config
        self.spaces = spaces
        self._pool: EnvPool | None = None

    def start(self) -> None:
        """Start environments that are processes: they take seconds, which training can use."""
        if self.config.env_processes and self.config.eval_episodes:
            self.open(self.config.eval_episodes)

    def open(self, episodes: int) -> EnvPool:
        """Make the environments for `episodes` episodes, if there are not as many yet."""
        count = min(episodes, _SIDE_BY_SIDE)
        if self._pool is None or len(self._pool.envs) < count:
            self.close()
            config = self.config.replace(num_envs=count, seed=_SEED)
            self._pool = EnvPool(config, purpose=EVALUATION)
        return self._pool

    def run(self, policy: Policy, episodes: int) -> dict[str, float]:
        """`eval_return_mean` and its companions over exactly `episodes` episodes."""
        try:
            returns, lengths = _play(self.open(episodes), policy, self.spaces, episodes)
        except BaseException:
            self.close()  # others may have answers on their way that nobody will read
            raise
        result = {
            "eval_return_mean": float(returns.mean()),
            "eval_return_std": float(returns.std()),
            "eval_return_min": float(returns.min()),
            "eval_return_max": float(returns.max()),
            "eval_length_mean": float(lengths.mean()),
            "eval_episodes": float(episodes),
        }
        score = normalized_score(self.config.env_id or "", result["eval_return_mean"])
        if score is not None:
            result["eval_normalized_score"] = score
        return result

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


def _play(
    pool: EnvPool, policy: Policy, spaces: SpaceSpec, episodes: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns and lengths of episodes 0 … n-1; environment i plays the episodes i, i + k, i + 2k, …

    Which episode an environment plays does not depend on how long the others take, so n episodes are the same n
    episodes whatever their lengths.
    """
    width = len(pool.envs)
    returns, lengths = np.zeros(episodes), np.zeros(episodes, dtype=np.int64)
    playing = {i: i for i in range(min(width, episodes))}  # environment -> episode
    obs = np.zeros((width, spaces.obs_dim), dtype=np.float32)
    for i, episode in playing.items():
        obs[i] = pool.reset(i, _place(episode))
    while playing:
        _require_finite(obs)
        active = sorted(playing)
        with torch.inference_mode():
            actions = spaces.to_env(policy.mode(torch.from_numpy(obs[active])).numpy())
        transitions = pool.step(actions, active)
        obs[active] = [transition.obs for transition in transitions]
        _require_finite(obs)  # before a reset replaces the last one of an episode
        for i, transition in zip(active, transitions):
            if not math.isfinite(pool.episodes[i].total):
                raise DivergedError(
                    f"evaluation environment {i} returned the reward {transition.reward}; mend the environment",
                    first_bad=f"reward of evaluation environment {i}",
                )
            if transition.terminated or transition.truncated:
                episode = playing.pop(i)
                returns[episode] = pool.episodes[i].total
                lengths[episode] = len(pool.episodes[i].actions)
                if episode + width < episodes:
                    playing[i] = episode + width
                    obs[i] = pool.reset(i, _place(playing[i]))
    return returns, lengths


def _place(episode: int) -> tuple[int, int]:
    """Column and number of an evaluation episode."""
    number, column = divmod(episode, _COLUMNS)
    return column, number


def _require_finite(obs: NDArray[np.float32]) -> None:
    finite = np.isfinite(obs)
    if not finite.all():
        index = int(np.argmin(finite.all(axis=1)))
        raise DivergedError(
            f"evaluation environment {index} returned a non-finite observation; mend the environment",
            first_bad=f"observation of evaluation environment {index}",
        )
