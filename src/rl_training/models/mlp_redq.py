"""The model of REDQ, EDAC and ensemble RLPD: a tanh-Gaussian actor and N critics."""

from __future__ import annotations

from rl_training.models.actor_critic import StochasticActorCritic


class MLPREDQModel(StochasticActorCritic):
    """`MLPREDQModel(obs_dim, action_dim, hidden_sizes, num_critics)`; options as in its base."""
