"""The model of DQN and of discrete CQL: one network with a value per discrete action, and its target copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor, nn

from rl_training.errors import ConfigError
from rl_training.models.actor_critic import Model, batched
from rl_training.models.mlp import frozen_copy
from rl_training.models.networks import NetworkOptions
from rl_training.models.policies import ChoiceActor


class GreedyQ(ChoiceActor):
    """Q(s, ·) of K actions, `[B, K]`; the mode is the action with the largest value."""


class MLPQNetwork(Model):
    """The Q network, which is also the actor, and its target; `options` as in `EnsembleMLP`."""

    actor: GreedyQ
    has_values = True

    def __init__(
        self,
        obs_dim: int,
        num_actions: int,
        hidden_sizes: Sequence[int],
        *,
        critic_hidden_sizes: Sequence[int] | None = None,
        normalize_observations: bool = False,
        **options: Unpack[NetworkOptions],
    ) -> None:
        if critic_hidden_sizes is not None:
            raise ConfigError("critic_hidden_sizes has no meaning for DQN and discrete CQL; use hidden_sizes")
        q = GreedyQ(obs_dim, num_actions, hidden_sizes, **options)
        super().__init__(obs_dim, q, normalize_observations=normalize_observations)
        self.target = frozen_copy(q)

    @property
    def q_network(self) -> GreedyQ:
        """The online network; checkpoints store it as `actor`, as in every model."""
        return self.actor

    def targets(self) -> dict[nn.Module, nn.Module]:
        return {self.target: self.q_network}

    def q_values(self, obs: Tensor) -> Tensor:
        """Q(s, ·), `[B, K]`."""
        return self.q_network(self.normalizer(batched(obs)))

    def action_values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Q(s, a), `[1, B]`. Since the policy is greedy, V is the largest Q."""
        return self.q_values(obs).gather(-1, actions[:, None]).T
