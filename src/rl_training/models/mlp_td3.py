"""The models of TD3 and related algorithms (two critics) and of DDPG (one critic)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import nn

from rl_training.models.actor_critic import ActorCriticModel
from rl_training.models.critics import Critics
from rl_training.models.mlp import frozen_copy
from rl_training.models.policies import DeterministicActor


class MLPTD3Model(ActorCriticModel):
    """A deterministic actor with a target copy, and two critics."""

    num_members = 2

    def __init__(self, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int], **options: Any) -> None:
        critics = partial(Critics, self.num_members)
        super().__init__(obs_dim, action_dim, hidden_sizes, DeterministicActor, critics, **options)
        self.target_actor = frozen_copy(self.actor)

    def targets(self) -> dict[nn.Module, nn.Module]:
        return super().targets() | {self.target_actor: self.actor}


class MLPDDPGModel(MLPTD3Model):
    """`MLPTD3Model` with a single critic."""

    num_members = 1
