"""The managed API, imported on first use; type checkers read `__init__.pyi`."""

from rl_training.lazy import lazy

__all__ = [
    "AWAC",
    "BC",
    "CQL",
    "CRR",
    "DDPG",
    "DQN",
    "EDAC",
    "FQL",
    "IQL",
    "REDQ",
    "RLPD",
    "SAC",
    "TD3",
    "TD3BC",
    "TQC",
    "CalQL",
    "CrossQ",
    "FlashSAC",
    "ManagedAlgorithm",
    "ReBRAC",
    "load",
]

__getattr__, __dir__ = lazy(__name__, dict.fromkeys(__all__, "rl_training.api.algorithms"))
