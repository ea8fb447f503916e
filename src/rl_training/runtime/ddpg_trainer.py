"""`train_ddpg`: train DDPG online."""

from rl_training.algorithms.ddpg import DDPG
from rl_training.runtime.online import Online
from rl_training.runtime.trainers import algorithm

SPEC = algorithm(DDPG, Online, "Deep Deterministic Policy Gradient", 2016)
train_ddpg = SPEC.train
