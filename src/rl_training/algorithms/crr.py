"""CRR: Critic Regularized Regression (Wang et al. 2020).

Weighted cloning of the data, like AWAC. The advantage is Q(s, a) minus the mean (or the maximum,
`advantage_type: max`) of Q over `n_action_samples` policy actions, where Q is the mean of both online critics. The
weight is 1[A > 0] (`weight_type: binary`) or min(exp(A / beta), `max_weight`) (`exp`). The critics' target is the
minimum of the target critics at an action of the target policy.
Departures: two scalar critics with soft targets (the authors: one distributional critic, hard copies every 100
updates; d3rlpy's reproduction uses soft ones); log-std in [-5, 2]; the policy acts by its mode, without the
critic-weighted resampling of the paper. The policy is a tanh-Gaussian and data actions are clipped to ±(1 - 1e-6).
With `policy_distribution: gaussian` only the mean is squashed, as in d3rlpy, and samples are clipped before the
critics evaluate them.
Which to use: `layer_norm: true` on large data, as in the packaged MuJoCo configurations. Without it the critics may
overestimate the actions of a narrow policy until all weights vanish (see `runtime.cloning`). With it `tanh` has the
higher return on Hopper's and HalfCheetah's data, in which many actions are at the bounds.
Axes: critics `[2, B]`, at m actions per state `[2, m, B]`, weights `[B]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from torch import Tensor, nn

from rl_training.algorithms.awac import AWAC, Outputs, awac_loss
from rl_training.algorithms.base import TargetConfig, Terms
from rl_training.algorithms.losses import clipped_exponential, cloning_terms
from rl_training.data.transitions import TransitionBatch
from rl_training.models.mlp import frozen_copy
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.models.policies import PolicyDistribution
from rl_training.settings import OnlyWith, PositiveFloat, PositiveInt


class CRRConfig(TargetConfig):
    """Settings of the advantage and of the cloning weights."""

    beta: Annotated[PositiveFloat, OnlyWith("weight_type", "exp")] = 1.0
    """divisor of the advantage (`weight_type: exp`)"""
    n_action_samples: PositiveInt = 4
    """number of policy actions that the advantage compares with"""
    max_weight: Annotated[PositiveFloat, OnlyWith("weight_type", "exp")] = 20.0
    """cap of the cloning weights (`weight_type: exp`)"""
    advantage_type: Literal["mean", "max"] = "mean"
    """compare with the mean or the maximum of Q over these actions"""
    weight_type: Literal["binary", "exp"] = "exp"
    """`binary`: clone only if the advantage is positive; `exp`: exponential weights"""
    policy_distribution: PolicyDistribution = "tanh"
    """`tanh`: a tanh-squashed Gaussian; `gaussian`: a Gaussian around a tanh mean, with clipped samples"""


def advantage(q_data: Tensor, q_policy: Tensor, advantage_type: str) -> Tensor:
    """`q_data [B]` minus the mean or maximum of `q_policy [m, B]`."""
    return q_data - (q_policy.amax(0) if advantage_type == "max" else q_policy.mean(0))


def advantage_weights(advantages: Tensor, config: CRRConfig) -> Tensor:
    """The weight of each transition in the actor's loss: `[B] -> [B]`."""
    if config.weight_type == "binary":
        return (advantages > 0).to(advantages.dtype)
    return clipped_exponential(advantages / config.beta, config.max_weight)


def crr_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors, those that `awac_loss` takes."""
    return awac_loss(batch)


class CRR(AWAC):
    """Critic-regularised regression on an `MLPSACModel`; the learner owns the target policy.

    `outputs` and `critic_loss` are those of AWAC, with the target policy and m policy actions per state.
    """

    name = "crr"
    Config = CRRConfig
    advantage_divisor = "beta"

    def __init__(self, *, model: MLPSACModel, **hyperparameters: Any) -> None:
        super().__init__(model=model, **hyperparameters)
        self.target_actor = frozen_copy(model.actor)

    @property
    def next_actor(self) -> Any:
        return self.target_actor

    def modules(self) -> dict[str, nn.Module]:
        return {"model": self.model, "target_actor": self.target_actor}

    def targets(self) -> dict[nn.Module, nn.Module]:
        return {**self.model.targets(), self.target_actor: self.model.actor}

    def gradient_step(self, batch: TransitionBatch, variant: object) -> Terms:
        noises = self.normal(1 + self.config.n_action_samples, *batch.actions.shape)
        next_noise, noise = noises[0], noises[1:]  # for a' and for the m actions
        objectives = {"critics": self.critic_loss, "actor": self.actor_loss}
        return self.minimize((self.outputs(batch, next_noise, noise),), objectives, tau=self.config.tau)

    def policy_values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """The critics' mean at m actions per state, `[m, B, A] -> [m, B]`."""
        return self.model.critics.over_actions(obs, actions).mean(0)

    def actor_loss(self, outputs: Outputs) -> tuple[Tensor, Terms]:
        advantages = advantage(outputs.q.detach().mean(0), outputs.policy_q, self.config.advantage_type)
        terms = cloning_terms(outputs.logprobs, advantages, advantage_weights(advantages, self.config))
        return terms["actor_loss"], terms
