"""`train_fql`: train FQL offline; fine-tuning appends new experience to the data, as the authors do."""

from rl_training.algorithms.fql import FQL
from rl_training.runtime.offline import Offline
from rl_training.runtime.offline_to_online import FineTuning
from rl_training.runtime.trainers import algorithm

SPEC = algorithm(FQL, (Offline, FineTuning), "Flow Q-Learning", 2025, offline_batch_ratio="proportional")
train_fql = SPEC.train
