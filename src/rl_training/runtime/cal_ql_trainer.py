"""`train_cal_ql`: train Cal-QL offline, or offline and then online."""

from rl_training.algorithms.cal_ql import CalQL
from rl_training.runtime.offline import Offline
from rl_training.runtime.offline_to_online import FineTuning
from rl_training.runtime.trainers import algorithm

SPEC = algorithm(CalQL, (Offline, FineTuning), "Calibrated Q-Learning", 2023)
train_cal_ql = SPEC.train
