"""AWAC: Advantage Weighted Actor-Critic (Nair et al. 2020).

The critics are SAC's without entropy: the target is the minimum of both target critics at an action of the current
policy. The actor clones the data with weights that grow with the advantage A = min Q(s, a) - min Q(s, a~), where
a~ ~ pi. `weighting: exp` uses min(exp(A / lambda), `max_advantage_weight`), as CORL does; `softmax` uses
softmax(A / lambda) over the batch times B, as the authors' code does, and needs no cap.
`policy_distribution: gaussian` is a Gaussian around a tanh mean, as in the authors' code; its samples are clipped
to the bounds before the critics evaluate them. With `tanh`, data actions are clipped to ±(1 - 1e-6).
Which to use: `layer_norm: true` for large data, as in the packaged MuJoCo configurations; with it, ten
seeds show no difference between the distributions. `gaussian` without it collapses on Hopper's data, because its
critics overestimate (see `crr`).
`tanh` for a policy that continues in SAC or RLPD.
Departures: `tanh` is the default; the log-std depends on the state, in [-5, 2] (the authors: one std for all
states); no weight decay; PyTorch's initialisation. Fine-tuning: half of each minibatch is data, while the authors
draw uniformly from data and new experience together (`offline_batch_ratio: proportional`).
Axes: critics `[2, B]`, weights `[B]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from rl_training.algorithms.base import Learner, TargetConfig, Terms
from rl_training.algorithms.losses import clipped_exponential, cloning_terms, critic_terms, td_target
from rl_training.data.transitions import TransitionBatch
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.models.policies import OFFLINE_LOG_STD_BOUNDS, PolicyDistribution
from rl_training.settings import OnlyWith, PositiveFloat


class AWACConfig(TargetConfig):
    """SAC's target settings and the cloning weights."""

    awac_lambda: PositiveFloat = 1.0
    """divisor of the advantage in the cloning weights"""
    max_advantage_weight: Annotated[PositiveFloat, OnlyWith("weighting", "exp")] = 100.0
    """cap of the cloning weights (`weighting: exp`)"""
    weighting: Literal["exp", "softmax"] = "exp"
    """clipped exponential, or softmax over the batch"""
    policy_distribution: PolicyDistribution = "tanh"
    """`tanh`: a tanh-squashed Gaussian; `gaussian`: a Gaussian around a tanh mean, with clipped samples"""


def advantage_weights(advantages: Tensor, config: AWACConfig) -> Tensor:
    """The weight of each transition in the actor's loss: `[B] -> [B]`."""
    scaled = advantages / config.awac_lambda
    if config.weighting == "softmax":
        return scaled.softmax(-1) * scaled.shape[-1]
    return clipped_exponential(scaled, config.max_advantage_weight)


def awac_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors: `q1_values q2_values target_q_values behavior_logprobs advantages
    advantage_weights`."""
    q = torch.stack([batch["q1_values"], batch["q2_values"]])
    return critic_terms(q, batch["target_q_values"]) | cloning_terms(
        batch["behavior_logprobs"], batch["advantages"], batch["advantage_weights"]
    )


class Outputs(NamedTuple):
    """Outputs of the networks for one batch; `q` and `logprobs` carry gradients."""

    q: Tensor  # Q(s, a) of the data's actions, [2, B]
    logprobs: Tensor  # log pi(a|s) of the data's actions, [B]
    policy_q: Tensor  # min Q(s, a~), [B]; for CRR the mean of Q at each of m actions, [m, B]
    target: Tensor  # regression target of the critics, [B]


class AWAC(Learner):
    """Advantage-weighted actor-critic on an `MLPSACModel`."""

    name = "awac"
    Config: ClassVar[type[TargetConfig]] = AWACConfig
    Model = MLPSACModel
    fixed_by_model = ("policy_distribution",)
    optimized = ("critics", "actor")
    advantage_divisor = "awac_lambda"

    @classmethod
    def model_options(cls, config: Any) -> dict[str, Any]:
        return super().model_options(config) | {"log_std_bounds": OFFLINE_LOG_STD_BOUNDS}

    @property
    def next_actor(self) -> Any:
        """The policy of the critics' target."""
        return self.model.actor

    def gradient_step(self, batch: TransitionBatch, variant: object) -> Terms:
        next_noise, noise = self.normal(2, *batch.actions.shape)  # for a' and for a~
        objectives = {"critics": self.critic_loss, "actor": self.actor_loss}
        return self.minimize((self.outputs(batch, next_noise, noise),), objectives, tau=self.config.tau)

    def outputs(self, batch: TransitionBatch, next_noise: Tensor, noise: Tensor) -> Outputs:
        """Evaluate every network once, in parallel; the losses are arithmetic on these outputs."""
        functions = self.q_values, self.policy, self.target
        q, (logprobs, policy_q), target = self.compute((batch, next_noise, noise), *functions)
        return Outputs(q, logprobs, policy_q, target)

    def q_values(self, batch: TransitionBatch, next_noise: Tensor, noise: Tensor) -> Tensor:
        return self.model.critics(batch.obs, batch.actions)

    def policy(self, batch: TransitionBatch, next_noise: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """log pi(a|s) of the data's actions, `[B]`, and `policy_values` of the actions that `noise` draws."""
        actor = self.model.actor
        mean, log_std = actor(batch.obs)
        with torch.no_grad():
            q = self.policy_values(batch.obs, actor.drawn(mean, log_std, noise))
        return actor.log_density(mean, log_std, batch.actions), q

    def policy_values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """min Q(s, a~), `[B]`."""
        return self.model.critics(obs, actions).amin(0)

    @torch.no_grad()
    def target(self, batch: TransitionBatch, next_noise: Tensor, noise: Tensor) -> Tensor:
        next_actions = self.next_actor.sample(batch.next_obs, next_noise)
        value = self.model.target_critics(batch.next_obs, next_actions).amin(0)  # [B]
        return td_target(batch.rewards, batch.dones, value, self.config.gamma)

    def critic_loss(self, outputs: Outputs) -> tuple[Tensor, Terms]:
        terms = critic_terms(outputs.q, outputs.target)
        return terms["critic_loss"], terms

    def actor_loss(self, outputs: Outputs) -> tuple[Tensor, Terms]:
        advantages = outputs.q.detach().amin(0) - outputs.policy_q
        terms = cloning_terms(outputs.logprobs, advantages, advantage_weights(advantages, self.config))
        return terms["actor_loss"], terms
