"""Environment checks before training: Gymnasium's checker, and the assumptions of a run."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import check_env as gymnasium_check
from gymnasium.utils.env_checker import data_equivalence
from numpy.typing import NDArray

from rl_training.environments.making import GIVE_CLASS, close_env, make_env, read_spaces, time_limit
from rl_training.environments.playing import UNLIMITED_EPISODE_STEPS
from rl_training.environments.pool import LocalEnv, Transition
from rl_training.environments.running import problem_of
from rl_training.environments.user_environments import UserEnvironments
from rl_training.errors import LONGEST_CAUSE, ConfigError, cause_of, one_line
from rl_training.experiment.config import TrainConfig
from rl_training.spaces import SpaceSpec

_STEPS = 200
_SEED = 7
# Gymnasium's warnings that do not apply here: actions are scaled, observations need no bounds.
_IGNORED = ("symmetric and normalized space", "minimum value is -infinity", "maximum value is infinity")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Check:
    """Result of one check; `broken` means that training would fail or learn from wrong numbers."""

    state: Literal["ok", "warning", "broken"]
    subject: str
    text: str


@dataclass
class _Episode:
    """An environment's answers to a seed and random actions."""

    first: NDArray[np.float32]
    actions: list[Any]
    transitions: list[Transition]
    ended: bool
    reuses_observations: bool = False
    changes_actions: bool = False


def check_environment(config: TrainConfig, given: UserEnvironments | None = None) -> list[Check]:
    """All checks in order; checks that depend on a broken one are skipped."""
    try:
        env = make_env(config, given)
    except ConfigError as error:
        text = str(error).removeprefix("env_id: ").partition(f", {GIVE_CLASS}")[0]  # this takes names only
        return [Check("broken", "making", text)]
    try:
        checks = [Check("ok", "making", str(env))]
        try:
            spaces = read_spaces(env)
        except ConfigError as error:
            return [*checks, Check("broken", "spaces", str(error).removeprefix("env_id: "))]
        checks.append(Check("ok", "spaces", spaces_in_words(spaces)))
    finally:
        close_env(env, given)
    checks += _answers(config, given)
    return [*checks, *_gymnasium(config, given)]


def spaces_in_words(spaces: SpaceSpec) -> str:
    kind = "" if spaces.observation is None else f" (a {spaces.observation['kind']}, flattened)"
    actions = f"{spaces.num_actions} choices" if spaces.discrete else f"{spaces.action_dim} continuous"
    return f"observations: {spaces.obs_dim} numbers{kind}; actions: {actions}"


def _answers(config: TrainConfig, given: UserEnvironments | None) -> Iterator[Check]:
    """Play part of an episode, and repeat it."""
    env = LocalEnv(config, given)
    try:
        step = [0]
        try:
            episode = _play(env, step)
        except Exception as error:
            yield Check("broken", "answers", f"at step {step[0]}: {problem_of(error)}")
            return
        if not _finite(episode):
            yield Check("broken", "answers", "an observation or a reward is NaN or infinite")
            return
        yield Check("ok", "answers", f"{len(episode.transitions)} steps in the form that the spaces promise")
        yield from _sharing(episode)
        try:
            yield from _repetition(env, episode)
        except Exception as error:
            yield Check("broken", "replaying", cause_of(error))
        yield _limit(config, given, episode)
    finally:
        env.close()


def _play(env: LocalEnv, step: list[int]) -> _Episode:
    """An episode of random actions, at most `_STEPS` steps; `step` holds the current step if this raises."""
    env.env.action_space.seed(_SEED)
    detector = env.env = _MutationDetector(env.env)
    try:
        episode = _Episode(env.reset(_SEED), [], [], ended=False)
        while not episode.ended and step[0] < _STEPS:
            step[0] += 1
            episode.actions.append(env.env.action_space.sample())
            env.send(episode.actions[-1])
            transition = env.receive()
            episode.transitions.append(transition)
            episode.ended = transition.terminated or transition.truncated
    finally:
        env.env = detector.env
    episode.reuses_observations = detector.reuses_observations
    episode.changes_actions = detector.changes_actions
    return episode


class _MutationDetector(gym.Wrapper[Any, Any, Any, Any]):
    """Detects whether an environment changes an observation it has returned, or its action."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.reuses_observations = self.changes_actions = False
        self._returned: tuple[Any, Any] = (None, None)  # the last observation, and a copy of it

    def reset(self, **options: Any) -> Any:
        return self._compared(self.env.reset(**options))

    def step(self, action: Any) -> Any:
        before = copy.deepcopy(action)
        answer = self._compared(self.env.step(action))
        self.changes_actions |= not np.array_equal(action, before)
        return answer

    def _compared(self, answer: Any) -> Any:
        self.reuses_observations |= not data_equivalence(*self._returned, exact=True)
        obs = answer[0] if isinstance(answer, tuple) and answer else None
        self._returned = obs, copy.deepcopy(obs)
        return answer


def _sharing(episode: _Episode) -> Iterator[Check]:
    """Warn about shared buffers: a run copies observations and actions, other programs may not."""
    if episode.reuses_observations:
        text = "an observation changes after it was returned; training copies it, others may not: return a copy"
        yield Check("warning", "observations", text)
    if episode.changes_actions:
        text = "step changes its action in place; training passes a copy, others may not: copy it in step"
        yield Check("warning", "actions", text)


def _finite(episode: _Episode) -> bool:
    return bool(np.isfinite(episode.first).all()) and all(
        np.isfinite(t.obs).all() and np.isfinite(t.reward) for t in episode.transitions
    )


def _repetition(env: LocalEnv, episode: _Episode) -> Iterator[Check]:
    consequence = "a resumed run will not be exact, and evaluations differ from one another"
    if not np.array_equal(env.reset(_SEED), episode.first):
        yield Check("warning", "seeds", f"the same seed gives another first observation; {consequence}")
        return
    if np.array_equal(env.reset(_SEED + 1), episode.first) and _first_difference(env, episode) is None:
        yield Check(
            "warning",
            "seeds",
            "another seed gives the same episode: all episodes of a run are alike; if that is not meant, call "
            "super().reset(seed=seed) and draw from self.np_random",
        )
    else:
        yield Check("ok", "seeds", "the same seed gives the same first observation, another seed another episode")
    number = 0 if not np.array_equal(env.reset(_SEED), episode.first) else _first_difference(env, episode)
    if number is not None:
        text = f"the same actions lead to another transition at step {number}; {consequence}"
        yield Check("warning", "replaying", text)
        return
    yield Check("ok", "replaying", "the same actions lead to the same observations and rewards")


def _first_difference(env: LocalEnv, episode: _Episode) -> int | None:
    """The first step at which the actions of `episode` lead to another transition; None if all are the same."""
    for number, (action, before) in enumerate(zip(episode.actions, episode.transitions), start=1):
        env.send(action)
        now = env.receive()
        ends = (now.terminated, now.truncated), (before.terminated, before.truncated)
        if not np.array_equal(now.obs, before.obs) or now.reward != before.reward or ends[0] != ends[1]:
            return number
    return None


def _limit(config: TrainConfig, given: UserEnvironments | None, episode: _Episode) -> Check:
    limit = time_limit(config, given)
    if limit is not None:
        return Check("ok", "time limit", f"{limit:,} steps")
    if episode.ended:
        return Check(
            "ok", "time limit", f"none declared; an episode ended by itself after {len(episode.actions)} steps"
        )
    return Check(
        "warning",
        "time limit",
        f"none declared: an evaluation episode is cut after {UNLIMITED_EPISODE_STEPS:,} steps; declare one with "
        "wrappers: [{TimeLimit: {max_episode_steps: 1000}}]",
    )


def _gymnasium(config: TrainConfig, given: UserEnvironments | None) -> Iterator[Check]:
    """Gymnasium's checker, on the environment without wrappers."""
    env = make_env(config, given)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gymnasium_check(env.unwrapped, skip_render_check=True, skip_close_check=True)
    except Exception as error:
        yield Check("broken", "gymnasium", _one_line(cause_of(error)))
        return
    finally:
        close_env(env, given)
    messages = dict.fromkeys(_one_line(str(warning.message)) for warning in caught)
    relevant = [message for message in messages if not any(words in message for words in _IGNORED)]
    for message in relevant:
        yield Check("warning", "gymnasium", message.removeprefix("WARN: "))
    if not relevant:
        yield Check("ok", "gymnasium", "its checker finds nothing wrong")


def _one_line(text: str) -> str:
    return one_line(" ".join(_COLOUR.sub("", text).split()), LONGEST_CAUSE)
