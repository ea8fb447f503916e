"""Learners: the mathematics of each algorithm, in a page."""

from rl_training.algorithms.base import Learner, LearnerConfig, UpdateResult
from rl_training.algorithms.ddpg import DDPG, ddpg_loss
from rl_training.algorithms.dqn import DQN, dqn_loss
from rl_training.algorithms.redq import REDQ, redq_loss
from rl_training.algorithms.sac import SAC, sac_loss
from rl_training.algorithms.td3 import TD3, td3_loss
from rl_training.algorithms.tqc import TQC, tqc_loss

DDPGAlgorithm = DDPG
DQNAlgorithm = DQN
REDQAlgorithm = REDQ
SACAlgorithm = SAC
TD3Algorithm = TD3
TQCAlgorithm = TQC

__all__ = [
    "DDPG",
    "DQN",
    "REDQ",
    "SAC",
    "TD3",
    "TQC",
    "DDPGAlgorithm",
    "DQNAlgorithm",
    "Learner",
    "LearnerConfig",
    "REDQAlgorithm",
    "SACAlgorithm",
    "TD3Algorithm",
    "TQCAlgorithm",
    "UpdateResult",
    "ddpg_loss",
    "dqn_loss",
    "redq_loss",
    "sac_loss",
    "td3_loss",
    "tqc_loss",
]
