"""CRR through the offline loop: its sections, with defaults of its own, and `train_crr`."""

from rl_training.algorithms.crr import CRR
from rl_training.runtime.offline import offline_sections, run_offline
from rl_training.runtime.trainers import data_trainer

SECTIONS = offline_sections(CRR)
train_crr = data_trainer(run_offline, SECTIONS)
