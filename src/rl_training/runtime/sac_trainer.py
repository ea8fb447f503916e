"""`train_sac`: train SAC online."""

from rl_training.algorithms.sac import SAC
from rl_training.runtime.online import Online
from rl_training.runtime.trainers import algorithm

# With a fixed alpha and learning_starts=1,000 the policy learns to stand still in HalfCheetah-v5.
SPEC = algorithm(SAC, Online, "Soft Actor-Critic", 2018, learning_starts=5_000)
train_sac = SPEC.train
