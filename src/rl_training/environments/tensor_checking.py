"""Checks of a `TensorEnv` before training: the form of its answers, and what an end of an episode must return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rl_training.environments.checking import Check, spaces_in_words
from rl_training.environments.making import require_valid
from rl_training.environments.playing import UNLIMITED_EPISODE_STEPS
from rl_training.environments.running import WrongAnswer, problem_of
from rl_training.environments.tensor_env import ActionScaling, CheckedEnv, TensorEnv, TensorStep
from rl_training.errors import ConfigError
from rl_training.spaces import SpaceSpec

_SEED = 7
_LEAST_STEPS, _MOST_STEPS, _REPEATED_STEPS = 200, 2_000, 20


def check_tensor_env(env: TensorEnv) -> list[Check]:
    """All checks in order; checks that depend on a broken one are skipped."""
    try:
        spaces = require_valid(env, type(env).__name__)
    except ConfigError as error:
        return [Check("broken", "interface", str(error).removeprefix("env_id: "))]
    words = f"{env.num_envs:,} simulations on {env.device}; {spaces_in_words(spaces)}"
    return [Check("ok", "interface", words), *_answers(env, spaces)]


@dataclass
class _Play:
    """Episodes of random actions in every simulation, and what they showed."""

    env: TensorEnv
    spaces: SpaceSpec
    steps: int = 0
    longest: int = 0
    ends: dict[str, int] = field(default_factory=lambda: {"terminated": 0, "truncated": 0})
    # Ends whose final_obs is the first observation of the next episode.
    ends_at_start: dict[str, int] = field(default_factory=lambda: {"terminated": 0, "truncated": 0})
    other_starts: int = 0  # episodes that do not start with the first observation of their simulation
    differs: bool = False  # final_obs is not obs in a row where no episode ended
    reuses_buffers: bool = False
    first: Tensor = field(init=False)

    @property
    def ended(self) -> int:
        return sum(self.ends.values())

    def run(self) -> None:
        """Play until the first answer with a wrong form."""
        checked = CheckedEnv(self.env, self.spaces)
        returned = checked.reset(_SEED)
        _require_finite({"obs": returned})
        self.first, lengths = returned.clone(), torch.zeros_like(returned[:, 0])
        actions, copies = _actions(self.env, self.spaces), [(returned, self.first)]
        for _ in range(min(max(_LEAST_STEPS, (self.env.max_episode_steps or 0) + 1), _MOST_STEPS)):
            self.steps += 1
            step = checked.step(next(actions))
            _require_finite(step._asdict())
            self.reuses_buffers |= any(not torch.equal(tensor, copy) for tensor, copy in copies)
            copies = [(tensor, tensor.clone()) for tensor in (step.obs, step.final_obs)]
            lengths = (lengths + 1) * ~self._add(step, lengths + 1)

    def _add(self, step: TensorStep, lengths: Tensor) -> Tensor:
        """Count the ends of a step; returns the rows that ended."""
        ended = step.terminated | step.truncated
        same = (step.obs == step.final_obs).all(1)
        self.differs |= bool((~ended & ~same).any())
        self.longest = max(self.longest, int(lengths.max()))
        for kind, flags in (("terminated", step.terminated), ("truncated", step.truncated)):
            self.ends[kind] += int(flags.sum())
            self.ends_at_start[kind] += int((flags & same).sum())
        self.other_starts += int((ended & (step.obs != self.first).any(1)).sum())
        return ended


def _require_finite(parts: Mapping[str, Tensor]) -> None:
    for name, part in parts.items():
        if not part.isfinite().all():
            raise WrongAnswer(f"{name} is NaN or infinite")


def _actions(env: TensorEnv, spaces: SpaceSpec) -> Iterator[Tensor]:
    """Random actions, the same ones each time."""
    random, scaling = torch.Generator().manual_seed(_SEED), ActionScaling(spaces, env.device)
    while True:
        if spaces.discrete:
            drawn = torch.randint(spaces.num_actions, (env.num_envs,), generator=random)
        else:
            drawn = 2.0 * torch.rand((env.num_envs, spaces.action_dim), generator=random) - 1.0
        yield scaling(drawn.to(env.device))


def _answers(env: TensorEnv, spaces: SpaceSpec) -> Iterator[Check]:
    play = _Play(env, spaces)
    try:
        play.run()
    except Exception as error:
        place = f"step {play.steps}" if play.steps else "reset"
        yield Check("broken", "answers", f"{place}: {problem_of(error)}")
        return
    yield Check("ok", "answers", f"{play.steps:,} steps in the form that the interface promises")
    yield _final_observations(play)
    yield _resets(play)
    if play.reuses_buffers:
        text = "a tensor changes after it was returned; training copies it, others may not: return a new one"
        yield Check("warning", "buffers", text)
    for subject, check in (("seeds", _seeds), ("saved state", _saved_state)):
        try:
            yield check(play)
        except Exception as error:
            yield Check("broken", subject, problem_of(error))
    yield _limit(play)


def _final_observations(play: _Play) -> Check:
    """Whether stored successors would be true; a reset observation must never be one."""
    if play.differs:
        text = "it differs from obs in a row where no episode ended; return the successor in every row"
        return Check("broken", "final_obs", text)
    for kind, count in play.ends.items():
        if count and play.ends_at_start[kind] == count:
            return Check(
                "warning",
                "final_obs",
                f"in all {count:,} episodes that were {kind} it is the first observation of the next episode; "
                "return the last one of the episode that ended",
            )
    if play.ended:
        return Check("ok", "final_obs", f"not a reset observation, at {play.ended:,} ends of episodes")
    return Check("warning", "final_obs", f"not checked, because no episode ended in {play.steps:,} steps")


def _resets(play: _Play) -> Check:
    if play.other_starts:
        return Check("ok", "resets", "a simulation starts its episodes with different observations")
    if not play.ended:
        return Check("warning", "resets", f"not checked, because no episode ended in {play.steps:,} steps")
    return Check(
        "warning",
        "resets",
        "a simulation starts all its episodes with the same observation; if the initial state is not constant, "
        "draw a new one in every reset",
    )


def _seeds(play: _Play) -> Check:
    if not torch.equal(play.env.reset(_SEED), play.first):
        text = "the same seed gives other first observations; a run cannot be repeated"
        return Check("warning", "seeds", text)
    if torch.equal(play.env.reset(_SEED + 1), play.first):
        return Check("warning", "seeds", "another seed gives the same first observations")
    return Check("ok", "seeds", "the same seed gives the same first observations, another seed others")


def _saved_state(play: _Play) -> Check:
    """Save the state, step, load it and repeat the steps."""
    env: Any = play.env
    if not hasattr(env, "state_dict") or not hasattr(env, "load_state_dict"):
        text = "no state_dict and load_state_dict: a resumed run starts new episodes and is not exact"
        return Check("warning", "saved state", text)
    state, runs = {name: tensor.clone() for name, tensor in CheckedEnv(env, play.spaces).state_dict().items()}, []
    for _ in range(2):
        actions = _actions(env, play.spaces)
        steps = (env.step(next(actions)) for _ in range(_REPEATED_STEPS))
        runs.append([[part.clone() for part in step] for step in steps])
        env.load_state_dict(state)
    for number, (before, now) in enumerate(zip(*runs, strict=True), start=1):
        if not all(map(torch.equal, before, now)):
            text = f"step {number} after load_state_dict differs; a resumed run would not be exact"
            return Check("broken", "saved state", text)
    return Check("ok", "saved state", f"{_REPEATED_STEPS} steps repeat exactly after load_state_dict")


def _limit(play: _Play) -> Check:
    limit = play.env.max_episode_steps
    if limit is not None and play.longest > limit:
        text = f"an episode has {play.longest:,} steps, max_episode_steps is {limit:,}"
        return Check("broken", "time limit", text)
    if limit is not None:
        return Check("ok", "time limit", f"{limit:,} steps")
    text = f"max_episode_steps is None: an evaluation episode is cut after {UNLIMITED_EPISODE_STEPS:,} steps"
    return Check("ok" if play.ended else "warning", "time limit", text)
