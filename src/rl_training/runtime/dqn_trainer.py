"""DQN through the online loop, with defaults of its own."""

from rl_training.algorithms.dqn import DQN
from rl_training.runtime.online import Online
from rl_training.runtime.trainers import algorithm

SPEC = algorithm(DQN, Online, "Deep Q-Network", 2015, train_frequency=4, batch_size=64)
train_dqn = SPEC.train
