"""SAC through the online loop."""

from rl_training.algorithms.sac import SAC
from rl_training.runtime.online import Online
from rl_training.runtime.trainers import algorithm

# With a fixed alpha HalfCheetah-v5 needs that much random experience: from 1,000 steps on it learns to stand still.
SPEC = algorithm(SAC, Online, "Soft Actor-Critic", 2018, learning_starts=5_000)
train_sac = SPEC.train
