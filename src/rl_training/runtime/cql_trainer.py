"""`train_cql`: train CQL offline, on continuous or discrete actions."""

from rl_training.algorithms.cql import CQL
from rl_training.algorithms.discrete_cql import DiscreteCQL
from rl_training.runtime.offline import Offline
from rl_training.runtime.offline_to_online import FineTuning
from rl_training.runtime.trainers import algorithm

SPEC = algorithm(CQL, (Offline, FineTuning), "Conservative Q-Learning", 2020, discrete=DiscreteCQL)
train_cql = SPEC.train
