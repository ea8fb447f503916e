"""CQL through the offline loop: its sections, with the defaults in which it differs from the rest, and `train_cql`."""

from rl_training.algorithms.cql import CQL
from rl_training.runtime.offline import offline_sections, run_offline
from rl_training.runtime.trainers import data_trainer

SECTIONS = offline_sections(CQL)
train_cql = data_trainer(run_offline, SECTIONS)
