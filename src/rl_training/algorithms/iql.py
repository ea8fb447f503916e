"""IQL: Implicit Q-Learning (Kostrikov et al. 2021).

IQL evaluates no action outside the data: V is the upper `expectile` of min Qbar(s, a) over the data's actions, the
critics regress on r + gamma V(s'), and the actor clones the data with weights
min(exp(beta (min Qbar - V)), `max_weight`).
The actor is a Gaussian around a tanh mean, with one std for all states, or with `policy_distribution: tanh` a
tanh-Gaussian. A learning-rate schedule applies to the actor only, as the authors' cosine does.
Departures: all terms use the parameters before the step, as in CORL and rlkit (the authors use V after its step);
data actions at ±1 are not clipped, because an unsquashed density is finite there (the authors clip them to
±(1 - 1e-5)); no dropout. Fine-tuning: half of each minibatch is data, while the authors draw uniformly from data
and new experience together (`offline_batch_ratio: proportional`).
On discrete actions the networks have one output per action; Q(s, a) and log pi(a|s) are those at the data's action.
(The paper has continuous actions only; d3rlpy has no discrete IQL.)
Axes: critics `[2, B]` (`[2, B, K]` for K discrete actions), values and weights `[B]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import Learner, TargetConfig, Terms
from rl_training.algorithms.losses import clipped_exponential, cloning_terms, critic_terms, td_target
from rl_training.data.transitions import TransitionBatch
from rl_training.models.mlp_iql import MLPDiscreteIQLModel, MLPIQLModel
from rl_training.models.policies import PolicyDistribution
from rl_training.settings import NonNegativeFloat, PositiveFloat


class ImplicitConfig(TargetConfig):
    """The authors' locomotion settings, for continuous and discrete actions."""

    expectile: Annotated[float, Field(gt=0, lt=1)] = 0.7
    """expectile of Q that the value network is fitted to"""
    beta: NonNegativeFloat = 3.0
    """factor on the advantage in the cloning weights (AWAC divides by `awac_lambda`)"""
    max_weight: PositiveFloat = 100.0
    """cap of the cloning weights"""


class IQLConfig(ImplicitConfig):
    """Settings for continuous actions."""

    policy_distribution: PolicyDistribution = "gaussian"
    """`gaussian`: a Gaussian around a tanh mean, with clipped samples; `tanh`: a tanh-squashed Gaussian"""


def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    """E[|tau - 1(u < 0)| u^2], minimal if V is the upper expectile of Q."""
    weight = torch.where(difference > 0, expectile, 1.0 - expectile)
    return (weight * difference.square()).mean()


def value_terms(advantages: Tensor, expectile: float) -> Terms:
    """`advantages [B]`: min Qbar(s, a) - V(s), differentiable in V."""
    return {"value_loss": expectile_loss(advantages, expectile)}


def actor_terms(logprobs: Tensor, advantages: Tensor, beta: float, max_weight: float) -> Terms:
    """`logprobs [B]` of the data's actions, `advantages [B]` as constants."""
    weights = clipped_exponential(beta * advantages, max_weight)
    return cloning_terms(logprobs, advantages, weights)


def iql_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors: `q1_values q2_values target_q_values advantages behavior_logprobs
    expectile beta max_weight`."""
    q = torch.stack([batch["q1_values"], batch["q2_values"]])
    advantages = batch["advantages"]
    return (
        critic_terms(q, batch["target_q_values"])
        | value_terms(advantages, batch["expectile"])
        | actor_terms(batch["behavior_logprobs"], advantages.detach(), batch["beta"], batch["max_weight"])
    )


class Outputs(NamedTuple):
    """Outputs of the networks for one batch; `best` and `target` carry no gradient."""

    q: Tensor  # Q(s, a), [2, B]
    values: Tensor  # V(s), [B]
    logprobs: Tensor  # log pi(a|s), [B]
    best: Tensor  # min Qbar(s, a), [B]
    target: Tensor  # r + gamma V(s'), [B]


class IQL(Learner):
    """Implicit Q-learning on an `MLPIQLModel`."""

    name = "iql"
    Config: ClassVar[type[ImplicitConfig]] = IQLConfig
    Model = MLPIQLModel
    fixed_by_model: ClassVar[tuple[str, ...]] = ("policy_distribution",)
    optimized = ("critics", "value", "actor")
    scheduled = ("actor",)

    def gradient_step(self, batch: TransitionBatch, variant: object) -> Terms:
        objectives = {"critics": self.critic_loss, "value": self.value_loss, "actor": self.actor_loss}
        return self.minimize((self.outputs(batch),), objectives, tau=self.config.tau)

    def outputs(self, batch: TransitionBatch) -> Outputs:
        """Evaluate every network once, in parallel; the losses are arithmetic on these outputs."""
        functions = self.q_values, self.values, self.log_probs, self.target_minimum, self.target
        return Outputs(*self.compute((batch,), *functions))

    def q_values(self, batch: TransitionBatch) -> Tensor:
        return self.model.critics(batch.obs, batch.actions)

    def values(self, batch: TransitionBatch) -> Tensor:
        return self.model.value(batch.obs)

    def log_probs(self, batch: TransitionBatch) -> Tensor:
        return self.model.actor.log_prob(batch.obs, batch.actions)

    def target_minimum(self, batch: TransitionBatch) -> Tensor:
        return self.model.target_critics(batch.obs, batch.actions).amin(0)

    @torch.no_grad()
    def target(self, batch: TransitionBatch) -> Tensor:
        return td_target(batch.rewards, batch.dones, self.model.value(batch.next_obs), self.config.gamma)

    def critic_loss(self, outputs: Outputs) -> tuple[Tensor, Terms]:
        terms = critic_terms(outputs.q, outputs.target)
        return terms["critic_loss"], terms

    def value_loss(self, outputs: Outputs) -> tuple[Tensor, Terms]:
        terms = value_terms(outputs.best - outputs.values, self.config.expectile)
        return terms["value_loss"], terms

    def actor_loss(self, outputs: Outputs) -> tuple[Tensor, Terms]:
        advantages = outputs.best - outputs.values.detach()
        terms = actor_terms(outputs.logprobs, advantages, self.config.beta, self.config.max_weight)
        return terms["actor_loss"], terms


class DiscreteIQL(IQL):
    """Implicit Q-learning on an `MLPDiscreteIQLModel`; its loss from precomputed tensors is `iql_loss`."""

    Config = ImplicitConfig
    Model = MLPDiscreteIQLModel
    fixed_by_model = ()
    discrete = True
