"""The settings of a resumed run: those that may change, and the location of its data files."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from rl_training.data.datasets import TransitionDataset
from rl_training.errors import ConfigError, DatasetError
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import resolve, setting_names, spec_of
from rl_training.models.mlp import NetworkShape
from rl_training.runs.state import spaces_from, steps_made
from rl_training.settings import at_home

# Settings that name data.
DATA_KEYS = ("dataset_kind", "dataset_path", "dataset_id", "dataset_size", "dataset_seed", "datasets")
# Settings of networks, in addition to their shapes and those that the learner names.
_OF_NETWORKS = ("normalize_observations", "normalize_rewards", "initial_alpha")
# Settings of rows in a replay buffer: rewards are stored scaled, and truncations only for n-step returns.
_OF_ROWS = ("n_step", "reward_scale", "reward_shift", "reward_range_scaling")
# Settings for which one value determines whether a parameter is learned.
_SWITCHES = {"alpha": "auto", "lagrange_threshold": None}


def changed_config(config: TrainConfig, changes: Mapping[str, Any] | None, overrides: Sequence[str]) -> TrainConfig:
    """A run's configuration with changed settings, all of them validated; algorithm and regime cannot change."""
    changed = config.replace(**(changes or {})).with_overrides(overrides, setting_names)
    if changed.algo != config.algo:
        raise ConfigError.of(
            "algo", f"{changed.algo!r} cannot resume what {config.algo!r} trained; start a run with init_from"
        )
    spec = spec_of(changed)
    if spec.chosen(changed.regime) != spec.chosen(config.regime):
        raise ConfigError.of("regime", "cannot change in a resumed run; start a run with init_from")
    resolve(changed)
    return changed


def require_same_seed(before: TrainConfig, now: TrainConfig) -> None:
    for key, option in (("seed", "--seed"), ("seeds", "--seeds")):
        if (value := getattr(now, key)) != getattr(before, key):
            raise ConfigError.of(
                key, f"{value} cannot replace the seed {before.seed} of a run; start a new run with {option}"
            )


def with_data(
    before: TrainConfig,
    now: TrainConfig,
    record: Mapping[str, Any],
    given: TransitionDataset | None,
    cause: str = "if it was moved",
    named: Collection[str] = (),
) -> TrainConfig:
    """`now` with located data files; relative paths start from the folder where the run was started.

    Paths in `named` settings, which this resume gives, start from the current folder if the file is there. `cause`
    is part of the message if a file does not exist.
    """
    if given is not None:
        return now
    folder = Path(str(record.get("folder", Path.cwd())))
    known = {one.get("dataset_path") for one in _dataset_settings(before)}
    if "dataset_path" in named or "datasets" in named:
        known = {path for path in known if not (path and Path(path).is_file())}
    mixture = bool(now.algo_kwargs.get("datasets"))
    remedy = f"{cause}, add --set {'datasets' if mixture else 'dataset_path'}=…"
    found = [{**one, **_located(one.get("dataset_path"), known, folder, remedy)} for one in _dataset_settings(now)]
    return now.replace(algo_kwargs={**now.algo_kwargs, "datasets": found} if mixture else found[0])


def naming_data(config: TrainConfig) -> dict[str, Any]:
    """The settings that name the data of `config`, and replace those that named other data."""
    named = {key: value for key, value in config.algo_kwargs.items() if key in DATA_KEYS}
    return {"dataset_path": None, "dataset_id": None, "datasets": (), **named} if named else {}


def data_keys(overrides: Sequence[str]) -> list[str]:
    """The keys of `key=value` overrides that name data."""
    keys = [text.partition("=")[0].strip().removeprefix("algo_kwargs.").partition(".")[0] for text in overrides]
    return [key for key in keys if key in DATA_KEYS]


def _dataset_settings(config: TrainConfig) -> list[Mapping[str, Any]]:
    """Settings that may name a data file: those of each part of a mixture, or the algorithm's own."""
    parts = config.algo_kwargs.get("datasets") or (config.algo_kwargs,)
    return [one for one in parts if isinstance(one, Mapping)]


def _located(path: Any, known: Container[Any], folder: Path, remedy: str) -> dict[str, str]:
    """`dataset_path` relative to the current folder; empty if it does not change."""
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


def require_resumable(checkpoint: Checkpoint, before: TrainConfig, now: TrainConfig) -> None:
    """Raise if settings have changed that the networks, the environments, the replay buffer or the steps fix."""
    made, total = steps_made(checkpoint), now.total_timesteps
    if total < min(made, before.total_timesteps):
        raise ConfigError.of("total_timesteps", f"{total:,} is below the {made:,} steps already made")
    if now.num_envs != before.num_envs:
        raise ConfigError.of(
            "num_envs", f"{now.num_envs} differs from the run's {before.num_envs}, whose episodes are under way"
        )
    if now.init_from != before.init_from:
        raise ConfigError.of("init_from", "cannot change in a resumed run; start a new run with --init-from")
    spaces, sections = spaces_from(checkpoint), spec_of(now).chosen(now.regime)[1]
    chosen, resolved = sections.resolve_for(spaces, str(checkpoint.path), now.algo_kwargs)
    learner, shapes = chosen.learner, resolved[NetworkShape].model_dump()
    new, old = resolved.to_dict(), chosen.resolve(before.algo_kwargs).to_dict()
    _require_same(new, old, (*shapes, *learner.fixed_by_model, *_OF_NETWORKS), "networks")
    for name, learned in _SWITCHES.items():
        if ((value := new.get(name)) == learned) != ((was := old.get(name)) == learned):
            raise ConfigError.of(
                f"algo_kwargs.{name}",
                f"cannot change from {was} to {value}: a resumed run cannot start or stop learning it; start a new "
                "run, with init_from for these networks",
            )
    if (rows := checkpoint.rows) is None:
        return
    if (capacity := new.get("buffer_capacity", rows.capacity)) != rows.capacity:
        raise ConfigError.of(
            "algo_kwargs.buffer_capacity", f"{capacity} differs from the checkpoint's {rows.capacity}"
        )
    late = [column.settings for column in learner.extras if column.at_end is not None]
    _require_same(new, old, (*_OF_ROWS, *chain(*late)), "replay buffer")


def _require_same(new: Mapping[str, Any], old: Mapping[str, Any], names: Iterable[str], of: str) -> None:
    """Raise if a setting has changed that the networks or the stored rows depend on."""
    for name in names:
        if (value := new.get(name)) != (was := old.get(name)):
            raise ConfigError.of(
                f"algo_kwargs.{name}", f"{value} differs from the {was} of this run's {of}; start a new run"
            )
