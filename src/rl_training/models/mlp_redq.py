"""The model of REDQ, EDAC and ensemble RLPD: a tanh-Gaussian actor and N critics."""

from __future__ import annotations

from torch import Tensor

from rl_training.models.actor_critic import StochasticActorCritic


class MLPREDQModel(StochasticActorCritic):
    """`MLPREDQModel(obs_dim, action_dim, hidden_sizes, num_critics)`; options as in its base."""

    def q_values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Q_i(s, a) of every critic, `[B, N]`; an unbatched pair gives `[1, N]`."""
        return self.all_q_values(obs, actions)
