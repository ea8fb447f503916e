"""AWAC through the offline loop: its sections, with defaults of its own, and `train_awac`."""

from rl_training.algorithms.awac import AWAC
from rl_training.runtime.offline import offline_sections, run_offline
from rl_training.runtime.trainers import data_trainer

SECTIONS = offline_sections(AWAC)
train_awac = data_trainer(run_offline, SECTIONS)
