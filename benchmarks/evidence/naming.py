"""Names of algorithms, and the settings in which a run differs from the packaged configuration of its task."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from rl_training.experiment.config import load_config, packaged_configs
from rl_training.experiment.registry import resolve
from rl_training.report.reading import Run
from rl_training.study.plan import identity, left_out, short

_NAMES = {"td3_bc": "TD3+BC", "rebrac": "ReBRAC", "crossq": "CrossQ", "flash_sac": "FlashSAC", "cal_ql": "Cal-QL"}
_WORDS = {
    "layer_norm=True": "LayerNorm",
    "layer_norm=False": "no LayerNorm",
    "reward_range_scaling=True": "scaled rewards",
    "reward_range_scaling=False": "raw rewards",
    "policy_distribution=tanh": "tanh",
    "policy_distribution=gaussian": "gaussian",
    "learning_rate_schedule={'final_factor': 0.9, 'type': 'cosine'}": "lr falls to 90 %",
}
_KEYS = {"learning_rate": "lr", "learning_starts": "updates from"}


def name_of(algo: str) -> str:
    return _NAMES.get(algo, algo.upper())


def short_name(run: Run, varied: Collection[str]) -> str:
    """The algorithm of a run, followed by those `varied` settings that differ from its packaged configuration."""
    usual = _packaged(run)
    changed = {key: run.settings[key] for key in sorted(varied) if key in run.settings}
    words = [_words(short(key), value) for key, value in changed.items() if key not in usual or usual[key] != value]
    return ", ".join([name_of(run.algo), *words])


def _words(key: str, value: Any) -> str:
    text = f"{value:,}" if type(value) is int else f"{value:g}" if isinstance(value, float) else str(value)
    return _WORDS.get(f"{key}={value}", f"{_KEYS.get(key, key)} {text}")


def _packaged(run: Run) -> Mapping[str, Any]:
    """Settings of the packaged configuration for the data or environment of a run; empty if there is none."""
    first, *others = str(run.dataset.get("name")).split(" + ")
    data = "-".join([first, *(name.rpartition("-")[2] for name in others)])
    names = (f"{run.algo}/{task}" for task in (data, str(run.env_id).partition("-v")[0].lower()))
    return next((_settings(name) for name in names if name in packaged_configs()), {})


@cache
def _settings(name: str) -> Mapping[str, Any]:
    config = load_config(name).config
    return left_out(config.algo) | identity(config.to_dict() | {"algo_kwargs": resolve(config).to_dict()})
