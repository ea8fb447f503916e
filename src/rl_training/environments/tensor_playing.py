"""Evaluation in a `TensorEnv`: each simulation plays its share of the episodes, all in one call per step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rl_training.environments.playing import Evaluator, Played, PlayInterrupted
from rl_training.environments.running import Blame, not_finite
from rl_training.environments.tensor_env import ActionScaling, CheckedEnv, TensorEnv
from rl_training.environments.user_environments import TensorEnvMaker, UserEnvironments, tensor_maker
from rl_training.experiment.config import TrainConfig
from rl_training.models.policies import Policy
from rl_training.spaces import SpaceSpec

# Simulations at most, if the environment is made for the evaluation.
_MAX_SIMULATIONS = 4_096
# Steps between two looks at whether all episodes have ended; each of them waits for the device.
_STEPS_UNSEEN = 16


def make_evaluator(
    config: TrainConfig, spaces: SpaceSpec, given: UserEnvironments | None = None, **options: Any
) -> Evaluator:
    """The evaluator for the configured environment; `options` are further arguments of `Evaluator`."""
    maker = tensor_maker(*(given or UserEnvironments()).evaluation(config))
    if maker is None:
        return Evaluator(config, spaces, given, **options)
    return TensorEvaluator(config, spaces, given, maker=maker, **options)


class TensorEvaluator(Evaluator):
    """Simulation i of n plays the episodes i, i + n, i + 2n, …, on the device of the policy.

    The rest of an episode that is cut at the bound does not count. An environment without a time limit may never
    end it, so there the next episode starts where the last one was cut.
    """

    on_device = True

    def __init__(self, *arguments: Any, maker: TensorEnvMaker, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._maker = maker
        self._env: TensorEnv | None = None

    def _time_limit(self) -> int | None:
        return self._maker.time_limit if self._env is None else self._env.max_episode_steps

    def start(self) -> None:
        """Nothing to start: the environment is made by the first evaluation."""

    def _played(self, policy: Policy, sampled: bool, episodes: int, interrupted: Callable[[], bool]) -> Played:
        device = next((parameter.device for parameter in policy.parameters()), torch.device("cpu"))
        env = self._opened(episodes, device)
        generator = torch.Generator(device).manual_seed(self.seed)

        def act(obs: Tensor) -> Tensor:
            if not sampled:
                return policy.mode(obs)
            return policy.sample(
                obs, torch.randn((len(obs), self.spaces.action_dim), generator=generator, device=device)
            )

        scaling, limited = ActionScaling(self.spaces, device), env.max_episode_steps is not None
        count = _Count(env.num_envs, episodes, self.bound, device, skips_rest=limited)
        checked, name = CheckedEnv(env, self.spaces), f"evaluation environment {type(env).__name__}"
        blame = Blame(lambda: f"{name} failed (seed {self.seed}, step {count.steps})")
        with torch.no_grad():
            with blame:
                obs = checked.reset(self.seed).to(device)
            while not count.complete():
                if interrupted():
                    raise PlayInterrupted
                actions = scaling(act(obs)).to(env.device)
                with blame:
                    answer = checked.step(actions)
                obs = answer.obs.to(device)
                count.add(*(part.to(device) for part in answer[1:]))
        return count.played()

    def _opened(self, episodes: int, device: torch.device) -> TensorEnv:
        wanted = min(episodes, _MAX_SIMULATIONS)
        if self._env is None or (self._env.num_envs < wanted and not self._maker.single_instance):
            self.close()
            self._env = self._maker(wanted, device, self.config.env_kwargs)
        return self._env

    def close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            self._maker.close(env)


class _Count:
    """Returns and lengths of the first episodes of every simulation, as tensors."""

    def __init__(
        self, width: int, episodes: int, bound: int | None, device: torch.device, *, skips_rest: bool
    ) -> None:
        """`skips_rest`: after a cut, wait until the simulation ends its episode."""
        self._skips_rest = skips_rest
        self._rest = torch.zeros(width, dtype=torch.bool, device=device)  # simulations that wait
        self._episodes, self._bound, self.steps = episodes, bound or math.inf, 0
        self._index = torch.arange(width, device=device)
        self._next = self._index.clone()  # the episode that each simulation plays
        self._totals = torch.zeros(width, dtype=torch.float64, device=device)
        self._length = torch.zeros(width, dtype=torch.int64, device=device)
        # The last entry receives what is not recorded.
        self._returns = torch.full((episodes + 1,), math.nan, dtype=torch.float64, device=device)
        self._lengths = torch.zeros(episodes + 1, dtype=torch.int64, device=device)
        self._cut = torch.zeros(episodes + 1, dtype=torch.bool, device=device)
        self._finite = torch.ones(width, dtype=torch.bool, device=device)

    def add(self, rewards: Tensor, terminated: Tensor, truncated: Tensor, final_obs: Tensor) -> None:
        """Add one step of every simulation."""
        playing, ended = (self._next < self._episodes) & ~self._rest, terminated | truncated
        self._finite &= ~playing | (rewards.isfinite() & final_obs.isfinite().all(1))
        self._totals += rewards
        self._length += 1
        over = ended | (self._length >= self._bound) & ~self._rest
        place = torch.where(over & playing, self._next, self._episodes)
        self._returns.index_copy_(0, place, self._totals)
        self._lengths.index_copy_(0, place, self._length)
        self._cut.index_copy_(0, place, ~ended)
        self._next += (over & ~self._rest) * len(self._index)
        if self._skips_rest:
            self._rest = (self._rest | over) & ~ended
        self._totals.masked_fill_(over, 0.0)
        self._length.masked_fill_(over, 0)
        self.steps += 1

    def complete(self) -> bool:
        """Whether all episodes have ended; asks the device only now and then."""
        if self.steps % _STEPS_UNSEEN:
            return False
        if not bool(self._finite.all()):
            index = int((~self._finite).long().argmax())
            raise not_finite(f"evaluation environment {index}", "observation or reward")
        return not bool((self._next < self._episodes).any())

    def played(self) -> Played:
        n = self._episodes
        return Played(self._returns[:n].cpu().numpy(), self._lengths[:n].cpu().numpy(), int(self._cut[:n].sum()))
