"""`EnvPool`: environments made one by one; their answers are validated, and errors name the environment.

An unfinished episode is determined by its seed and its actions, and a resumed run replays it. At most
`LONGEST_REPLAY` actions are stored, because an episode may never end.

Observations and actions are copied, because an environment may reuse its buffers and change its action in place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rl_training.environments.making import close_env, flattening_of, make_env
from rl_training.environments.recipe import EnvSettings
from rl_training.environments.running import Episode, Pool, Steps, WrongAnswer
from rl_training.environments.user_environments import UserEnvironments
from rl_training.observation_spaces import Misfit
from rl_training.seeding import TRAINING

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


class EnvLost(Exception):
    """The node running the environment died; a replacement was created and its episode must be replayed."""


class NotReplayed(Exception):
    """The episode of a lost environment could not be replayed in its replacement."""


class Transition(NamedTuple):
    """One environment's answer to one action."""

    obs: NDArray[np.float32]
    reward: float
    terminated: bool
    truncated: bool
    success: bool | None = None  # None if the environment does not report it


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
        obs, reward, terminated, truncated, info = answer
        return Transition(
            self._observation(obs),
            _number(reward),
            _flag("terminated", terminated),
            _flag("truncated", truncated),
            _success(info),
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


def _success(info: Any) -> bool | None:
    """Whether the task is solved, by the names that environments use in `info`; None if it has neither, or NaN."""
    value = info.get("success", info.get("is_success")) if isinstance(info, dict) else None
    return None if value is None or np.ndim(value) or value != value else bool(value)


def too_long(steps: int) -> str:
    """Part of a message: why an episode with more actions than are stored cannot be replayed."""
    return f"is at step {steps:,} of its episode, of which {LONGEST_REPLAY:,} actions at most are kept,"


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


def is_batched(config: TrainConfig, given: UserEnvironments | None) -> bool:
    """Whether the environments are stepped in one call; for `environments: auto` if the environment supports it."""
    if config.environments != "auto":
        return config.environments == "batched"
    from rl_training.environments.batched import can_batch

    return can_batch(config, given)


def make_pool(config: TrainConfig, *, purpose: int = TRAINING, given: UserEnvironments | None = None) -> Pool:
    """A pool for the setting `environments`."""
    if is_batched(config, given):
        from rl_training.environments.batched import BatchedPool

        return BatchedPool(config, purpose=purpose, given=given)
    return EnvPool(config, purpose=purpose, given=given)


def _make_all(config: TrainConfig, given: UserEnvironments | None) -> list[SteppedEnv]:
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


class EnvPool(Pool):
    """`num_envs` environments made one by one, and the actions of their running episodes."""

    def __init__(
        self, config: TrainConfig, *, purpose: int = TRAINING, given: UserEnvironments | None = None
    ) -> None:
        assert config.seed is not None
        super().__init__(config.seed, purpose, config.num_envs)
        self.envs = _make_all(config, given)
        self._obs: dict[int, NDArray[np.float32]] = {}  # the last observation of each environment
        self._actions = [[] for _ in self.envs]

    def reset_all(
        self, indices: Sequence[int], places: Sequence[tuple[int, int]] | None = None
    ) -> NDArray[np.float32]:
        for index, place in zip(indices, places or repeat(None)):
            seed, self._actions[index] = self._begin(index, place), []
            with self.blame(index):
                self._obs[index] = _with_retries(partial(self.envs[index].reset, seed))
        return np.array([self._obs[index] for index in indices])

    def _send(self, actions: NDArray[Any], indices: Sequence[int]) -> None:
        for action, index in zip(actions, indices, strict=True):
            kept = self._actions[index]
            if kept is not None and len(kept) < LONGEST_REPLAY:
                kept.append(action)
            else:
                self._actions[index] = None
            with self.blame(index):
                self.envs[index].send(action)

    def _receive(self, indices: Sequence[int]) -> Steps:
        """Lost environments are replaced and replayed."""
        answers: dict[int, Transition] = {}
        lost: list[int] = []
        for index in indices:
            with self.blame(index):
                try:
                    answers[index] = self.envs[index].receive()
                except EnvLost:
                    lost.append(index)  # all replacements start before the first replay
        for index in lost:
            with self.blame(index):
                answers[index] = _with_retries(partial(self._receive_again, index))
        obs, rewards, terminated, truncated, success = zip(*(answers[index] for index in indices))
        self._obs.update(zip(indices, obs))
        reported = any(one is not None for one in success)
        return Steps(
            np.array(obs),
            np.array(rewards, dtype=np.float64),
            np.array(terminated),
            np.array(truncated),
            np.array(success, dtype=np.float64) if reported else None,
        )

    def _receive_again(self, index: int) -> Transition:
        """Replay the episode in a replacement, and receive the answer to its last action."""
        episode, env = self.episodes[index], self.envs[index]
        if episode.actions is None:
            raise NotReplayed(f"it was lost with its machine: it {too_long(episode.steps)} and cannot be replayed")
        *before, action = episode.actions
        if not np.array_equal(self._replayed(index, episode.seed, before), self._obs[index]):
            raise NotReplayed(
                f"it was lost with its machine, and elsewhere its first {len(before)} actions led to another "
                "observation: it does not depend on its seed alone"
            )
        env.send(action)
        return env.receive()

    def forget_step(self) -> None:
        super().forget_step()
        for actions, steps in zip(self._actions, self.lengths):
            if actions is not None:
                del actions[steps:]

    def replay(self, index: int, episode: Episode) -> NDArray[np.float32] | None:
        self._continue(index, episode)
        actions = self._actions[index] = episode.actions
        if actions is None:
            return None
        with self.blame(index):
            self._obs[index] = _with_retries(lambda: self._replayed(index, episode.seed, actions))
        return self._obs[index]

    def _replayed(self, index: int, seed: int, actions: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
        env = self.envs[index]
        obs = env.reset(seed)
        for action in actions:
            env.send(action)
            obs = env.receive().obs
        return obs

    def save(self) -> dict[str, NDArray[Any]]:
        """The actions of each running episode."""
        return {f"actions.{i}": np.stack(actions) for i, actions in enumerate(self._actions) if actions}

    def unreplayable(self) -> list[str]:
        kept = zip(self._actions, self.lengths.tolist())
        return [f"environment {i} {too_long(steps)}" for i, (actions, steps) in enumerate(kept) if actions is None]

    def close(self) -> None:
        _close_all(self.envs)


def _with_retries(attempt: Callable[[], Answer]) -> Answer:
    """The result of `attempt`, repeated if the environment is lost meanwhile."""
    for _ in range(_MAX_REPLACEMENTS):
        with suppress(EnvLost):
            return attempt()
    return attempt()
