"""Evaluate a checkpoint, predict with it, record a video of it, resume it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike, NDArray

from rl_training.environments.filming import filmed, frame_rate, prepare_drawing, told, without_render_mode
from rl_training.environments.making import spaces_of
from rl_training.environments.playing import Evaluator, Played
from rl_training.environments.user_environments import UserEnvironments
from rl_training.environments.video import checked_fps, new_video, video_target
from rl_training.errors import ConfigError
from rl_training.runtime.loading import LoadedPolicy, load_policy, open_checkpoint
from rl_training.runtime.resume import changed_config, resume_training
from rl_training.seeding import EVALUATION_SEED

__all__ = [
    "Recording",
    "evaluate_checkpoint",
    "play_checkpoint",
    "predict_checkpoint",
    "record_checkpoint",
    "resume_training",
]


def evaluate_checkpoint(
    path: str | Path,
    num_episodes: int | None = None,
    *,
    deterministic: bool = True,
    changes: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    given: UserEnvironments | None = None,
) -> dict[str, float]:
    """Mean return and its companions over fixed evaluation seeds; see `play_checkpoint`."""
    metrics, _ = play_checkpoint(
        path, num_episodes, deterministic=deterministic, changes=changes, overrides=overrides, given=given
    )
    return metrics


def play_checkpoint(
    path: str | Path,
    num_episodes: int | None = None,
    *,
    deterministic: bool = True,
    changes: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    given: UserEnvironments | None = None,
) -> tuple[dict[str, float], Played]:
    """The metrics of an evaluation, and the episodes they sum up.

    Without `deterministic` a stochastic policy is sampled, with noise that belongs to the episode: the same again.
    `changes` replace fields of the configuration, `overrides` do the same as `key=value`; `given` are
    environments that have no id.
    """
    loaded = load_policy(open_checkpoint(path))
    config = changed_config(loaded.config, changes, overrides)
    episodes = config.eval_episodes or 5 if num_episodes is None else num_episodes
    evaluator = Evaluator(config, loaded.spaces, given)
    _require_playable(path, loaded, evaluator, episodes)
    played = _played(evaluator, loaded, episodes, deterministic)
    if evaluator.notice:
        warnings.warn(evaluator.notice, stacklevel=2)
    return evaluator.summary(played), played


def _require_playable(path: str | Path, loaded: LoadedPolicy, evaluator: Evaluator, episodes: int) -> None:
    """Refuse what the policy cannot play in, before anything is played."""
    config, given = evaluator.config, evaluator.given
    if episodes < 1:
        raise ConfigError(f"num_episodes must be >= 1, got {episodes}")
    if config.env_id is None:
        raise ConfigError(f"{path} was trained without an environment; name one with --set env_id=…", key="env_id")
    given.check(config.replace(num_envs=1), evaluated=episodes > 1)
    if difference := spaces_of(config, given=given).difference(loaded.spaces):
        raise ConfigError(f"env_id: {config.env_id} does not fit the policy ({difference})", key="env_id")


def _played(evaluator: Evaluator, loaded: LoadedPolicy, episodes: int, deterministic: bool) -> Played:
    try:
        return evaluator.play(loaded.policy, episodes, deterministic=deterministic)
    finally:
        evaluator.close()


@dataclass(frozen=True)
class Recording:
    """A video of a policy: where it is, how much it shows, and the episodes in it."""

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
    deterministic: bool = True,
    changes: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    given: UserEnvironments | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Recording:
    """Film the first episodes of an evaluation, or those of another `seed`, into a new `.mp4` or `.gif` file.

    A frame is drawn after each reset and each step. `fps` is by default what the environment says of itself,
    `max_steps` cuts episodes, `say` is told how far it is; the rest is as in `play_checkpoint`.
    """
    target = video_target(output)
    if fps is not None:
        checked_fps(fps)
    prepare_drawing()
    loaded = load_policy(open_checkpoint(path))
    config = without_render_mode(changed_config(loaded.config, changes, overrides))
    if max_steps is not None:
        config = config.replace(eval_max_steps=max_steps)
    plain = Evaluator(config, loaded.spaces, given)
    _require_playable(path, loaded, plain, num_episodes)
    own = frame_rate(plain.config, plain.given)
    with new_video(target, checked_fps(own if fps is None else fps)) as video:
        config, given = filmed(plain.config, plain.given, told(video.add, say))
        seed = EVALUATION_SEED if seed is None else seed
        evaluator = Evaluator(config, loaded.spaces, given, seed=seed, one_by_one=True)
        played = _played(evaluator, loaded, num_episodes, deterministic)
    if evaluator.notice and max_steps is None:
        warnings.warn(evaluator.notice, stacklevel=2)
    return Recording(target, video.frames, video.seconds, played.returns.tolist(), played.lengths.tolist())


def predict_checkpoint(path: str | Path, obs: ArrayLike, deterministic: bool = True) -> NDArray[Any]:
    """The checkpoint's action for one observation or a batch, in the environment's units."""
    return load_policy(open_checkpoint(path)).predict(obs, deterministic=deterministic)
