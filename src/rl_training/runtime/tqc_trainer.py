"""`train_tqc`: train TQC online."""

from rl_training.algorithms.tqc import TQC
from rl_training.runtime.online import Online
from rl_training.runtime.trainers import algorithm

SPEC = algorithm(TQC, Online, "Truncated Quantile Critics", 2020)
train_tqc = SPEC.train
