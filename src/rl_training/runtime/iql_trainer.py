"""IQL through the offline loop: its sections, with defaults of its own, and `train_iql`."""

from rl_training.algorithms.iql import IQL
from rl_training.runtime.offline import offline_sections, run_offline
from rl_training.runtime.trainers import data_trainer

SECTIONS = offline_sections(IQL, learning_rate_schedule="cosine")
train_iql = data_trainer(run_offline, SECTIONS)
