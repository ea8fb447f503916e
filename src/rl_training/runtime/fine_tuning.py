"""The configuration of a run that fine-tunes an offline run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.algorithms.base import LearnerConfig
from rl_training.data.loading import DatasetConfig
from rl_training.data.n_step import NStepConfig
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.gallery import GALLERY
from rl_training.experiment.registry import list_algorithm_specs, setting_names, spec_of
from rl_training.experiment.retention import find_origin
from rl_training.models.mlp import NetworkShape
from rl_training.runs.state import config_of, read_run_checkpoint, spaces_from
from rl_training.runtime.offline_to_online import OfflineToOnline
from rl_training.runtime.resume_settings import data_keys, with_data
from rl_training.runtime.trainers import AlgorithmSpec
from rl_training.settings import seed_list

_KEPT = LearnerConfig, NetworkShape, DatasetConfig, NStepConfig


def fine_tuning_config(run: str, changes: Mapping[str, Any], overrides: Sequence[str] = ()) -> TrainConfig:
    """The settings of an offline run with `regime: offline_to_online`, `changes` and `key=value` overrides.

    Hyperparameters, networks and data are those of the run. Settings that count its updates (schedule, budgets,
    `eval_interval`) are not kept. `run` is a folder or checkpoint, in which `{seed}` stands for the seed.
    """
    seeds = changes.get("seeds")
    checkpoint = read_run_checkpoint(
        find_origin(run, changes.get("seed") if seeds is None else seed_list(seeds)[0])
    )
    before = config_of(checkpoint).replace(allow_import=changes.get("allow_import", False))
    spec = spec_of(before)
    regime, sections = spec.chosen(before.regime)
    if regime.key() != "offline":
        raise ConfigError(f"{run}: not an offline run; use resume, or init_from in a new run")
    if not _can_continue(spec):
        able = [one.name for one in list_algorithm_specs() if _can_continue(one)]
        raise ConfigError(f"{run}: {spec.name} cannot be fine-tuned, only {', '.join(able)}")
    owners, given = sections.owners(), before.algo_kwargs
    kept = {key: value for key, value in given.items() if key == "batch_size" or issubclass(owners[key], _KEPT)}
    fields = {
        "regime": OfflineToOnline.key(),
        "init_from": run,
        "algo_kwargs": kept,
        "given_envs": tuple(key for key in before.given_envs if key not in changes),
        **({} if seeds is None else {"seed": None}),
        **changes,
    }
    config = before.replace(**fields).with_overrides(overrides, setting_names)
    if spaces_from(checkpoint).discrete:
        raise ConfigError(f"{run}: its actions are discrete; only continuous ones can be fine-tuned")
    data = checkpoint.records["dataset"]
    if data.get("in_memory"):
        raise ConfigError(
            f"{run}: was trained on arrays in memory; start a run with init_from, regime offline_to_online and "
            "learn(dataset=…)"
        )
    published = checkpoint.path.is_relative_to(GALLERY)
    cause = "a published policy comes without its data" if published else "if it was moved"
    return with_data(before, config, data, None, cause, data_keys(overrides))


def _can_continue(spec: AlgorithmSpec) -> bool:
    """Whether the algorithm trains offline and then online."""
    return {"offline", OfflineToOnline.key()} <= {regime.key() for regime in spec.regimes}
