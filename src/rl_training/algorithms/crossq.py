"""CrossQ: SAC without target networks (Bhatt et al., ICLR 2024).

Batch renormalisation in actor and critics (`models.batch_renorm`) replaces the target networks. The live critics
see [(s, a); (s', a')] as one batch in train mode, so both halves are normalised alike. The second half, without
gradient, gives the target. Adam of actor and critics has beta1 = 0.5. Actor and temperature are updated in the last
of every `policy_delay` updates.

An update has two phases (see `base`): the critics step, then actor and temperature by the new critics. The actor
is in train mode in its own loss only, the critics in theirs; all else, acting and evaluation too, uses running
statistics.
Departures: the temperature loss is in log alpha (as in `sac`); torch's initialisation (as in sb3-contrib).
Axes: critics `[2, B]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import ActorStartConfig, Terms
from rl_training.algorithms.losses import td_target
from rl_training.algorithms.sac import actor_terms, critic_terms, sac_loss
from rl_training.algorithms.soft import Alpha, DelayedActor, EntropyConfig
from rl_training.data.transitions import TransitionBatch
from rl_training.models.mlp import NetworkShape
from rl_training.models.mlp_sac import MLPCrossQModel
from rl_training.settings import PositiveFloat, PositiveInt, Sizes

BETAS = (0.5, 0.999)


class CrossQConfig(ActorStartConfig, EntropyConfig):
    """The settings of CrossQ."""

    learning_rate: PositiveFloat = 1e-3
    """learning rate of Adam"""
    alpha: Alpha = "auto"
    """entropy coefficient: a number, or `auto` to learn it"""
    policy_delay: PositiveInt = 3
    """critic updates per update of actor and temperature"""


class CrossQNetworkConfig(NetworkShape):
    """Wide critics and a small actor."""

    critic_hidden_sizes: Sizes | None = (2048, 2048)
    """sizes of the critics' hidden layers; null means `hidden_sizes`"""


def crossq_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors, which are those of `sac_loss`."""
    return sac_loss(batch)


class CrossQ(DelayedActor):
    """CrossQ on an `MLPCrossQModel`."""

    name = "crossq"
    most_first_steps = 5_000
    Config = CrossQConfig
    Model = MLPCrossQModel
    Network = CrossQNetworkConfig
    least_batch = 2

    def __init__(self, *, model: MLPCrossQModel, **hyperparameters: Any) -> None:
        super().__init__(model=model, **hyperparameters)
        self.optimizers = {
            "critics": self.adam(model.critics, betas=BETAS),
            "actor": self.adam(model.actor, betas=BETAS),
        }
        if self.temperature.learned:
            self.optimizers["temperature"] = self.adam(self.temperature)

    def statistics(self) -> dict[str, list[Tensor]]:
        return {"critics": self.model.critics.net.statistics(), "actor": self.model.actor.net.statistics()}

    def gradient_step(self, batch: TransitionBatch, variant: object) -> Terms:
        next_noise, noise = self.normal(2, *batch.actions.shape)  # for a' and for a
        terms = self.minimize((batch, next_noise), {"critics": self.critic_loss})
        if variant:
            together = "actor+temperature" if self.temperature.learned else "actor"
            terms |= self.minimize((batch.obs, noise), {together: self.actor_loss})
        return terms

    def critic_loss(self, batch: TransitionBatch, next_noise: Tensor) -> tuple[Tensor, Terms, list[Tensor]]:
        with torch.no_grad():
            next_actions, next_logprobs = self.model.actor.sample_with_logprob(batch.next_obs, next_noise)
        both, statistics = self.model.critics.by_batch(
            torch.cat([batch.obs, batch.next_obs]), torch.cat([batch.actions, next_actions])
        )
        q, next_q = both.chunk(2, dim=-1)  # [2, B] each
        value = self.backed_up(next_q.detach().amin(0), next_logprobs)  # [B]
        terms = critic_terms(q, td_target(batch.rewards, batch.dones, value, self.config.gamma))
        return terms["critic_loss"], terms, statistics

    def actor_loss(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Terms, list[Tensor]]:
        (actions, logprobs), statistics = self.model.actor.sample_by_batch(obs, noise)
        q = self.model.critics(obs, actions, frozen=True)  # [2, B]
        return *self.soft_objective(actor_terms, q, logprobs), statistics
