"""`train_iql`: train IQL offline, on continuous or discrete actions; the learning rate has a cosine schedule."""

from rl_training.algorithms.iql import IQL, DiscreteIQL
from rl_training.runtime.offline import Offline
from rl_training.runtime.offline_to_online import FineTuning
from rl_training.runtime.trainers import algorithm

SPEC = algorithm(
    IQL, (Offline, FineTuning), "Implicit Q-Learning", 2021, discrete=DiscreteIQL, learning_rate_schedule="cosine"
)
train_iql = SPEC.train
