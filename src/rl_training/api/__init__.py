"""The managed API."""

from rl_training.api.algorithms import (
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
)

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
    "ManagedAlgorithm",
    "ReBRAC",
]
