"""Compatibility: records have a schema number, and old ones are read with the defaults of their version.

A checkpoint stores its settings with all defaults, so a later change of a default does not affect existing runs.
Version 0.1 stored only the user's settings and no schema number; its defaults are stored in a data file.

Schema 1 (no number is written): 0.1. Schema 2: `schema` in run.json, trainer.json and metrics.csv; every default in
config.json.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Mapping
from importlib import resources
from typing import Any

from rl_training.errors import CheckpointError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import SCHEMA

# Settings of `early_stopping` that only version 0.2 had, with their defaults.
REMOVED_FROM_EARLY_STOPPING = {"metric": "return", "fqe_updates": 2_000}
# Settings that version 0.2 did not have, with their defaults, which mean what 0.2 did.
ADDED_SINCE_0_2: dict[str, Any] = {
    "actor_starts": None,
    "bf16": False,
    "n_step": 1,
    "network": "mlp",
    "network_kwargs": {},
    "normalize_rewards": False,
    "online_warmup_steps": None,
    "random_block_steps": 50,
    "regime": None,
    "residual_blocks": 2,
}
# The same for one algorithm.
ADDED_TO: dict[str, dict[str, Any]] = {
    "cql": {"backup_actions": 1, "num_critics": 2, "subset_size": 2},
    "rebrac": {"exploration_noise": 0.1},
    "redq": {"actor_learning_rate": None, "actor_objective": "mean"},
}
# Algorithms whose policy was `tanh` before `policy_distribution` was a setting. BC on discrete actions, whose
# record has no `stochastic`, has no such setting; IQL's default has not changed.
_SQUASHED = {"awac", "bc", "crr"}
# Algorithms whose actor was updated from the first update on before `actor_starts` was a setting.
_ACTOR_CRITICS = {"ddpg", "td3", "sac", "tqc", "redq", "rlpd"}


def with_defaults_of(schema: Any, config: TrainConfig) -> TrainConfig:
    """`config`, read from a record of that schema, with the defaults of its version."""
    if schema is not None and (type(schema) is not int or schema > SCHEMA):
        raise CheckpointError(f"records of schema {schema!r} need a newer rl_training (this one reads {SCHEMA})")
    given = without_fqe_stopping(config.algo_kwargs)
    if schema is None:
        given = {**_defaults_0_1().get(config.algo, {}), **given}
    if config.init_from is not None and "learning_starts" in given:
        # Before `random_steps` was a setting, runs with `init_from` also acted at random until `learning_starts`.
        given = {"random_steps": given["learning_starts"], **given}
    if config.init_from is not None and config.algo in _ACTOR_CRITICS:
        given = {"actor_starts": 0, **given}
    if config.algo in _SQUASHED and (config.algo != "bc" or "stochastic" in given):
        given = {"policy_distribution": "tanh", **given}
    return config if given == config.algo_kwargs else config.replace(algo_kwargs=given)


def without_fqe_stopping(algo_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a record without early stopping by FQE, which only version 0.2 had."""
    given, stopping = dict(algo_kwargs), algo_kwargs.get("early_stopping")
    if not isinstance(stopping, Mapping):
        return given
    if stopping.get("metric") == "fqe":
        warnings.warn(
            "early_stopping: metric: fqe of this run was removed; it resumes without early stopping", stacklevel=2
        )
        return given | {"early_stopping": None}
    return given | {
        "early_stopping": {name: v for name, v in stopping.items() if name not in REMOVED_FROM_EARLY_STOPPING}
    }


@functools.cache
def _defaults_0_1() -> dict[str, dict[str, Any]]:
    text = resources.files("rl_training").joinpath("assets", "history", "defaults-0.1.json").read_text("utf-8")
    return json.loads(text)
