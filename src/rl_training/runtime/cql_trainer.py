"""CQL through the offline loop: its sections, with defaults of its own, and `train_cql`."""

from rl_training.algorithms.cql import CQL
from rl_training.runtime.offline import offline_sections, run_offline
from rl_training.runtime.trainers import data_trainer

SECTIONS = offline_sections(CQL)
train_cql = data_trainer(run_offline, SECTIONS)
