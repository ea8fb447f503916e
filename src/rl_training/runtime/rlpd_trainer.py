"""RLPD through the offline and then the online loop: its sections, its own defaults, and `train_rlpd`."""

from rl_training.algorithms.rlpd import RLPD
from rl_training.runtime.offline_to_online import offline_to_online_sections, run_offline_to_online
from rl_training.runtime.trainers import data_trainer

SECTIONS = offline_to_online_sections(RLPD, learning_starts=5_000)
train_rlpd = data_trainer(run_offline_to_online, SECTIONS)
