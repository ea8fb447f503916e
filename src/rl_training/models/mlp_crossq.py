"""The model of CrossQ: a tanh-Gaussian actor and two critics with batch renormalisation, and no target networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_training.models.mlp_sac import MLPSACModel
from rl_training.models.networks import require_defaults


class MLPCrossQModel(MLPSACModel):
    """Actor and critics, called as those of any model, normalise by running statistics."""

    has_targets = False

    def __init__(self, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int], **options: Any) -> None:
        require_defaults("crossq", options, "network", "residual_blocks", "layer_norm_epsilon")
        super().__init__(obs_dim, action_dim, hidden_sizes, **options | {"network": "batch_renorm"})
