"""Evaluate a checkpoint, predict with it, record a video of it, resume its run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rl_training.environments.filming import filmed, frame_rate, prepare_drawing, with_progress, without_render_mode
from rl_training.environments.making import spaces_of
from rl_training.environments.playing import Evaluator, Played
from rl_training.environments.tensor_playing import make_evaluator
from rl_training.environments.user_environments import UserEnvironments
from rl_training.environments.video import checked_fps, new_video, video_target
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_values import OLDER
from rl_training.runtime.loading import LoadedPolicy, load_policy, open_checkpoint
from rl_training.runtime.resume import resume_training as resume_training
from rl_training.runtime.resume_settings import changed_config
from rl_training.seeding import EVALUATION_SEED
from rl_training.settings import PositiveInt, Settings


def evaluate_checkpoint(path: str | Path, num_episodes: int | None = None, **options: Any) -> dict[str, float]:
    """The metrics of an evaluation; `options` are arguments of `play_checkpoint`."""
    metrics, _ = play_checkpoint(path, num_episodes, **options)
    return metrics


def play_checkpoint(
    path: str | Path,
    num_episodes: int | None = None,
    *,
    seed: int | None = None,
    deterministic: bool | None = None,
    stochastic: bool = False,
    changes: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    given: UserEnvironments | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[dict[str, float], Played]:
    """The metrics of an evaluation, and its episodes: those of every run's evaluations, or of another `seed`.

    If `deterministic` is False, or None for an algorithm that is evaluated so (FQL), the policy is sampled with
    noise that is seeded per episode. A deterministic policy has the same actions either way; `stochastic` samples
    too, and raises for such a policy. `changes` replace fields of the configuration, `overrides` do the same as
    `key=value`; `given` are environments without an id. `say` is called with the `env_kwargs`, if there are any.
    """
    loaded = _load(path, changes, stochastic)
    config = _played_config(loaded.config, changes, overrides)
    episodes = config.eval_episodes or 5 if num_episodes is None else _whole(num_episodes)
    evaluator = make_evaluator(config, loaded.spaces, given, seed=_episode_seed(seed))
    _require_playable(path, loaded, evaluator, episodes)
    if arguments := evaluator.config.env_kwargs:
        say(f"env_kwargs: {dict(arguments)}")
    played = _play(evaluator, loaded, episodes, False if stochastic else deterministic)
    if evaluator.notice:
        warnings.warn(evaluator.notice, stacklevel=2)
    return evaluator.summary(played), played


def _load(path: str | Path, changes: Mapping[str, Any] | None, stochastic: bool) -> LoadedPolicy:
    loaded = load_policy(open_checkpoint(path), allow_import=bool((changes or {}).get("allow_import")))
    if stochastic:
        loaded.require_stochastic()
    return loaded


def _played_config(config: TrainConfig, changes: Mapping[str, Any] | None, overrides: Sequence[str]) -> TrainConfig:
    """The run's configuration with changed settings; raises if one has no effect because `eval_env` is played.

    Warns of other settings that have no effect.
    """
    changed = changed_config(config, changes, overrides)
    names = {override.partition("=")[0].strip().partition(".")[0] for override in overrides}
    idle = [name for name in ("env_id", "env_kwargs") if name in names]
    if idle and changed.eval_env is not None and "eval_env" not in names:
        raise ConfigError.of(
            idle[0],
            f"has no effect: the run is evaluated in its eval_env, {changed.eval_env}; change that, or add --set "
            "eval_env=null",
        )
    if unused := sorted(names - TrainConfig.affecting("score", "evaluation") - {OLDER}):
        warnings.warn(f"--set {unused[0]}: has no effect on an evaluation; leave it out", stacklevel=3)
    return changed


class _Episodes(Settings):
    num_episodes: PositiveInt


def _whole(num_episodes: Any) -> int:
    return _Episodes.parse({"num_episodes": num_episodes}).num_episodes


def _require_playable(path: str | Path, loaded: LoadedPolicy, evaluator: Evaluator, episodes: int) -> None:
    """Raise if the policy cannot be evaluated in this environment."""
    config, given = evaluator.config, evaluator.given
    if config.env_id is None:
        raise ConfigError(f"{path} was trained without an environment; name one with --set env_id=…", key="env_id")
    given.check(config.replace(num_envs=1), evaluated=episodes > 1)
    if difference := spaces_of(config, given=given).difference(loaded.spaces):
        raise ConfigError.of("env_id", f"{config.env_id} does not fit the policy ({difference})")


def _episode_seed(seed: int | None) -> int:
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0):
        raise ConfigError(f"seed must be a whole number >= 0, got {seed!r}")
    return EVALUATION_SEED if seed is None else int(seed)


def _play(evaluator: Evaluator, loaded: LoadedPolicy, episodes: int, deterministic: bool | None) -> Played:
    try:
        return evaluator.play(loaded.policy, episodes, deterministic=deterministic)
    finally:
        evaluator.close()


@dataclass(frozen=True)
class Recording:
    """A video of a policy: its file, its length, and the returns and lengths of its episodes."""

    path: Path
    frames: int
    seconds: float
    returns: list[float]
    lengths: list[int]


def record_checkpoint(
    path: str | Path,
    output: str | Path,
    num_episodes: int = 1,
    *,
    seed: int | None = None,
    fps: float | None = None,
    max_steps: int | None = None,
    deterministic: bool | None = None,
    stochastic: bool = False,
    changes: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    given: UserEnvironments | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Recording:
    """Record the first episodes of an evaluation, or those of another `seed`, as a new `.mp4` or `.gif` file.

    A frame is rendered after each reset and each step. `fps` defaults to the frame rate of the environment,
    `max_steps` truncates episodes, and `say` is called with progress messages. For the other arguments see
    `play_checkpoint`.
    """
    target, episodes = video_target(output), _whole(num_episodes)
    if fps is not None:
        checked_fps(fps)
    prepare_drawing()
    loaded = _load(path, changes, stochastic)
    config = without_render_mode(_played_config(loaded.config, changes, overrides))
    if max_steps is not None:
        config = config.replace(eval_max_steps=max_steps)
    unfilmed = Evaluator(config, loaded.spaces, given)
    _require_playable(path, loaded, unfilmed, episodes)
    own = frame_rate(unfilmed.config, unfilmed.given)
    with new_video(target, checked_fps(own if fps is None else fps)) as video:
        config, given = filmed(unfilmed.config, unfilmed.given, with_progress(video.add, say))
        evaluator = Evaluator(config, loaded.spaces, given, seed=_episode_seed(seed), one_by_one=True)
        played = _play(evaluator, loaded, episodes, False if stochastic else deterministic)
    if evaluator.notice and max_steps is None:
        warnings.warn(evaluator.notice, stacklevel=2)
    return Recording(target, video.frames, video.seconds, played.returns.tolist(), played.lengths.tolist())


def predict_checkpoint(path: str | Path, obs: ArrayLike, deterministic: bool | None = None) -> NDArray[Any]:
    """The actions of a checkpoint's policy for one observation or a batch, in the environment's units."""
    return load_policy(open_checkpoint(path)).predict(obs, deterministic=deterministic)
