"""`train_crr`: train CRR offline."""

from rl_training.algorithms.crr import CRR
from rl_training.runtime.offline import Offline
from rl_training.runtime.trainers import algorithm

SPEC = algorithm(CRR, Offline, "Critic Regularized Regression", 2020)
train_crr = SPEC.train
