"""The model of DQN: one network with a value per discrete action, and its target copy."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from rl_training.errors import ConfigError
from rl_training.models.actor_critic import Model, batched
from rl_training.models.mlp import MLP, frozen_copy


class GreedyQ(nn.Module):
    """Q(s, ·) `[B, K]` that acts by its largest value."""

    stochastic = False

    def __init__(self, obs_dim: int, num_actions: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.net = MLP(obs_dim, hidden_sizes, num_actions)

    def forward(self, obs: Tensor) -> Tensor:
        q: Tensor = self.net(obs)
        return q

    def mode(self, obs: Tensor) -> Tensor:
        best: Tensor = self.net(obs).argmax(-1)
        return best


class MLPQNetwork(Model):
    """The greedy network and its target; `q_values` returns `[B, K]`."""

    def __init__(
        self,
        obs_dim: int,
        num_actions: int,
        hidden_sizes: Sequence[int],
        *,
        critic_hidden_sizes: Sequence[int] | None = None,
        normalize_observations: bool = False,
    ) -> None:
        if critic_hidden_sizes is not None:
            raise ConfigError("critic_hidden_sizes has no meaning for DQN, which has one network; use hidden_sizes")
        q = GreedyQ(obs_dim, num_actions, hidden_sizes)
        super().__init__(obs_dim, q, normalize_observations=normalize_observations)
        self.num_actions = num_actions
        self.target = frozen_copy(q)

    def q_values(self, obs: Tensor) -> Tensor:
        q: Tensor = self.actor(self.normalizer(batched(obs)))
        return q
