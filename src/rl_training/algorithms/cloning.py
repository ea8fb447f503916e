"""What AWAC and CRR share: an actor that clones the data with weights, beside critics that value data and policy.

The critics regress on the minimum of their targets at an action of `target_actor`. What differs is that policy, how
the critics' opinions of the policy's actions become one, and the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_training.algorithms.base import Learner, Terms
from rl_training.algorithms.losses import cloning_terms, critic_terms, td_target
from rl_training.data.transitions import TransitionBatch
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.models.policies import OFFLINE_LOG_STD_BOUNDS


def cloning_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors: `q1_values q2_values target_q_values behavior_logprobs advantages
    advantage_weights`."""
    q = torch.stack([batch["q1_values"], batch["q2_values"]])
    return critic_terms(q, batch["target_q_values"]) | cloning_terms(
        batch["behavior_logprobs"], batch["advantages"], batch["advantage_weights"]
    )


class Outputs(NamedTuple):
    """What the networks say of one batch; `q` and `logprobs` carry gradients."""

    q: Tensor  # both critics at the data's actions, [2, B]
    target: Tensor  # what they regress on, [B]
    logprobs: Tensor  # log pi(a|s) of the data's actions, [B]
    policy_q: Tensor  # the critics' one opinion of the policy's own actions, [B] or [m, B]


class WeightedCloner(Learner):
    """Every network is evaluated once, side by side; the losses are arithmetic on what they return."""

    Model = MLPSACModel

    def __init__(self, *, model: MLPSACModel, **hyperparameters: Any) -> None:
        super().__init__(model=model, **hyperparameters)
        self.target_actor = model.actor
        self.optimizers = {"critics": self.adam(model.critics), "actor": self.adam(model.actor)}

    @classmethod
    def model_options(cls, config: Any) -> dict[str, Any]:
        return {"log_std_bounds": OFFLINE_LOG_STD_BOUNDS}

    def outputs(self, batch: TransitionBatch, noise: Tensor) -> Outputs:
        q, policy, target = self.evaluate((batch, noise), self.q_values, self.policy, self.target)
        return Outputs(q, target, *policy)

    def q_values(self, batch: TransitionBatch, noise: Tensor) -> Tensor:
        q: Tensor = self.model.critics(batch.obs, batch.actions)
        return q

    def policy(self, batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """`logprobs` and `policy_q`; the first row of `noise` is the target's."""
        raise NotImplementedError

    @torch.no_grad()
    def target(self, batch: TransitionBatch, noise: Tensor) -> Tensor:
        next_actions = self.target_actor.sample(batch.next_obs, noise[0])
        value = self.model.target_critics(batch.next_obs, next_actions).amin(0)  # [B]
        return td_target(batch.rewards, batch.dones, value, self.config.gamma)

    def critic_loss(self, outputs: Outputs) -> tuple[Tensor, Terms]:
        terms = critic_terms(outputs.q, outputs.target)
        return terms["critic_loss"], terms
