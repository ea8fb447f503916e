"""REDQ through the online loop: its sections, with defaults of its own, and `train_redq`."""

from rl_training.algorithms.redq import REDQ
from rl_training.runtime.online import online_sections, run_online
from rl_training.runtime.trainers import online_trainer

SECTIONS = online_sections(REDQ, learning_starts=5_000, gradient_updates_per_step=20)
train_redq = online_trainer(run_online, SECTIONS)
