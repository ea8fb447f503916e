"""`train_rlpd`: pretrain RLPD on prior data, then train it online on mixed minibatches."""

from rl_training.algorithms.rlpd import RLPD
from rl_training.runtime.offline_to_online import OfflineToOnline
from rl_training.runtime.trainers import algorithm

SPEC = algorithm(
    RLPD, OfflineToOnline, "RL with Prior Data; plain SAC by default, the paper's settings: rlpd/paper", 2023
)
train_rlpd = SPEC.train
