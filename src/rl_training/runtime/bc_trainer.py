"""BC through the offline loop: its sections, with defaults of its own, and `train_bc`."""

from rl_training.algorithms.bc import BC
from rl_training.runtime.offline import offline_sections, run_offline
from rl_training.runtime.trainers import data_trainer

SECTIONS = offline_sections(BC)
train_bc = data_trainer(run_offline, SECTIONS)
