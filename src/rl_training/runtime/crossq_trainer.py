"""`train_crossq`: train CrossQ online."""

from rl_training.algorithms.crossq import CrossQ
from rl_training.runtime.online import Online
from rl_training.runtime.trainers import algorithm

SPEC = algorithm(CrossQ, Online, "CrossQ: Batch Normalization in Deep RL", 2024)
train_crossq = SPEC.train
