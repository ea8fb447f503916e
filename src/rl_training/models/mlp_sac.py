"""The model of SAC and of the offline learners built on it: a tanh-Gaussian actor and two critics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_training.models.actor_critic import StochasticActorCritic, TwoCritics


class MLPSACModel(TwoCritics, StochasticActorCritic):
    """`options` as in `StochasticActorCritic`."""

    def __init__(self, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int], **options: Any) -> None:
        super().__init__(obs_dim, action_dim, hidden_sizes, 2, **options)
