"""`train_edac`: train EDAC offline."""

from rl_training.algorithms.edac import EDAC
from rl_training.runtime.offline import Offline
from rl_training.runtime.trainers import algorithm

SPEC = algorithm(EDAC, Offline, "Ensemble-Diversified Actor-Critic", 2021)
train_edac = SPEC.train
