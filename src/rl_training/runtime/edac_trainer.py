"""EDAC through the offline loop: its sections, with defaults of its own, and `train_edac`."""

from rl_training.algorithms.edac import EDAC
from rl_training.runtime.offline import offline_sections, run_offline
from rl_training.runtime.trainers import data_trainer

SECTIONS = offline_sections(EDAC)
train_edac = data_trainer(run_offline, SECTIONS)
