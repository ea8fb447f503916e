"""Several environments stepped together: their answers are checked, and their errors name the environment.

Resetting is ours, not a wrapper's: each episode has a seed of its own, derived from the run's seed and the
episode's place: its environment's index and its number there. So an unfinished episode is known by its seed and its
actions, and a resumed run can replay it. The actions are kept up to a bound (`LONGEST_REPLAY`), for an episode that
never ends.

Observations and actions are copied where they pass between a run and an environment in its process: an environment
may reuse its buffers and change the action it is given.
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
# How often in a row an environment is made again elsewhere before its run fails.
_MOST_LOSSES = 3
# Actions of a running episode that are kept: a resumed run steps them all again.
LONGEST_REPLAY = 100_000
# Seconds in which all environments of a pool together may close.
CLOSING_SECONDS = 1.0
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
    episode in the one that took its place. `ask_to_close` does not wait, so that several can close side by side;
    `close` waits for `seconds` at most.
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
    """The running episode of one environment: all that is needed to replay it.

    `actions` is None after more than `LONGEST_REPLAY` steps: then it cannot be replayed.
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
        """In words: why it cannot be replayed where `actions` is None."""
        return f"is at step {self.steps:,} of its episode, of which {LONGEST_REPLAY:,} actions at most are kept,"

    def go_back(self, steps: int, total: float) -> None:
        """Undo what came after the first `steps`."""
        self.steps, self.total = steps, total
        if self.actions is not None:
            del self.actions[steps:]


def require_place(config: TrainConfig) -> None:
    """Refuse `environments: ray` where there is no Ray, before anything is built."""
    if config.environments == "ray":
        from rl_training.environments.ray_actors import require_ray

        require_ray("environments: ray")


def _kind(config: TrainConfig) -> Callable[[TrainConfig, UserEnvironments | None], SteppedEnv]:
    """What makes environments where `environments` says they live."""
    if config.environments == "local":
        return LocalEnv
    if config.environments == "ray":
        from rl_training.environments.ray_actors import RayEnv

        return RayEnv
    from rl_training.environments.processes import ProcessEnv

    return ProcessEnv


def _made(config: TrainConfig, given: UserEnvironments | None) -> list[SteppedEnv]:
    make = _kind(config)
    envs: list[SteppedEnv] = []
    try:
        for _ in range(config.num_envs):
            envs.append(make(config, given))
    except BaseException:
        _close_all(envs)
        raise
    return envs


def _close_all(envs: Sequence[SteppedEnv]) -> None:
    """Close environments side by side; those that take longer than `CLOSING_SECONDS` are ended."""
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
        self._before = [(episode.steps, episode.total) for episode in self.episodes]
        for action, index in zip(actions, chosen, strict=True):
            self.episodes[index].add(action)
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
        if episode.actions is None:
            raise NotReplayed(f"it was lost with its machine: it {episode.too_long} and cannot be replayed")
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
        for episode, before in zip(self.episodes, self._before):
            episode.go_back(*before)

    def replay(self, index: int, episode: Episode) -> NDArray[np.float32] | None:
        """Bring one environment to where `episode` was: reset with its seed, repeat its actions.

        None where these are not kept: then nothing was done, and the environment waits for a reset.
        """
        self.episodes[index] = episode
        actions = episode.actions
        if actions is None:
            return None
        with _blame(index, episode):
            self._seen[index] = _insist(lambda: self._replayed(index, episode.seed, actions))
        return self._seen[index]

    def _replayed(self, index: int, seed: int, actions: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
        env = self.envs[index]
        obs = env.reset(seed)
        for action in actions:
            env.send(action)
            obs = env.receive().obs
        return obs

    def close(self) -> None:
        _close_all(self.envs)


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
            cause = one_line(error, LONGEST_CAUSE) if isinstance(error, WrongAnswer) else cause_of(error)
            raise EnvironmentFailure(
                f"environment {self.index} failed (seed {self.episode.seed}, step {self.episode.steps}): {cause}"
            ) from error
