"""DDPG through the online loop: its sections, with defaults of its own, and `train_ddpg`."""

from rl_training.algorithms.ddpg import DDPG
from rl_training.runtime.online import online_sections, run_online
from rl_training.runtime.trainers import online_trainer

SECTIONS = online_sections(DDPG)
train_ddpg = online_trainer(run_online, SECTIONS)
