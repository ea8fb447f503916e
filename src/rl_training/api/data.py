"""The argument `dataset` of `learn`: data in memory, or settings that name a file."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.data.datasets import TransitionDataset
from rl_training.data.formats import kind_of
from rl_training.environments.making import spaces_of
from rl_training.environments.user_environments import UserEnvironments
from rl_training.errors import ConfigError, nearest
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import resolve, spec_of
from rl_training.runtime.online import learns_without_data
from rl_training.runtime.resume_settings import DATA_KEYS, data_keys

Data = TransitionDataset | str | os.PathLike[str] | Mapping[str, Any] | None


def resolve_data(
    given: Data, config: TrainConfig, environments: UserEnvironments | None = None
) -> tuple[TrainConfig, TransitionDataset | None]:
    """The configuration, with settings that name the file `given`, and data in memory."""
    if given is None or isinstance(given, TransitionDataset):
        return config, given
    spec = spec_of(config)
    if "dataset_kind" not in spec.sections.owners():
        raise learns_without_data(spec.name, spec.plugin)
    if isinstance(given, Mapping):
        return config, _from_mapping(given, config, environments)
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(
            "dataset: give a TransitionDataset, a file (.npz, .hdf5), a Minari id or a mapping of arrays, "
            f"got {type(given).__name__}"
        )
    kept = {key: value for key, value in config.algo_kwargs.items() if key not in DATA_KEYS}
    kind = kind_of(given)
    key = "dataset_id" if kind == "minari" else "dataset_path"
    config = config.replace(algo_kwargs={**kept, "dataset_kind": kind, key: os.fspath(given)})
    resolve(config)
    return config, None


def _from_mapping(
    arrays: Mapping[str, Any], config: TrainConfig, given: UserEnvironments | None
) -> TransitionDataset:
    """Call `from_arrays`; the environment or the settings supply missing action bounds."""
    parameters = inspect.signature(TransitionDataset.from_arrays).parameters
    needed = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    for name in arrays:
        if name not in parameters:
            hint = nearest(str(name), parameters) or f"; known: {', '.join(parameters)}"
            raise ConfigError(f"dataset: unknown key {name!r}{hint}")
    if missing := [name for name in needed if name not in arrays]:
        raise ConfigError(f"dataset: {missing[0]!r} is missing; needed: {', '.join(needed)}")
    if config.env_id is None:
        known = {name: config.algo_kwargs.get(name) for name in ("action_low", "action_high", "num_actions")}
    else:
        known = {"spaces": spaces_of(config, given=given)}
    return TransitionDataset.from_arrays(**{**known, **arrays})


def require_one_source(dataset: Data, overrides: Sequence[str]) -> None:
    """Raise if `key=value` overrides name data in addition to `dataset`."""
    if dataset is not None and (keys := data_keys(overrides)):
        raise ConfigError(f"give the data with --dataset or with --set {keys[0]}, not with both")
