"""`train_fql`: train FQL offline."""

from rl_training.algorithms.fql import FQL
from rl_training.runtime.offline import Offline
from rl_training.runtime.trainers import algorithm

SPEC = algorithm(FQL, Offline, "Flow Q-Learning", 2025)
train_fql = SPEC.train
