"""The model of CrossQ: a tanh-Gaussian actor and two critics with batch renormalisation, and no target networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_training.errors import ConfigError
from rl_training.models.mlp_sac import MLPSACModel


class MLPCrossQModel(MLPSACModel):
    """Actor and critics, called as those of any model, normalise by running statistics."""

    has_targets = False

    def __init__(
        self, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int], *, network: str = "mlp", **options: Any
    ) -> None:
        if network != "mlp":
            raise ConfigError(f"network must be 'mlp' for crossq, which has its own layers, got {network!r}")
        super().__init__(obs_dim, action_dim, hidden_sizes, network="batch_renorm", **options)
