"""REDQ: Randomized Ensembled Double Q-learning (Chen et al. 2021).

SAC with N critics and many updates per environment step (the update-to-data ratio, `gradient_updates_per_step`).
Each update draws one random subset of M target critics, shared by the whole batch, and backs up their minimum; all
N critics regress on the same target (squared errors summed over critics). The actor is updated once per
`policy_delay` updates, on the mean of all N critics, or with `actor_objective: min` on their minimum (WSRL).
Departures: alpha is fixed unless `alpha: auto` (the authors learn it, after 20 updates with 0.2); the target
entropy is -A unless given (the authors: MBPO's table, as in the presets). As in the authors' code, the
actor uses the critics before their step of the same update.
Axes: critics `[N, B]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from rl_training.algorithms.base import Learner, Terms
from rl_training.algorithms.losses import critic_terms, soft_actor_terms
from rl_training.algorithms.soft import DelayedActor, DelayedActorConfig
from rl_training.data.transitions import TransitionBatch
from rl_training.errors import ConfigError
from rl_training.models.mlp_redq import MLPREDQModel
from rl_training.settings import PositiveFloat, PositiveInt


class REDQConfig(DelayedActorConfig):
    """The paper's ten critics, with subsets of two."""

    num_critics: PositiveInt = 10
    """size of the ensemble"""
    subset_size: PositiveInt = 2
    """number of random target critics whose minimum is backed up"""
    actor_learning_rate: PositiveFloat | None = None
    """learning rate of the actor; null means `learning_rate`"""
    actor_objective: Literal["mean", "min"] = "mean"
    """what the actor maximises: the `mean` or, as WSRL does, the `min` of all critics"""


def _sample_target_critic_indices(
    *, num_critics: int, subset_size: int, generator: torch.Generator | None = None, scores: Tensor | None = None
) -> Tensor:
    """`subset_size` distinct critics, uniformly drawn without a read from the device: `[M]`.

    They have the largest of the random `scores [N]`, which are drawn if not given."""
    if scores is None:
        scores = torch.rand(num_critics, generator=generator)
    return scores.topk(subset_size, sorted=False).indices


def target_subset(learner: Learner) -> Tensor | None:
    """The target critics of this update, `[M]`; None, without a draw, if the subset is all of them."""
    count, size = learner.config.num_critics, learner.config.subset_size
    if size == count:
        return None
    return _sample_target_critic_indices(num_critics=count, subset_size=size, scores=learner.uniform(count))


def redq_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors: `critic_q_values [B, N] target_q_values sampled_logprobs
    sampled_q_values [B] alpha`."""
    return critic_terms(batch["critic_q_values"].T, batch["target_q_values"]) | soft_actor_terms(
        batch["sampled_q_values"], batch["sampled_logprobs"], batch["alpha"]
    )


class REDQ(DelayedActor):
    """Randomised ensembles on an `MLPREDQModel`."""

    name = "redq"
    Config = REDQConfig
    Model = MLPREDQModel
    fixed_by_model = ("num_critics",)

    def __init__(self, *, model: MLPREDQModel, **hyperparameters: Any) -> None:
        super().__init__(model=model, **hyperparameters)
        if self.config.subset_size > model.num_critics:
            raise ConfigError(
                f"subset_size must be <= num_critics ({model.num_critics}), got {self.config.subset_size}"
            )

    @classmethod
    def model_options(cls, config: Any) -> dict[str, Any]:
        return {"num_critics": config.num_critics, "init": "xavier"}

    def gradient_step(self, batch: TransitionBatch, variant: object) -> Terms:
        next_noise, noise = self.normal(2, *batch.actions.shape)  # for a' and for a
        subset = _sample_target_critic_indices(
            num_critics=self.config.num_critics,
            subset_size=self.config.subset_size,
            scores=self.uniform(self.config.num_critics),
        )
        objectives = {"critics": self.critic_loss} | ({"actor": self.actor_loss} if variant else {})
        return self.minimize((batch, next_noise, noise, subset), objectives, tau=self.config.tau)

    def critic_loss(
        self, batch: TransitionBatch, next_noise: Tensor, noise: Tensor, subset: Tensor
    ) -> tuple[Tensor, Terms]:
        q = self.model.critics(batch.obs, batch.actions)  # [N, B]
        terms = critic_terms(q, self.soft_target(batch, next_noise, subset))
        return terms["critic_loss"], terms

    def actor_loss(
        self, batch: TransitionBatch, next_noise: Tensor, noise: Tensor, subset: Tensor
    ) -> tuple[Tensor, Terms]:
        actions, logprobs = self.model.actor.sample_with_logprob(batch.obs, noise)
        q = self.model.critics(batch.obs, actions, frozen=True)  # [N, B]
        value = q.mean(0) if self.config.actor_objective == "mean" else q.amin(0)
        return self.soft_objective(soft_actor_terms, value, logprobs)
