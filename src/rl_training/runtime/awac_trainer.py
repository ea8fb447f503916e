"""`train_awac`: train AWAC offline."""

from rl_training.algorithms.awac import AWAC
from rl_training.runtime.offline import Offline
from rl_training.runtime.offline_to_online import FineTuning
from rl_training.runtime.trainers import algorithm

SPEC = algorithm(AWAC, (Offline, FineTuning), "Advantage Weighted Actor-Critic", 2020)
train_awac = SPEC.train
