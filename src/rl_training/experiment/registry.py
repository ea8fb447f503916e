"""The registry: every algorithm by name. Its regime, title and defaults are in its `<algo>_trainer.py`."""

from __future__ import annotations

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, normalise_algo
from rl_training.runtime import (
    awac_trainer,
    bc_trainer,
    cql_trainer,
    crr_trainer,
    ddpg_trainer,
    dqn_trainer,
    edac_trainer,
    iql_trainer,
    rebrac_trainer,
    redq_trainer,
    rlpd_trainer,
    sac_trainer,
    td3_bc_trainer,
    td3_trainer,
    tqc_trainer,
)
from rl_training.runtime.sections import Resolved
from rl_training.runtime.trainers import AlgorithmSpec
from rl_training.settings import nearest

__all__ = ["AlgorithmSpec", "get_algorithm_spec", "list_algorithm_specs", "resolve"]

_SPECS: dict[str, AlgorithmSpec] = {
    trainer.SPEC.name: trainer.SPEC
    for trainer in (
        dqn_trainer,
        ddpg_trainer,
        td3_trainer,
        sac_trainer,
        tqc_trainer,
        redq_trainer,
        bc_trainer,
        td3_bc_trainer,
        iql_trainer,
        cql_trainer,
        awac_trainer,
        crr_trainer,
        edac_trainer,
        rlpd_trainer,
        rebrac_trainer,
    )
}


def get_algorithm_spec(name: str) -> AlgorithmSpec:
    """The algorithm of that name; case, `+` and `-` do not matter."""
    key = normalise_algo(name)
    if key not in _SPECS:
        known = ", ".join(_SPECS)
        raise ConfigError(f"algo: unknown algorithm {name!r}{nearest(key, _SPECS)}; known: {known}", key="algo")
    return _SPECS[key]


def list_algorithm_specs() -> list[AlgorithmSpec]:
    """Every algorithm, online first, in the order they were built."""
    return list(_SPECS.values())


def resolve(config: TrainConfig) -> Resolved:
    """Check `algo_kwargs` against the sections of its algorithm, before any file is written."""
    return get_algorithm_spec(config.algo).sections.resolve(config.algo_kwargs)
