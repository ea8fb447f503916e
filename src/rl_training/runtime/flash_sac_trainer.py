"""`train_flash_sac`: train FlashSAC online."""

from rl_training.algorithms.flash_sac import FlashSAC
from rl_training.runtime.online import Online
from rl_training.runtime.trainers import algorithm

SPEC = algorithm(
    FlashSAC,
    Online,
    "FlashSAC: Fast and Stable Off-Policy RL",
    2026,
    batch_size=512,
    learning_rate_schedule={"type": "cosine", "final_factor": 0.5},
    normalize_rewards=True,
)
train_flash_sac = SPEC.train
