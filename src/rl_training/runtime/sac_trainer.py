"""`train_sac`: train SAC online."""

from rl_training.algorithms.sac import SAC
from rl_training.runtime.online import Online
from rl_training.runtime.trainers import algorithm

SPEC = algorithm(SAC, Online, "Soft Actor-Critic", 2018)
train_sac = SPEC.train
