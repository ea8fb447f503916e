"""Several environments stepped together: their answers are checked, and their errors name the environment.

Resetting is ours, not a wrapper's: each episode has a seed of its own, derived from the run's seed and the
episode's place: its environment's index and its number there. So an unfinished episode is known by its seed and its
actions, and a resumed run can replay it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rl_training.environments.given import Given
from rl_training.environments.making import close_env, flattening_of, make_env
from rl_training.environments.recipe import EnvSettings
from rl_training.errors import EnvironmentFailure, RLTrainingError
from rl_training.seeding import TRAINING, episode_seed
from rl_training.structured import Misfit

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig

Answer = TypeVar("Answer")
# How often in a row an environment is made again elsewhere before its run fails.
_MOST_LOSSES = 3
_STEP = "(observation, reward, terminated, truncated, info)"


class WrongAnswer(Exception):
    """An environment answered in another form than its spaces and Gymnasium's interface promise."""


class EnvLost(Exception):
    """The machine of an environment was lost, and with it the episode; a new environment has taken its place."""


class NotReplayed(Exception):
    """An environment that was lost and made again did not come back to where it had been."""


@dataclass(slots=True)
class Transition:
    """One environment's answer to one action."""

    obs: NDArray[np.float32]
    reward: float
    terminated: bool
    truncated: bool


class SteppedEnv(Protocol):
    """One environment of a pool, wherever it lives.

    Each action that is sent is answered once, so that several environments can work side by side. What goes wrong
    is raised; the pool says in which environment. `EnvLost` is not the environment's fault: the pool replays its
    episode in the one that took its place.
    """

    def reset(self, seed: int) -> NDArray[np.float32]: ...
    def send(self, action: Any) -> None: ...
    def receive(self) -> Transition: ...
    def close(self) -> None: ...


class LocalEnv:
    """An environment in this process."""

    def __init__(self, config: EnvSettings, given: Given | None = None) -> None:
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
        self._action = action

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
        array = np.asarray(obs, dtype=np.float32)
        if array.shape != self._shape:
            raise WrongAnswer(f"an observation has shape {list(array.shape)}, its space {list(self._shape or ())}")
        return array

    def close(self) -> None:
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
    """The running episode of one environment: all that is needed to replay it."""

    number: int
    seed: int
    actions: list[NDArray[Any]]
    total: float = 0.0


def require_place(config: TrainConfig) -> None:
    """Refuse `environments: ray` where there is no Ray, before anything is built."""
    if config.environments == "ray":
        from rl_training.environments.ray_actors import require_ray

        require_ray("environments: ray")


def _kind(config: TrainConfig) -> Callable[[TrainConfig, Given | None], SteppedEnv]:
    """What makes environments where `environments` says they live."""
    if config.environments == "local":
        return LocalEnv
    if config.environments == "ray":
        from rl_training.environments.ray_actors import RayEnv

        return RayEnv
    from rl_training.environments.processes import ProcessEnv

    return ProcessEnv


def _made(config: TrainConfig, given: Given | None) -> list[SteppedEnv]:
    make = _kind(config)
    envs: list[SteppedEnv] = []
    try:
        for _ in range(config.num_envs):
            envs.append(make(config, given))
    except BaseException:
        for env in envs:
            env.close()
        raise
    return envs


class EnvPool:
    """`num_envs` environments stepped together, each with its running episode."""

    def __init__(self, config: TrainConfig, *, purpose: int = TRAINING, given: Given | None = None) -> None:
        assert config.seed is not None
        self.seed = config.seed
        self.purpose = purpose
        self.envs = _made(config, given)
        self._before: list[tuple[int, float]] = []
        self._seen: dict[int, NDArray[np.float32]] = {}  # the last observation of each
        self.episodes = [Episode(-1, 0, []) for _ in self.envs]

    def reset(self, index: int, place: tuple[int, int] | None = None) -> NDArray[np.float32]:
        """Reset environment `index` to its next episode; evaluation passes `place=(column, number)` to play a
        fixed one."""
        column, number = place or (index, self.episodes[index].number + 1)
        seed = episode_seed(self.seed, self.purpose, column, number)
        self.episodes[index] = Episode(number, seed, [])
        with _blame(index, self.episodes[index]):
            self._seen[index] = _insist(lambda: self.envs[index].reset(seed))
        return self._seen[index]

    def step(self, actions: NDArray[Any], indices: Sequence[int] | None = None) -> list[Transition]:
        """Step every environment, or those in `indices`; `actions` has a row for each, in the environment's units.

        Environments in processes of their own work side by side.
        """
        self.send(actions, indices)
        return self.receive(indices)

    def send(self, actions: NDArray[Any], indices: Sequence[int] | None = None) -> None:
        """The first half of a step: tell the environments what to do."""
        chosen = range(len(self.envs)) if indices is None else indices
        self._before = [(len(episode.actions), episode.total) for episode in self.episodes]
        for action, index in zip(actions, chosen, strict=True):
            self.episodes[index].actions.append(action)
            with _blame(index, self.episodes[index]):
                self.envs[index].send(action)

    def receive(self, indices: Sequence[int] | None = None) -> list[Transition]:
        """The second half: what they answer; one that was lost is brought back to where it was."""
        chosen = range(len(self.envs)) if indices is None else indices
        answers: dict[int, Transition] = {}
        lost: list[int] = []
        for index in chosen:
            with _blame(index, self.episodes[index]):
                try:
                    answers[index] = self.envs[index].receive()
                except EnvLost:
                    lost.append(index)  # all are being made again before the first is replayed
        for index in lost:
            with _blame(index, self.episodes[index]):
                answers[index] = _insist(partial(self._receive_again, index))
        for index in chosen:
            self.episodes[index].total += answers[index].reward
            self._seen[index] = answers[index].obs
        return [answers[index] for index in chosen]

    def _receive_again(self, index: int) -> Transition:
        """The answer to the last action from an environment that has just been made: it must get there first."""
        episode, env = self.episodes[index], self.envs[index]
        *before, action = episode.actions
        if not np.array_equal(self._replayed(index, episode.seed, before), self._seen[index]):
            raise NotReplayed(
                f"it was lost with its machine, and elsewhere its first {len(before)} actions led to another "
                "observation: it does not depend on its seed alone"
            )
        env.send(action)
        return env.receive()

    def forget_step(self) -> None:
        """Undo, in the running episodes, a step in which some environment failed."""
        for episode, (length, total) in zip(self.episodes, self._before):
            del episode.actions[length:]
            episode.total = total

    def replay(self, index: int, episode: Episode) -> NDArray[np.float32]:
        """Bring one environment to where `episode` was: reset with its seed, repeat its actions."""
        self.episodes[index] = episode
        with _blame(index, episode):
            self._seen[index] = _insist(lambda: self._replayed(index, episode.seed, episode.actions))
        return self._seen[index]

    def _replayed(self, index: int, seed: int, actions: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
        env = self.envs[index]
        obs = env.reset(seed)
        for action in actions:
            env.send(action)
            obs = env.receive().obs
        return obs

    def close(self) -> None:
        for env in self.envs:
            env.close()


def _insist(attempt: Callable[[], Answer]) -> Answer:
    """What `attempt` returns, though the environment may be lost meanwhile, a few times."""
    for _ in range(_MOST_LOSSES):
        with suppress(EnvLost):
            return attempt()
    return attempt()


class _blame:  # noqa: N801 - reads as a verb
    """Turn whatever an environment raises, `sys.exit` included, into an `EnvironmentFailure` that names it."""

    def __init__(self, index: int, episode: Episode) -> None:
        self.index, self.episode = index, episode

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception | SystemExit) and not isinstance(error, RLTrainingError):
            cause = str(error) if isinstance(error, WrongAnswer) else f"{type(error).__name__}: {error}"
            raise EnvironmentFailure(
                f"environment {self.index} failed (seed {self.episode.seed}, step {len(self.episode.actions)}): "
                f"{cause}"
            ) from error
