"""rl_training: online, offline and offline-to-online reinforcement learning through one API.

Names are imported when they are first used: torch takes seconds, which a misspelt command need not wait for.
"""

import gc
from contextlib import contextmanager
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
else:
    _HOMES = {
        "Callback": "rl_training.runtime.callbacks",
        "TrainConfig": "rl_training.experiment.config",
        "TrainResult": "rl_training.runtime.session",
        "TransitionDataset": "rl_training.data.datasets",
    }

    @contextmanager
    def _no_collection():
        """Importing torch makes some 200,000 objects that stay, which the collector would visit in vain."""
        wanted = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if wanted:
                gc.enable()

    def __getattr__(name):
        """A name of `__all__` from its module, or a subpackage."""
        from importlib import import_module

        if name in __all__:
            with _no_collection():
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
