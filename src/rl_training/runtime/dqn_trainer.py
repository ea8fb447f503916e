"""DQN through the online loop: its sections, with defaults of its own, and `train_dqn`."""

from rl_training.algorithms.dqn import DQN
from rl_training.runtime.online import online_sections, run_online
from rl_training.runtime.trainers import online_trainer

SECTIONS = online_sections(DQN, train_frequency=4, batch_size=64)
train_dqn = online_trainer(run_online, SECTIONS)
