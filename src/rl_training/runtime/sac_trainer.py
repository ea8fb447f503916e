"""SAC through the online loop: its sections, with defaults of its own, and `train_sac`."""

from rl_training.algorithms.sac import SAC
from rl_training.runtime.online import online_sections, run_online
from rl_training.runtime.trainers import online_trainer

SECTIONS = online_sections(SAC, learning_starts=10_000)
train_sac = online_trainer(run_online, SECTIONS)
