"""rl_training: online, offline and offline-to-online reinforcement learning through one API."""

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
