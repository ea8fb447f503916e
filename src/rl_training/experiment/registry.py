"""The registry: every algorithm by name. Its regime, title and defaults are in its `<algo>_trainer.py`.

A trainer is imported on first use, so that a misspelt name raises without importing torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from rl_training.errors import ConfigError, nearest
from rl_training.experiment.config import TrainConfig, normalise_algo
from rl_training.lazy import lazy

if TYPE_CHECKING:
    from rl_training.runs.sections import Resolved
    from rl_training.runtime.trainers import AlgorithmSpec
else:
    __getattr__, __dir__ = lazy(__name__, {"AlgorithmSpec": "rl_training.runtime.trainers"})

__all__ = [
    "AlgorithmSpec",
    "algorithm_name",
    "algorithm_names",
    "get_algorithm_spec",
    "list_algorithm_specs",
    "resolve",
    "setting_names",
]

_NAMES = (
    "dqn",
    "ddpg",
    "td3",
    "sac",
    "tqc",
    "redq",
    "bc",
    "td3_bc",
    "iql",
    "cql",
    "awac",
    "crr",
    "edac",
    "rlpd",
    "rebrac",
)
# The specs imported so far.
_SPECS: dict[str, AlgorithmSpec] = {}


def algorithm_names() -> list[str]:
    """The names of all algorithms, online ones first."""
    return list(dict.fromkeys((*_NAMES, *_SPECS)))


def algorithm_name(name: str) -> str:
    """The registry's spelling of a name (case, `+` and `-` do not matter); raises for an unknown one."""
    key, known = normalise_algo(name), algorithm_names()
    if key not in known:
        raise ConfigError(
            f"algo: unknown algorithm {name!r}{nearest(key, known)}; known: {', '.join(known)}", key="algo"
        )
    return key


def get_algorithm_spec(name: str) -> AlgorithmSpec:
    """The algorithm of that name; case, `+` and `-` do not matter."""
    key = algorithm_name(name)
    if key not in _SPECS:
        _SPECS[key] = import_module(f"rl_training.runtime.{key}_trainer").SPEC
    return _SPECS[key]


def list_algorithm_specs() -> list[AlgorithmSpec]:
    """The specs of `algorithm_names`, in that order."""
    return [get_algorithm_spec(name) for name in algorithm_names()]


def setting_names(algo: str) -> list[str]:
    """The keys of `algo_kwargs` of an algorithm."""
    return list(get_algorithm_spec(algo).sections.owners())


def resolve(config: TrainConfig) -> Resolved:
    """Validate `algo_kwargs` with the sections of the algorithm, before any file is written."""
    return get_algorithm_spec(config.algo).sections.resolve(config.algo_kwargs)
