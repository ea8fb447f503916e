"""`train_redq`: train REDQ online, with 20 updates per environment step."""

from rl_training.algorithms.redq import REDQ
from rl_training.runtime.online import Online
from rl_training.runtime.trainers import algorithm

SPEC = algorithm(REDQ, Online, "Randomized Ensembled Double Q-learning", 2021, gradient_updates_per_step=20)
train_redq = SPEC.train
