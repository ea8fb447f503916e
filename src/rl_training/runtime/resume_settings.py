"""The settings of a resumed run: those that may change, and the location of its data files."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from rl_training.data.datasets import TransitionDataset
from rl_training.errors import ConfigError, DatasetError
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import resolve, setting_names, spec_of
from rl_training.models.mlp import NetworkShape
from rl_training.runs.state import steps_made
from rl_training.settings import at_home

# Settings of rows in a replay buffer: rewards are stored scaled, and truncations only for n-step returns.
_OF_ROWS = ("n_step", "reward_scale", "reward_shift", "reward_range_scaling")
# Settings for which one value determines whether a parameter is learned.
_SWITCHES = {"alpha": "auto", "lagrange_threshold": None}


def changed_config(config: TrainConfig, changes: Mapping[str, Any] | None, overrides: Sequence[str]) -> TrainConfig:
    """A run's configuration with changed settings, all of them validated; algorithm and regime cannot change."""
    changed = config.replace(**(changes or {})).with_overrides(overrides, setting_names)
    if changed.algo != config.algo:
        raise ConfigError(
            f"algo: {changed.algo!r} cannot resume what {config.algo!r} trained; start a run with init_from",
            key="algo",
        )
    spec = spec_of(changed)
    if spec.chosen(changed.regime) != spec.chosen(config.regime):
        raise ConfigError("regime: cannot change in a resumed run; start a run with init_from", key="regime")
    resolve(changed)
    return changed


def require_same_seed(before: TrainConfig, now: TrainConfig) -> None:
    for key, option in (("seed", "--seed"), ("seeds", "--seeds")):
        if (value := getattr(now, key)) != getattr(before, key):
            raise ConfigError(
                f"{key}: {value} cannot replace the seed {before.seed} of a run; start a new run with {option}",
                key=key,
            )


def with_data(
    before: TrainConfig,
    now: TrainConfig,
    record: Mapping[str, Any],
    given: TransitionDataset | None,
    cause: str = "if it was moved",
) -> TrainConfig:
    """`now` with located data files; relative paths start from the folder where the run was started.

    `cause` is part of the message if a file does not exist.
    """
    if given is not None:
        return now
    folder = Path(str(record.get("folder", Path.cwd())))
    known = {one.get("dataset_path") for one in _dataset_settings(before)}
    mixture = bool(now.algo_kwargs.get("datasets"))
    remedy = f"{cause}, add --set {'datasets' if mixture else 'dataset_path'}=…"
    found = [{**one, **_located(one.get("dataset_path"), known, folder, remedy)} for one in _dataset_settings(now)]
    return now.replace(algo_kwargs={**now.algo_kwargs, "datasets": found} if mixture else found[0])


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
    _require_larger_total(checkpoint, before, now)
    _require_same_shape(before, now)
    _require_same_capacity(checkpoint, now)
    if checkpoint.rows is not None:
        _require_same_rows(before, now)


def _require_larger_total(checkpoint: Checkpoint, before: TrainConfig, now: TrainConfig) -> None:
    made, total = steps_made(checkpoint), now.total_timesteps
    if total < min(made, before.total_timesteps):
        raise ConfigError(
            f"total_timesteps: {total:,} is below the {made:,} steps already made",
            key="total_timesteps",
        )


def _require_same_shape(before: TrainConfig, now: TrainConfig) -> None:
    if now.num_envs != before.num_envs:
        raise ConfigError(
            f"num_envs: {now.num_envs} differs from the run's {before.num_envs}, whose episodes are under way",
            key="num_envs",
        )
    new, old = (resolve(config) for config in (now, before))
    shapes = new[NetworkShape].model_dump(mode="json")
    of_networks = [*shapes, *spec_of(now).learner.fixed_by_model, "normalize_observations", "normalize_rewards"]
    for name, value in new.to_dict().items():
        was = old.to_dict()[name]
        if name in of_networks and value != was:
            raise ConfigError(
                f"algo_kwargs.{name}: {value} differs from the {was} of this run's networks; start a new run",
                key=f"algo_kwargs.{name}",
            )
        if name in _SWITCHES and (value == _SWITCHES[name]) != (was == _SWITCHES[name]):
            raise ConfigError(
                f"algo_kwargs.{name}: cannot change from {was} to {value}: a resumed run cannot start or stop "
                "learning it; start a new run, with init_from for these networks",
                key=f"algo_kwargs.{name}",
            )


def _require_same_capacity(checkpoint: Checkpoint, now: TrainConfig) -> None:
    rows, capacity = checkpoint.rows, resolve(now).to_dict().get("buffer_capacity")
    if rows is not None and capacity is not None and rows.capacity != capacity:
        raise ConfigError(
            f"algo_kwargs.buffer_capacity: {capacity} differs from the checkpoint's {rows.capacity}",
            key="algo_kwargs.buffer_capacity",
        )


def _require_same_rows(before: TrainConfig, now: TrainConfig) -> None:
    """Raise if a setting has changed that the stored rows depend on."""
    late = [column.settings for column in spec_of(now).learner.extras if column.at_end is not None]
    new, old = (resolve(config).to_dict() for config in (now, before))
    for name in (*_OF_ROWS, *chain(*late)):
        if (value := new.get(name)) != (was := old.get(name)):
            raise ConfigError(
                f"algo_kwargs.{name}: {value} differs from the {was} of this run's replay buffer; start a new run",
                key=f"algo_kwargs.{name}",
            )
