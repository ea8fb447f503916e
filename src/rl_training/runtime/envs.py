"""Environments: making them, reading their spaces, and stepping several that fail loudly.

Resetting is ours, not a wrapper's: each episode has a seed of its own, derived from the run's seed and the
episode's place: its environment's index and its number there. So an unfinished episode is known by its seed and its
actions, and a resumed run can replay it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.errors import ConfigError, EnvironmentFailure, MissingDependencyError, RLTrainingError
from rl_training.experiment.config import TrainConfig
from rl_training.settings import nearest
from rl_training.spaces import SpaceSpec

TRAINING, EVALUATION, COLLECTION = 1, 2, 3


def episode_seed(seed: int, purpose: int, index: int, episode: int) -> int:
    """A seed no other episode of any environment or purpose has."""
    return int(np.random.SeedSequence((seed, purpose, index, episode)).generate_state(1)[0])


def make_env(config: TrainConfig) -> gym.Env[Any, Any]:
    """`config.env_id` with its keyword arguments; every failure is one line."""
    env_id = config.env_id
    if env_id is None:
        raise ConfigError("env_id: this needs an environment; set env_id", key="env_id")
    if ":" in env_id and not config.allow_import:
        raise ConfigError(
            f"env_id: {env_id!r} would import the module {env_id.split(':')[0]!r}; allow it with --allow-import",
            key="env_id",
        )
    try:
        return gym.make(env_id, disable_env_checker=True, **config.env_kwargs)
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        raise MissingDependencyError(
            f"env_id: {env_id} needs an optional package ({error}); pip install 'rl-training[mujoco]'", key="env_id"
        ) from error
    except gym.error.UnregisteredEnv:
        hint = nearest(env_id, gym.registry) or "; see gymnasium.registry for the known ones"
        raise ConfigError(f"env_id: unknown environment {env_id!r}{hint}", key="env_id") from None
    except Exception as error:
        raise ConfigError(
            f"env_id: {env_id} could not be made with env_kwargs {config.env_kwargs}: "
            f"{type(error).__name__}: {error}",
            key="env_id",
        ) from error


def read_spaces(env: gym.Env[Any, Any], *, discrete: bool | None = None) -> SpaceSpec:
    """The spaces of `env`, refusing what no network here can take; `discrete` is what the algorithm needs."""
    obs, action = env.observation_space, env.action_space
    name = env.spec.id if env.spec is not None else type(env).__name__
    if not isinstance(obs, gym.spaces.Box) or len(obs.shape) != 1:
        kind = f"{type(obs).__name__} of shape {obs.shape}" if obs.shape else type(obs).__name__
        raise ConfigError(
            f"env_id: {name} has observations of type {kind}; flat vectors are needed: use FlattenObservation",
            key="env_id",
        )
    if isinstance(action, gym.spaces.Discrete):
        if discrete is False:
            raise ConfigError(
                f"env_id: {name} has discrete actions and this algorithm needs continuous ones; use dqn",
                key="env_id",
            )
        return SpaceSpec(
            int(obs.shape[0]),
            num_actions=int(action.n),
            start=int(action.start),
            action_dtype=str(action.dtype),
        )
    if not isinstance(action, gym.spaces.Box) or len(action.shape) != 1:
        raise ConfigError(f"env_id: {name} has actions {action}; a flat Box or Discrete is needed", key="env_id")
    if discrete:
        raise ConfigError(
            f"env_id: {name} has continuous actions and dqn needs discrete ones; use sac or td3", key="env_id"
        )
    if not np.all(np.isfinite(action.low)) or not np.all(np.isfinite(action.high)):
        raise ConfigError(
            f"env_id: {name} has unbounded actions; wrap it in RescaleAction or give it finite bounds",
            key="env_id",
        )
    if not np.issubdtype(action.dtype, np.floating):
        raise ConfigError(
            f"env_id: {name} has actions of type {action.dtype}; a floating-point Box is needed", key="env_id"
        )
    return SpaceSpec(
        int(obs.shape[0]),
        tuple(float(x) for x in action.low),
        tuple(float(x) for x in action.high),
        action_dtype=str(action.dtype),
    )


def spaces_of(config: TrainConfig, *, discrete: bool | None = None) -> SpaceSpec:
    """The spaces of the configured environment."""
    env = make_env(config)
    try:
        return read_spaces(env, discrete=discrete)
    finally:
        env.close()


@dataclass(slots=True)
class Transition:
    """One environment's answer to one action."""

    obs: NDArray[np.float32]
    reward: float
    terminated: bool
    truncated: bool


class LocalEnv:
    """An environment in this process."""

    def __init__(self, config: TrainConfig) -> None:
        self.env = make_env(config)
        self._action: Any = None

    def reset(self, seed: int) -> NDArray[np.float32]:
        return np.asarray(self.env.reset(seed=seed)[0], dtype=np.float32)

    def send(self, action: Any) -> None:
        self._action = action

    def receive(self) -> Transition:
        obs, reward, terminated, truncated, _ = self.env.step(self._action)
        return Transition(np.asarray(obs, dtype=np.float32), float(reward), bool(terminated), bool(truncated))

    def close(self) -> None:
        self.env.close()


@dataclass
class Episode:
    """The running episode of one environment: all that is needed to replay it."""

    number: int
    seed: int
    actions: list[NDArray[Any]]
    total: float = 0.0


class EnvPool:
    """`num_envs` environments stepped together, each with its running episode."""

    def __init__(self, config: TrainConfig, *, purpose: int = TRAINING) -> None:
        assert config.seed is not None
        self.seed = config.seed
        self.purpose = purpose
        if config.env_processes:
            from rl_training.runtime.env_processes import ProcessEnv

            self.envs: Sequence[Any] = [ProcessEnv(config) for _ in range(config.num_envs)]
        else:
            self.envs = [LocalEnv(config) for _ in range(config.num_envs)]
        self._before: list[tuple[int, float]] = []
        self.episodes = [Episode(-1, 0, []) for _ in self.envs]

    def reset(self, index: int, place: tuple[int, int] | None = None) -> NDArray[np.float32]:
        """Start the next episode of one environment, or, whoever plays it, the episode of another `place`."""
        column, number = place or (index, self.episodes[index].number + 1)
        seed = episode_seed(self.seed, self.purpose, column, number)
        self.episodes[index] = Episode(number, seed, [])
        with _blame(index, self.episodes[index]):
            obs: NDArray[np.float32] = self.envs[index].reset(seed)
        return obs

    def step(self, actions: NDArray[Any], indices: Sequence[int] | None = None) -> list[Transition]:
        """One step of every environment, or of those `indices` names; a row of `actions` each, in their units.

        Environments in processes of their own work side by side.
        """
        chosen = range(len(self.envs)) if indices is None else indices
        self._before = [(len(episode.actions), episode.total) for episode in self.episodes]
        for action, index in zip(actions, chosen, strict=True):
            self.episodes[index].actions.append(action)
            with _blame(index, self.episodes[index]):
                self.envs[index].send(action)
        results: list[Transition] = []
        for index in chosen:
            with _blame(index, self.episodes[index]):
                results.append(self.envs[index].receive())
            self.episodes[index].total += results[-1].reward
        return results

    def forget_step(self) -> None:
        """Take a step that failed half-way out of the episodes' records."""
        for episode, (length, total) in zip(self.episodes, self._before):
            del episode.actions[length:]
            episode.total = total

    def replay(self, index: int, episode: Episode) -> NDArray[np.float32]:
        """Bring one environment to where `episode` was: reset with its seed, repeat its actions."""
        self.episodes[index] = episode
        env = self.envs[index]
        with _blame(index, episode):
            obs: NDArray[np.float32] = env.reset(episode.seed)
            for action in episode.actions:
                env.send(action)
                obs = env.receive().obs
        return obs

    def close(self) -> None:
        for env in self.envs:
            env.close()


class _blame:  # noqa: N801 - reads as a verb
    """Turn whatever an environment raises into one line with its index, seed and step."""

    def __init__(self, index: int, episode: Episode) -> None:
        self.index, self.episode = index, episode

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, RLTrainingError):
            raise EnvironmentFailure(
                f"environment {self.index} failed (seed {self.episode.seed}, step {len(self.episode.actions)}): "
                f"{type(error).__name__}: {error}"
            ) from error
