"""`train_td3_bc`: train TD3+BC offline, on normalised observations."""

from rl_training.algorithms.td3_bc import TD3BC
from rl_training.runtime.offline import Offline
from rl_training.runtime.offline_to_online import FineTuning
from rl_training.runtime.trainers import algorithm

SPEC = algorithm(TD3BC, (Offline, FineTuning), "TD3 with Behaviour Cloning", 2021, normalize_observations=True)
train_td3_bc = SPEC.train
