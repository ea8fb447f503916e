"""Evaluation in separate environments: exactly n episodes with fixed seeds, without any effect on training.

An episode ends when the environment ends it or at a maximum number of steps, because an environment without a time
limit would block the run. Evaluation can be interrupted between any two steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.data.scores import normalized_score
from rl_training.environments.making import time_limit
from rl_training.environments.pool import make_pool
from rl_training.environments.running import Pool, not_finite
from rl_training.environments.user_environments import UserEnvironments
from rl_training.experiment.config import TrainConfig
from rl_training.models.policies import Policy
from rl_training.seeding import EVALUATION, EVALUATION_SEED, evaluation_sampling
from rl_training.spaces import SpaceSpec

# An episode's seed depends on (column, number) only, not on the number of environments.
_COLUMNS = 8
# Maximum number of environments, and the batch size of the policy. It is fixed because the last bit of a row
# depends on the batch size, and an episode must not depend on the other episodes.
_MAX_ENVS = 10
# Maximum length of an evaluation episode if neither the configuration nor the environment has a limit.
UNLIMITED_EPISODE_STEPS = 10_000


class PlayInterrupted(Exception):
    """The evaluation was interrupted; its unfinished episodes are dropped."""


@dataclass(frozen=True)
class Played:
    """Returns and lengths of episodes 0 … n-1; `cut` of them were truncated at the bound.

    `successes`: whether the last step of each reported success; None if no episode reported whether it succeeded.
    """

    returns: NDArray[np.float64]  # [n]
    lengths: NDArray[np.int64]  # [n]
    cut: int
    successes: NDArray[np.float64] | None = None  # [n]

    def episodes(self) -> dict[str, list[float]]:
        """Return and length of each episode, and its success if it is reported, as plain data."""
        found = {"returns": self.returns.tolist(), "lengths": self.lengths.tolist()}
        return found if self.successes is None else {**found, "successes": self.successes.tolist()}


class Evaluator:
    """Plays episodes with fixed seeds; its environments are created once and reused."""

    on_device = False  # whether the policy acts on the learner's device

    def __init__(
        self,
        config: TrainConfig,
        spaces: SpaceSpec,
        given: UserEnvironments | None = None,
        *,
        seed: int = EVALUATION_SEED,
        one_by_one: bool = False,
    ) -> None:
        """`seed` selects the episodes; runs evaluate with the default. `one_by_one`: use a single environment."""
        self.config, self.given = (given or UserEnvironments()).evaluation(config)
        self.spaces = spaces
        self.seed = seed
        self.one_by_one = one_by_one
        self.cut_episodes = 0
        self._pool: Pool | None = None

    @property
    def bound(self) -> int | None:
        """The maximum number of steps of an episode; None if the environment has a time limit."""
        if self.config.eval_max_steps is not None:
            return self.config.eval_max_steps
        return UNLIMITED_EPISODE_STEPS if self._time_limit() is None else None

    def _time_limit(self) -> int | None:
        """The time limit that the environment declares."""
        return time_limit(self.config, self.given)

    @property
    def notice(self) -> str:
        """The warning about truncated episodes; empty if there were none, or if the environment would end them."""
        if not self.cut_episodes or self._time_limit() is not None:
            return ""
        return (
            f"evaluation episodes are cut after {self.bound:,} steps, which {self.config.env_id} does not end by "
            "itself (eval_max_steps)"
        )

    def start(self) -> None:
        """Start environments in other processes now, because they take seconds to start."""
        if not self.config.in_this_process and self.config.eval_episodes:
            self.open(self.config.eval_episodes)

    def open(self, episodes: int) -> Pool:
        """The environments for `episodes` episodes; they are created if there are not enough yet."""
        single = self.one_by_one or (self.given.env is not None and self.given.env.single_instance)
        count = 1 if single else min(episodes, _MAX_ENVS)
        if self._pool is None or self._pool.width < count:
            self.close()
            config = self.config.replace(num_envs=count, seed=self.seed)
            self._pool = make_pool(config, purpose=EVALUATION, given=self.given)
        return self._pool

    def run(
        self, policy: Policy, episodes: int, interrupted: Callable[[], bool] = lambda: False
    ) -> dict[str, float]:
        """The `eval_…` metrics over exactly `episodes` episodes; see `Policy.samples`."""
        return self.summary(self.play(policy, episodes, interrupted))

    def play(
        self,
        policy: Policy,
        episodes: int,
        interrupted: Callable[[], bool] = lambda: False,
        *,
        deterministic: bool | None = None,
    ) -> Played:
        """Play exactly `episodes` episodes; for `deterministic` see `Policy.samples`.

        Raises `PlayInterrupted` as soon as `interrupted()` is true. Truncated episodes are added to `cut_episodes`.
        """
        try:
            played = self._played(policy, policy.samples(deterministic), episodes, interrupted)
        except BaseException:
            self.close()  # a pending answer would be mistaken for the next one
            raise
        self.cut_episodes += played.cut
        return played

    def _played(self, policy: Policy, sampled: bool, episodes: int, interrupted: Callable[[], bool]) -> Played:
        bound = self.bound or math.inf
        act: Act = _sampled(policy, self.spaces, self.seed) if sampled else lambda obs, episodes: policy.mode(obs)
        return _play(self.open(episodes), act, self.spaces, episodes, bound, interrupted)

    def summary(self, played: Played) -> dict[str, float]:
        """The `eval_…` metrics of these episodes."""
        returns, lengths = played.returns, played.lengths
        result = {
            "eval_return_mean": float(returns.mean()),
            "eval_return_std": float(returns.std()),
            "eval_return_min": float(returns.min()),
            "eval_return_max": float(returns.max()),
            "eval_length_mean": float(lengths.mean()),
            "eval_episodes": float(len(returns)),
        }
        if played.successes is not None:
            result["eval_success_rate"] = float(played.successes.mean())
        score = normalized_score(self.config.env_id or "", result["eval_return_mean"])
        if score is not None:
            result["eval_normalized_score"] = score
        return result

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


# Internal actions for observations `[_MAX_ENVS, O]`, given the episode of each row; all other rows are unused.
Act = Callable[[torch.Tensor, dict[int, int]], torch.Tensor]


def _sampled(policy: Policy, spaces: SpaceSpec, seed: int) -> Act:
    """Each episode has its own noise, so that it does not depend on the other episodes."""
    sources: dict[int, np.random.Generator] = {}

    def act(obs: torch.Tensor, episodes: dict[int, int]) -> torch.Tensor:
        noise = np.zeros((len(obs), spaces.action_dim), dtype=np.float32)
        for row, episode in episodes.items():
            if episode not in sources:
                sources[episode] = evaluation_sampling(*_place(episode), seed)
            noise[row] = sources[episode].standard_normal(spaces.action_dim)
        return policy.sample(obs, torch.from_numpy(noise))

    return act


def _play(
    pool: Pool, act: Act, spaces: SpaceSpec, episodes: int, bound: float, interrupted: Callable[[], bool]
) -> Played:
    """Play episodes 0 … n-1, each truncated at `bound` steps.

    Environment i plays the episodes i, i + k, i + 2k, …, independently of the lengths of other episodes. Each
    running episode has its own row in the policy's batch (k is 1 or `_MAX_ENVS`, or there is no second round).
    """
    width, cut = pool.width, 0
    returns, lengths = np.zeros(episodes), np.zeros(episodes, dtype=np.int64)
    successes = np.full(episodes, np.nan)
    obs = np.zeros((_MAX_ENVS, spaces.obs_dim), dtype=np.float32)
    playing = np.arange(width)  # the episode of each environment
    new = active = [*range(min(width, episodes))]
    while active:
        if new:
            first = pool.reset_all(new, [_place(episode) for episode in playing[new].tolist()])
            _require_finite(first, new)
            obs[_row(playing[new])] = first
        rows = _row(playing[active])
        row_episodes = dict(zip(rows.tolist(), playing[active].tolist()))
        over = np.empty(0, dtype=np.int64)
        while not len(over):
            if interrupted():
                raise PlayInterrupted
            with torch.inference_mode():
                actions = act(torch.from_numpy(obs), row_episodes)
            steps = pool.step(spaces.to_env(actions.numpy()[rows]), None if len(active) == width else active)
            obs[rows] = steps.obs
            _require_finite(steps.obs, active)
            _require_finite(pool.totals[active, None], active, steps.rewards)
            ended = steps.terminated | steps.truncated
            over = (ended | (pool.lengths[active] >= bound)).nonzero()[0]
        cut += int((~ended[over]).sum())
        done = [active[i] for i in over]
        returns[playing[done]], lengths[playing[done]] = pool.totals[done], pool.lengths[done]
        if steps.success is not None:
            successes[playing[done]] = steps.success[over]
        playing[done] += width
        new = [i for i in done if playing[i] < episodes]
        active = [i for i in active if playing[i] < episodes]
    return Played(returns, lengths, cut, None if np.isnan(successes).all() else np.nan_to_num(successes))


def _place(episode: int) -> tuple[int, int]:
    """Column and number of an evaluation episode."""
    number, column = divmod(episode, _COLUMNS)
    return column, number


def _row(episodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of episodes in the policy's batch."""
    return episodes % _MAX_ENVS


def _require_finite(
    values: NDArray[Any], environments: list[int], rewards: NDArray[np.float64] | None = None
) -> None:
    """Raise if a row of `values`, observations or the returns so far, is not finite; `rewards`: the last ones."""
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        first = int(np.argmin(finite))
        env = f"evaluation environment {environments[first]}"
        if rewards is None:
            raise not_finite(env, "observation")
        raise not_finite(env, "reward", f"the reward {rewards[first]}")
