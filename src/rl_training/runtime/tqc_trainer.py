"""TQC through the online loop: its sections, with defaults of its own, and `train_tqc`."""

from rl_training.algorithms.tqc import TQC
from rl_training.runtime.online import online_sections, run_online
from rl_training.runtime.trainers import online_trainer

SECTIONS = online_sections(TQC)
train_tqc = online_trainer(run_online, SECTIONS)
