"""rl_training: online, offline and offline-to-online reinforcement learning through one API.

Names are imported when they are first used: torch takes seconds, which a misspelt command need not wait for.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "AWAC",
    "BC",
    "CQL",
    "CRR",
    "DDPG",
    "DQN",
    "EDAC",
    "IQL",
    "REDQ",
    "RLPD",
    "SAC",
    "TD3",
    "TD3BC",
    "TQC",
    "Callback",
    "ManagedAlgorithm",
    "ReBRAC",
    "Study",
    "TrainConfig",
    "TrainResult",
    "TransitionDataset",
    "load",
]

if TYPE_CHECKING:
    from rl_training.api import (
        AWAC,
        BC,
        CQL,
        CRR,
        DDPG,
        DQN,
        EDAC,
        IQL,
        REDQ,
        RLPD,
        SAC,
        TD3,
        TD3BC,
        TQC,
        ManagedAlgorithm,
        ReBRAC,
        load,
    )
    from rl_training.data.datasets import TransitionDataset
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.session import TrainResult
    from rl_training.study import Study
else:
    _HOMES = {
        "Callback": "rl_training.runtime.callbacks",
        "Study": "rl_training.study",
        "TrainConfig": "rl_training.experiment.config",
        "TrainResult": "rl_training.runtime.session",
        "TransitionDataset": "rl_training.data.datasets",
    }

    def __getattr__(name):
        """A name of `__all__` from its module, or a subpackage."""
        from importlib import import_module

        if name in __all__:
            globals()[name] = value = getattr(import_module(_HOMES.get(name, "rl_training.api")), name)
            return value
        try:
            if not name.startswith("_"):
                return import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})
