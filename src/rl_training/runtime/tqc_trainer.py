"""TQC through the online loop: its sections, with the defaults in which it differs from the rest, and `train_tqc`."""

from rl_training.algorithms.tqc import TQC
from rl_training.runtime.online import online_sections, run_online
from rl_training.runtime.trainers import online_trainer

SECTIONS = online_sections(TQC)
train_tqc = online_trainer(run_online, SECTIONS)
