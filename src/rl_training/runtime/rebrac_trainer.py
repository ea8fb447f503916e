"""`train_rebrac`: train ReBRAC offline."""

from rl_training.algorithms.rebrac import ReBRAC
from rl_training.runtime.offline import Offline
from rl_training.runtime.offline_to_online import FineTuning
from rl_training.runtime.trainers import algorithm

SPEC = algorithm(ReBRAC, (Offline, FineTuning), "Revisited Behaviour-Regularised Actor-Critic", 2023)
train_rebrac = SPEC.train
