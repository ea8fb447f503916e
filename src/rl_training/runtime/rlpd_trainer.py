"""RLPD through the offline and then the online loop."""

from rl_training.algorithms.rlpd import RLPD
from rl_training.runtime.offline_to_online import OfflineToOnline
from rl_training.runtime.trainers import algorithm

SPEC = algorithm(RLPD, OfflineToOnline, "RL with Prior Data; plain: SAC on both, the paper's: rlpd/paper", 2023)
train_rlpd = SPEC.train
