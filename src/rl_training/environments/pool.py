"""Several environments stepped together; answers are validated, and errors name the environment.

The pool resets environments itself. Each episode has its own seed, derived from the run's seed, the environment's
index and the episode's number. So an unfinished episode is determined by its seed and its actions, and a resumed
run replays it. At most `LONGEST_REPLAY` actions are stored, because an episode may never end.

Observations and actions are copied, because an environment may reuse its buffers and change its action in place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rl_training.environments.making import close_env, flattening_of, make_env
from rl_training.environments.recipe import EnvSettings
from rl_training.environments.user_environments import UserEnvironments
from rl_training.errors import LONGEST_CAUSE, EnvironmentFailure, RLTrainingError, cause_of, one_line
from rl_training.observation_spaces import Misfit
from rl_training.seeding import TRAINING, episode_seed

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig

Answer = TypeVar("Answer")
# How often in a row a lost environment is replaced before the run fails.
_MAX_REPLACEMENTS = 3
# Maximum number of stored actions of a running episode; a resumed run repeats them all.
LONGEST_REPLAY = 100_000
# Seconds within which all environments of a pool must close.
CLOSING_SECONDS = 1.0
_STEP = "(observation, reward, terminated, truncated, info)"


class WrongAnswer(Exception):
    """An environment's answer does not match its spaces or Gymnasium's interface."""


class EnvLost(Exception):
    """The node running the environment died; a replacement was created and its episode must be replayed."""


class NotReplayed(Exception):
    """The episode of a lost environment could not be replayed in its replacement."""


@dataclass(slots=True)
class Transition:
    """One environment's answer to one action."""

    obs: NDArray[np.float32]
    reward: float
    terminated: bool
    truncated: bool


class SteppedEnv(Protocol):
    """One environment of a pool, in this process or another.

    `send` and `receive` are separate so that several environments step in parallel. The pool adds the environment's
    index to exceptions. If `receive` raises `EnvLost`, the pool replays the episode in the replacement.
    `ask_to_close` does not wait, so that several environments close in parallel; `close` waits at most `seconds`.
    """

    def reset(self, seed: int) -> NDArray[np.float32]: ...
    def send(self, action: Any) -> None: ...
    def receive(self) -> Transition: ...
    def ask_to_close(self) -> None: ...
    def close(self, seconds: float = CLOSING_SECONDS) -> None: ...


class LocalEnv:
    """An environment in this process."""

    def __init__(self, config: EnvSettings, given: UserEnvironments | None = None) -> None:
        self.env = make_env(config, given)
        self._given = given
        self._shape = self.env.observation_space.shape
        self._flatten = flattening_of(self.env.observation_space)
        self._action: Any = None

    def reset(self, seed: int) -> NDArray[np.float32]:
        answer: Any = self.env.reset(seed=seed)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise WrongAnswer(f"reset returned {_form(answer)}, not a pair (observation, info)")
        return self._observation(answer[0])

    def send(self, action: Any) -> None:
        self._action = action.copy() if isinstance(action, np.ndarray) else action

    def receive(self) -> Transition:
        answer: Any = self.env.step(self._action)
        if not isinstance(answer, tuple) or len(answer) != 5:
            raise WrongAnswer(f"step returned {_form(answer)}, not five values {_STEP}")
        obs, reward, terminated, truncated, _ = answer
        return Transition(
            self._observation(obs), _number(reward), _flag("terminated", terminated), _flag("truncated", truncated)
        )

    def _observation(self, obs: Any) -> NDArray[np.float32]:
        if self._flatten is not None:
            try:
                return self._flatten(obs)
            except Misfit as error:
                raise WrongAnswer(str(error)) from None
        array = np.array(obs, dtype=np.float32)
        if array.shape != self._shape:
            raise WrongAnswer(f"an observation has shape {list(array.shape)}, its space {list(self._shape or ())}")
        return array

    def ask_to_close(self) -> None: ...

    def close(self, seconds: float = CLOSING_SECONDS) -> None:
        close_env(self.env, self._given)


def _form(answer: Any) -> str:
    if isinstance(answer, tuple):
        return f"{len(answer)} values"
    return f"a {type(answer).__name__}" + (f" of shape {list(answer.shape)}" if hasattr(answer, "shape") else "")


def _number(reward: Any) -> float:
    if isinstance(reward, float | int | np.number) or (isinstance(reward, np.ndarray) and reward.ndim == 0):
        return float(reward)
    raise WrongAnswer(f"the reward is {reward!r:.60}, not a number")


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool | np.bool_) or (
        isinstance(value, np.ndarray) and value.shape == () and value.dtype == bool
    ):
        return bool(value)
    raise WrongAnswer(f"{name} is {value!r:.60}, not true or false")


@dataclass
class Episode:
    """The running episode of one environment, with its seed and actions for a replay.

    `actions` is None after more than `LONGEST_REPLAY` steps; then the episode cannot be replayed.
    """

    number: int
    seed: int
    actions: list[NDArray[Any]] | None
    total: float = 0.0
    steps: int = 0

    def add(self, action: NDArray[Any]) -> None:
        self.steps += 1
        if self.actions is not None and len(self.actions) < LONGEST_REPLAY:
            self.actions.append(action)
        else:
            self.actions = None

    @property
    def too_long(self) -> str:
        """Part of a message: why the episode cannot be replayed if `actions` is None."""
        return f"is at step {self.steps:,} of its episode, of which {LONGEST_REPLAY:,} actions at most are kept,"

    def rewind(self, steps: int, total: float) -> None:
        """Drop all but the first `steps` steps."""
        self.steps, self.total = steps, total
        if self.actions is not None:
            del self.actions[steps:]


def require_place(config: TrainConfig) -> None:
    """Raise for `environments: ray` if Ray is not installed, before anything is built."""
    if config.environments == "ray":
        from rl_training.environments.ray_actors import require_ray

        require_ray("environments: ray")


def _env_class(config: TrainConfig) -> Callable[[TrainConfig, UserEnvironments | None], SteppedEnv]:
    """The class for the setting `environments` if its environments are made one by one."""
    if config.environments == "processes":
        from rl_training.environments.processes import ProcessEnv

        return ProcessEnv
    if config.environments == "ray":
        from rl_training.environments.ray_actors import RayEnv

        return RayEnv
    return LocalEnv


def _make_all(config: TrainConfig, given: UserEnvironments | None) -> list[SteppedEnv]:
    if config.environments == "batched" or (config.environments == "auto" and config.num_envs > 1):
        from rl_training.environments.batched import batched_envs, can_batch

        if config.environments == "batched" or can_batch(config, given):
            return batched_envs(config, given)
    make = _env_class(config)
    envs: list[SteppedEnv] = []
    try:
        for _ in range(config.num_envs):
            envs.append(make(config, given))
    except BaseException:
        _close_all(envs)
        raise
    return envs


def _close_all(envs: Sequence[SteppedEnv]) -> None:
    """Close environments in parallel; those that take longer than `CLOSING_SECONDS` are killed."""
    for env in envs:
        env.ask_to_close()
    deadline = time.monotonic() + CLOSING_SECONDS
    for env in envs:
        env.close(max(0.0, deadline - time.monotonic()))


class EnvPool:
    """`num_envs` environments stepped together, each with its running episode."""

    def __init__(
        self, config: TrainConfig, *, purpose: int = TRAINING, given: UserEnvironments | None = None
    ) -> None:
        assert config.seed is not None
        self.seed = config.seed
        self.purpose = purpose
        self.envs = _make_all(config, given)
        self._before: list[tuple[int, float]] = []  # steps and total reward of each episode before the last `send`
        self._obs: dict[int, NDArray[np.float32]] = {}  # the last observation of each environment
        self.episodes = [Episode(-1, 0, []) for _ in self.envs]

    def reset(self, index: int, place: tuple[int, int] | None = None) -> NDArray[np.float32]:
        """Reset environment `index` to its next episode, or to the fixed episode `place=(column, number)`."""
        column, number = place or (index, self.episodes[index].number + 1)
        seed = episode_seed(self.seed, self.purpose, column, number)
        self.episodes[index] = Episode(number, seed, [])
        with _blame(index, self.episodes[index]):
            self._obs[index] = _with_retries(lambda: self.envs[index].reset(seed))
        return self._obs[index]

    def step(self, actions: NDArray[Any], indices: Sequence[int] | None = None) -> list[Transition]:
        """Step all environments, or those in `indices`; `actions` has one row for each, in the environment's units.

        Environments in other processes run in parallel.
        """
        self.send(actions, indices)
        return self.receive(indices)

    def send(self, actions: NDArray[Any], indices: Sequence[int] | None = None) -> None:
        """The first half of a step: send the actions."""
        chosen = range(len(self.envs)) if indices is None else indices
        self._before = [(episode.steps, episode.total) for episode in self.episodes]
        for action, index in zip(actions, chosen, strict=True):
            self.episodes[index].add(action)
            with _blame(index, self.episodes[index]):
                self.envs[index].send(action)

    def receive(self, indices: Sequence[int] | None = None) -> list[Transition]:
        """The second half: receive the transitions; lost environments are replaced and replayed."""
        chosen = range(len(self.envs)) if indices is None else indices
        answers: dict[int, Transition] = {}
        lost: list[int] = []
        for index in chosen:
            with _blame(index, self.episodes[index]):
                try:
                    answers[index] = self.envs[index].receive()
                except EnvLost:
                    lost.append(index)  # all replacements start before the first replay
        for index in lost:
            with _blame(index, self.episodes[index]):
                answers[index] = _with_retries(partial(self._receive_again, index))
        for index in chosen:
            self.episodes[index].total += answers[index].reward
            self._obs[index] = answers[index].obs
        return [answers[index] for index in chosen]

    def _receive_again(self, index: int) -> Transition:
        """Replay the episode in a replacement, and receive the answer to its last action."""
        episode, env = self.episodes[index], self.envs[index]
        if episode.actions is None:
            raise NotReplayed(f"it was lost with its machine: it {episode.too_long} and cannot be replayed")
        *before, action = episode.actions
        if not np.array_equal(self._replayed(index, episode.seed, before), self._obs[index]):
            raise NotReplayed(
                f"it was lost with its machine, and elsewhere its first {len(before)} actions led to another "
                "observation: it does not depend on its seed alone"
            )
        env.send(action)
        return env.receive()

    def forget_step(self) -> None:
        """Remove a failed step from the running episodes."""
        for episode, before in zip(self.episodes, self._before):
            episode.rewind(*before)

    def replay(self, index: int, episode: Episode) -> NDArray[np.float32] | None:
        """Replay `episode` in environment `index` and return its last observation.

        Returns None, with no effect on the environment, if the actions are not stored; it must then be reset.
        """
        self.episodes[index] = episode
        actions = episode.actions
        if actions is None:
            return None
        with _blame(index, episode):
            self._obs[index] = _with_retries(lambda: self._replayed(index, episode.seed, actions))
        return self._obs[index]

    def _replayed(self, index: int, seed: int, actions: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
        env = self.envs[index]
        obs = env.reset(seed)
        for action in actions:
            env.send(action)
            obs = env.receive().obs
        return obs

    def close(self) -> None:
        _close_all(self.envs)


def _with_retries(attempt: Callable[[], Answer]) -> Answer:
    """The result of `attempt`, repeated if the environment is lost meanwhile."""
    for _ in range(_MAX_REPLACEMENTS):
        with suppress(EnvLost):
            return attempt()
    return attempt()


class _blame:  # noqa: N801 - reads as a verb
    """Convert exceptions of an environment, including `sys.exit`, to an `EnvironmentFailure` with its index."""

    def __init__(self, index: int, episode: Episode) -> None:
        self.index, self.episode = index, episode

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception | SystemExit) and not isinstance(error, RLTrainingError):
            cause = one_line(error, LONGEST_CAUSE) if isinstance(error, WrongAnswer) else cause_of(error)
            raise EnvironmentFailure(
                f"environment {self.index} failed (seed {self.episode.seed}, step {self.episode.steps}): {cause}"
            ) from error
