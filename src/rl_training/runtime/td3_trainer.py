"""TD3 through the online loop: its sections, with defaults of its own, and `train_td3`."""

from rl_training.algorithms.td3 import TD3
from rl_training.runtime.online import online_sections, run_online
from rl_training.runtime.trainers import online_trainer

SECTIONS = online_sections(TD3, learning_starts=25_000)
train_td3 = online_trainer(run_online, SECTIONS)
