"""`train_bc`: train BC offline, on continuous or discrete actions."""

from rl_training.algorithms.bc import BC
from rl_training.algorithms.discrete_bc import DiscreteBC
from rl_training.runtime.offline import Offline
from rl_training.runtime.trainers import algorithm

SPEC = algorithm(BC, Offline, "Behaviour Cloning", 1989, discrete=DiscreteBC)
train_bc = SPEC.train
