"""`train_td3`: train TD3 online."""

from rl_training.algorithms.td3 import TD3
from rl_training.runtime.online import Online
from rl_training.runtime.trainers import algorithm

SPEC = algorithm(TD3, Online, "Twin Delayed DDPG", 2018)
train_td3 = SPEC.train
