"""What is done with a checkpoint: evaluate it, predict with it, go on training. Predicting needs no environment."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from rl_training.algorithms.base import LearnerConfig
from rl_training.data.datasets import TransitionDataset
from rl_training.environments.filming import filmed, frame_rate, prepare_drawing, told, without_render_mode
from rl_training.environments.making import spaces_of
from rl_training.environments.playing import Evaluator, Played
from rl_training.environments.user_environments import UserEnvironments
from rl_training.environments.video import checked_fps, new_video, video_target
from rl_training.errors import CheckpointError, ConfigError, DatasetError
from rl_training.experiment import files
from rl_training.experiment.checkpointing import Checkpoint, find_checkpoint, list_checkpoints
from rl_training.experiment.compat import with_defaults_of
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.loggers import Logger
from rl_training.experiment.logging import set_log_aside
from rl_training.experiment.registry import get_algorithm_spec, resolve, setting_names
from rl_training.experiment.runs import RECORD, RESOLVED, read_run_record, results_of
from rl_training.experiment.strict_yaml import parse_yaml
from rl_training.models.actor_critic import Model
from rl_training.models.mlp import NetworkShape
from rl_training.models.policies import Policy
from rl_training.runs.callbacks import Callback
from rl_training.runs.changes import Changes, differences
from rl_training.runs.session import TrainResult
from rl_training.runs.state import (
    checkpoint_errors,
    clips_observations,
    config_of,
    has_normalizer,
    is_policy_alone,
    read_run_checkpoint,
    spaces_from,
)
from rl_training.runs.training import RunOptions
from rl_training.runtime.offline import require_data
from rl_training.seeding import EVALUATION_SEED
from rl_training.settings import at_home
from rl_training.spaces import SpaceSpec

# Settings of which one value makes, or leaves out, something that is learned.
_SWITCHES = {"alpha": "auto", "lagrange_threshold": None}


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy on the CPU with what is needed to use it."""

    policy: Policy
    spaces: SpaceSpec
    config: TrainConfig

    def predict(
        self, obs: ArrayLike, *, deterministic: bool = True, rng: np.random.Generator | None = None
    ) -> NDArray[Any]:
        """Actions in the environment's units, one for one observation, a batch for a batch.

        Without `deterministic` a stochastic policy is sampled, with `rng` or fresh randomness.
        """
        batch, noise = self.spaces.observations(obs), None
        if not deterministic and self.policy.stochastic:
            draws = (rng or np.random.default_rng()).standard_normal((len(batch), self.spaces.action_dim))
            noise = draws.astype(np.float32)
        result = self.act(batch, noise)
        return result[0] if self.spaces.is_single(obs) else result

    def act(self, batch: NDArray[np.float32], noise: NDArray[np.float32] | None = None) -> NDArray[Any]:
        """The actions for finite flat observations `[B, O]`: the mode, or what standard normal `noise` selects."""
        with torch.inference_mode():
            inputs = torch.from_numpy(batch)
            actions = (
                self.policy.mode(inputs) if noise is None else self.policy.sample(inputs, torch.from_numpy(noise))
            )
        # An observation near the end of float32 may overflow inside the network; the middle of the range is legal.
        return self.spaces.to_env(np.nan_to_num(actions.numpy(), nan=0.0))


class Values(NamedTuple):
    """What the critics expect: their mean, and how far they are apart (standard deviation; 0 of a single one).

    `[B]` each, or plain numbers for one observation.
    """

    mean: NDArray[np.float64]
    spread: NDArray[np.float64]


@dataclass(frozen=True)
class LoadedValues:
    """The value functions of a checkpoint, on the CPU."""

    model: Model
    spaces: SpaceSpec

    def predict(self, obs: ArrayLike, action: ArrayLike | None = None) -> Values:
        """Q of `action`, in the environment's units, or V: for one observation or a batch.

        One observation may have a batch of actions.
        """
        batch, single = self.spaces.observations(obs), self.spaces.is_single(obs)
        with torch.inference_mode():
            if action is None:
                found = self.model.state_values(torch.from_numpy(batch))  # [N, B]
            else:
                actions = self.spaces.actions(action)
                if single:
                    batch = np.repeat(batch, len(actions), axis=0)
                    single = np.ndim(action) == (0 if self.spaces.discrete else 1)
                if len(actions) != len(batch):
                    raise ConfigError(f"action: {len(actions)} for {len(batch)} observations; give one for each")
                internal = torch.from_numpy(actions)
                found = self.model.action_values(
                    torch.from_numpy(batch), internal.long() if self.spaces.discrete else internal
                )
        values = found.double().numpy()
        mean, spread = values.mean(0), values.std(0)
        return Values(mean[0], spread[0]) if single else Values(mean, spread)


def load_values(checkpoint: Checkpoint) -> LoadedValues:
    """Rebuild the value functions of a checkpoint; raises `ConfigError` where there are none."""
    model, spaces, config = _build_model(checkpoint)
    if not model.has_values:
        raise ConfigError(f"{config.algo} learns no value function; predict_value needs an algorithm with critics")
    if is_policy_alone(checkpoint):
        raise ConfigError(
            f"{checkpoint.path}: holds a policy without its critics; predict_value needs those of a run"
        )
    _load_networks(model, checkpoint)
    return LoadedValues(model.requires_grad_(False).eval(), spaces)


def load_policy(checkpoint: Checkpoint) -> LoadedPolicy:
    """Rebuild the policy of a checkpoint; its folder is all that is needed."""
    model, spaces, config = _build_model(checkpoint)
    _load_networks(model.policy if is_policy_alone(checkpoint) else model, checkpoint)
    policy = copy.deepcopy(model.policy).requires_grad_(False)
    return LoadedPolicy(policy.eval(), spaces, config)


def _build_model(checkpoint: Checkpoint) -> tuple[Model, SpaceSpec, TrainConfig]:
    """The networks of a checkpoint's learner as they were before it learned, and what they were made for."""
    config, spaces = config_of(checkpoint), spaces_from(checkpoint)
    kinds = get_algorithm_spec(config.algo).sections
    with checkpoint_errors(checkpoint):
        sections, resolved = kinds.resolve_for(spaces, str(checkpoint.path), config.algo_kwargs)
    with torch.random.fork_rng(devices=[]), checkpoint_errors(checkpoint, "networks"):
        model = sections.learner.build_model(
            spaces,
            resolved[NetworkShape],
            resolved[LearnerConfig],
            normalize_observations=has_normalizer(checkpoint),
        )
        if clips_observations(checkpoint):
            model.normalizer.clip()
    return model, spaces, config


def _load_networks(part: Model | Policy, checkpoint: Checkpoint) -> None:
    """Every network of a model, or of a policy alone: none may be missing, none be left over."""
    names = checkpoint.tensors["networks"]
    with checkpoint_errors(checkpoint, "networks"):
        part.load_state_dict({k.removeprefix("model."): v for k, v in names.items() if k.startswith("model.")})


def open_checkpoint(path: str | Path, warn: Callable[[str], None] = warnings.warn) -> Checkpoint:
    """Read and verify the checkpoint at `path`: a checkpoint, a run folder (its newest valid one) or `best`."""
    return read_run_checkpoint(find_checkpoint(Path(path), warn))


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
    config = _changed(loaded.config, changes, overrides)
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
    config = without_render_mode(_changed(loaded.config, changes, overrides))
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


@dataclass(frozen=True)
class Resumption:
    """What a run goes on with: its settings, changed where asked, and its checkpoint; without one, its folder."""

    config: TrainConfig
    checkpoint: Checkpoint | None
    home: Path | None


def take_up(
    path: str | Path,
    *,
    changes: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    dataset: TransitionDataset | None = None,
    given: UserEnvironments | None = None,
    start_again: bool = False,
    warn: Callable[[str], None] = warnings.warn,
) -> Resumption:
    """Find and check the settings and checkpoint that a run resumes with; see `resume_training`.

    `start_again`: from its first step, although it has a checkpoint.
    """
    if _has_no_checkpoint(home := Path(path)) or start_again:
        record = read_run_record(home)
        if not start_again:
            _require_nothing_to_lose(home, record)
        before = _config_of_run(home, record)
        data = record.get("dataset", {})
        config = _with_data(before, _changed(before, changes, overrides), data, dataset)
        _require_same_seed(before, config)
        require_data(data, dataset, home)
        changed = str(Changes(differences(before.to_dict(), config.to_dict())))
        if not start_again:
            warn(f"{home}: ended before its first checkpoint; it starts again{changed and f' with {changed}'}")
        set_log_aside(home / "metrics.csv")
        return Resumption(config, None, home)
    checkpoint = open_checkpoint(path, warn)
    if "optimizers" not in checkpoint.tensors:
        raise ConfigError(f"{checkpoint.path} holds a policy only; resume the run folder, or use --init-from")
    before = config_of(checkpoint)
    config = _with_data(before, _changed(before, changes, overrides), checkpoint.records["dataset"], dataset)
    _require_same_seed(before, config)
    _require_same_shape(before, config)
    spec = get_algorithm_spec(config.algo)
    if config.env_id is not None and (
        difference := spaces_of(config, discrete=spec.sections.takes_discrete, given=given).difference(
            spaces_from(checkpoint)
        )
    ):
        raise CheckpointError(f"{checkpoint.path}: the environment's spaces have changed ({difference})")
    return Resumption(config, checkpoint, None)


def resume_training(
    path: str | Path,
    *,
    changes: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    callbacks: Sequence[Callback] | None = None,
    dataset: TransitionDataset | None = None,
    given: UserEnvironments | None = None,
    loggers: Sequence[Logger] = (),
    quiet: bool = False,
    fence: files.Fence = files.unfenced,
    warn: Callable[[str], None] = warnings.warn,
) -> TrainResult:
    """Go on where a run folder or checkpoint stopped; a run that ended before its first checkpoint starts again.

    `changes` replace fields of the configuration, `overrides` do the same as `key=value`; `given` are
    environments that have no id, `loggers` those beside the configured ones; `fence` is asked before each write,
    where another process may take the run over.
    """
    found = take_up(path, changes=changes, overrides=overrides, dataset=dataset, given=given, warn=warn)
    return get_algorithm_spec(found.config.algo).train(
        found.config,
        checkpoint_state=found.checkpoint,
        callbacks=callbacks,
        dataset=dataset,
        given=given,
        launch=RunOptions(quiet=quiet, home=found.home, loggers=tuple(loggers), fence=fence),
    )


def _changed(config: TrainConfig, changes: Mapping[str, Any] | None, overrides: Sequence[str]) -> TrainConfig:
    """A run's configuration with some settings changed, all of them checked; the algorithm stays."""
    changed = config.replace(**(changes or {})).with_overrides(overrides, setting_names)
    if changed.algo != config.algo:
        raise ConfigError(
            f"algo: {changed.algo!r} cannot take up what {config.algo!r} trained; start a run with --init-from",
            key="algo",
        )
    resolve(changed)
    return changed


def _require_same_seed(before: TrainConfig, now: TrainConfig) -> None:
    for key, option in (("seed", "--seed"), ("seeds", "--seeds")):
        if (value := getattr(now, key)) != getattr(before, key):
            raise ConfigError(
                f"{key}: {value} cannot replace the seed {before.seed} of a run; start a new run with {option}",
                key=key,
            )


def _with_data(
    before: TrainConfig, now: TrainConfig, record: Mapping[str, Any], given: TransitionDataset | None
) -> TrainConfig:
    """`now` with its data files found. A relative path of the run starts from the folder where the run began."""
    if given is not None:
        return now
    folder = Path(str(record.get("folder", Path.cwd())))
    known = {one.get("dataset_path") for one in _choices(before)}
    mixture = bool(now.algo_kwargs.get("datasets"))
    remedy = f"if it was moved, add --set {'datasets' if mixture else 'dataset_path'}=…"
    found = [{**one, **_found(one.get("dataset_path"), known, folder, remedy)} for one in _choices(now)]
    return now.replace(algo_kwargs={**now.algo_kwargs, "datasets": found} if mixture else found[0])


def _choices(config: TrainConfig) -> list[Mapping[str, Any]]:
    """Settings that may name a data file: those of each part of a mixture, or the algorithm's own."""
    parts = config.algo_kwargs.get("datasets") or (config.algo_kwargs,)
    return [one for one in parts if isinstance(one, Mapping)]


def _found(path: Any, known: Container[Any], folder: Path, remedy: str) -> dict[str, str]:
    """`dataset_path` as it is from here; empty if it stays the same."""
    path = at_home(path)
    if not isinstance(path, str):
        return {}
    here, there = Path.cwd() / path, folder / path
    if path in known and there.is_file():
        return {} if there == here else {"dataset_path": str(there)}
    if not here.exists():
        begun = "" if there == here else f" here or in {folder}, where the run began"
        raise DatasetError(f"{path}: does not exist{begun}; {remedy}")
    return {}


def _require_same_shape(before: TrainConfig, now: TrainConfig) -> None:
    """Refuse what a run cannot change under way."""
    if now.num_envs != before.num_envs:
        raise ConfigError(
            f"num_envs: {now.num_envs} differs from the run's {before.num_envs}, whose episodes are under way",
            key="num_envs",
        )
    new, old = (resolve(config) for config in (now, before))
    shapes = new[NetworkShape].model_dump(mode="json")
    of_networks = [*shapes, *get_algorithm_spec(now.algo).learner.fixed_by_model, "normalize_observations"]
    for name, value in new.to_dict().items():
        was = old.to_dict()[name]
        if name in of_networks and value != was:
            raise ConfigError(
                f"algo_kwargs.{name}: {value} differs from the {was} of this run's networks; start a new run",
                key=f"algo_kwargs.{name}",
            )
        if name in _SWITCHES and (value == _SWITCHES[name]) != (was == _SWITCHES[name]):
            raise ConfigError(
                f"algo_kwargs.{name}: cannot become {value} where it was {was}: a run under way cannot begin or "
                "stop learning it; start a new run, with --init-from for these networks",
                key=f"algo_kwargs.{name}",
            )


def _has_no_checkpoint(home: Path) -> bool:
    """Whether `home` is a run folder without a checkpoint: it never had one, or they were deleted."""
    return (home / RECORD).is_file() and (home / RESOLVED).is_file() and not list_checkpoints(home / "checkpoints")


def _require_nothing_to_lose(home: Path, record: Mapping[str, Any]) -> None:
    """Starting again in place would replace what the run left behind: refuse unless that is only a log."""
    if results := results_of(home, record):
        best = home / "best"
        way = (
            f"--init-from {best} starts a new run from its best policy"
            if list_checkpoints(best)
            else f"rl-training train --config {home / RESOLVED} makes it again in a new folder"
        )
        raise ConfigError(f"{home}: has no checkpoint to resume from, but {results}; {way}")


def _config_of_run(home: Path, record: Mapping[str, Any]) -> TrainConfig:
    """The configuration a run folder was made with; like a checkpoint, it cannot permit imports."""
    place = home / RESOLVED
    values = parse_yaml(place.read_text(encoding="utf-8", errors="replace"), str(place)).value
    if not isinstance(values, dict):
        raise ConfigError(f"{place}: expected a mapping of settings; start a new run")
    try:
        config = TrainConfig.parse({**values, "allow_import": False})
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}", key=error.key) from None
    return with_defaults_of(record.get("schema"), config)
