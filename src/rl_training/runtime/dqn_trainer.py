"""`train_dqn`: train DQN online, with 64 updates after every 128 environment steps."""

from rl_training.algorithms.dqn import DQN
from rl_training.runtime.online import Online
from rl_training.runtime.trainers import algorithm

SPEC = algorithm(
    DQN,
    Online,
    "Deep Q-Network",
    2015,
    learning_rate=1e-3,
    batch_size=64,
    train_frequency=128,
    gradient_updates_per_step=64,
    target_update_interval=64,
    exploration_fraction=0.16,
    exploration_final_eps=0.04,
)
train_dqn = SPEC.train
