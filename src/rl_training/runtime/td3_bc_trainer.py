"""TD3BC through the offline loop: its sections, with defaults of its own, and `train_td3_bc`."""

from rl_training.algorithms.td3_bc import TD3BC
from rl_training.runtime.offline import offline_sections, run_offline
from rl_training.runtime.trainers import data_trainer

SECTIONS = offline_sections(TD3BC, normalize_observations=True)
train_td3_bc = data_trainer(run_offline, SECTIONS)
