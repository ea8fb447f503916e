"""FlashSAC: SAC with normalised residual networks and categorical critics (arXiv 2604.04539, 2026).

Networks and their constraints are in `models.flash`. A critic is a distribution over evenly spaced returns in
±`value_limit`, and Q is its mean; rewards are scaled so that returns fit (`normalize_rewards`). Exploration noise
is held for k steps, P(k) ∝ k^-2, k <= `longest_noise`.

An update has two phases (see `base`):
1. In the first of every `policy_delay` updates: the actor, in train mode on [s; s'], of which s enters the loss;
   the critics normalise by running statistics. With it the temperature, by alpha · (entropy - target entropy).
2. The critics, by the new actor and temperature. The target critics, in train mode on [(s, a); (s', a')], give the
   distribution at s' of the critic with the lower mean. Its bins move to r + gamma (1 - d) (z - alpha log pi), are
   clipped and projected to the fixed bins. The critics, in train mode on the same rows, minimise the cross-entropy.
   Target networks have their own statistics; only their parameters follow the critics.
Each optimiser's learning-rate schedule counts its own steps, so that of the actor ends half-way.
Departures: noise is drawn for s only, as the actions at s' enter no loss; n-step returns that are cut early
discount by the steps they contain; the schedule counts updates only, and has no warm-up (the authors: one update);
the running return that scales rewards is reset after the last reward of an episode (the authors: before it), and
its sum of squared deviations contains nothing else (the authors: 1e-4 of the variance with each step).
Axes: critics `[2, B]`, distributions `[2, B, M]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import ActorStartConfig, Terms
from rl_training.algorithms.losses import td_target
from rl_training.algorithms.optim import Adam
from rl_training.algorithms.sac import actor_terms
from rl_training.algorithms.soft import Alpha, DelayedActor, SoftConfig, Temperature
from rl_training.data.transitions import TransitionBatch
from rl_training.models.mlp import RESIDUAL_BLOCKS, NetworkShape
from rl_training.models.mlp_flash_sac import MLPFlashSACModel
from rl_training.settings import OnlyWith, PositiveFloat, PositiveInt, Sizes, WholeNumber

# The default target entropy is that of a Gaussian with this standard deviation.
TARGET_STD = 0.15


class FlashSACConfig(ActorStartConfig, SoftConfig):
    """The settings of FlashSAC."""

    tau: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Polyak coefficient: target ← (1 − tau)·target + tau·source"""
    alpha: Alpha = "auto"
    """entropy coefficient: a number, or `auto` to learn it"""
    initial_alpha: Annotated[PositiveFloat, OnlyWith("alpha", "auto")] = 0.01
    """initial value with `alpha: auto`"""
    policy_delay: PositiveInt = 2
    """critic updates per update of actor and temperature"""
    num_bins: Annotated[int, Field(ge=2), WholeNumber] = 101
    """number of bins of a critic's distribution of returns"""
    value_limit: PositiveFloat = 5.0
    """largest return of these bins; without `normalize_rewards` at least the largest discounted return"""
    longest_noise: PositiveInt = 16
    """largest number of steps for which exploration noise is held; 1 draws it in every step"""


class FlashSACNetworkConfig(NetworkShape):
    """Residual networks; the critics are wider than the actor."""

    hidden_sizes: Sizes = (128,)
    """width of the actor, and of the critics if `critic_hidden_sizes` is null; one size, or equal ones"""
    critic_hidden_sizes: Sizes | None = (256,)
    """width of the critics; null means `hidden_sizes`"""
    residual_blocks: PositiveInt = RESIDUAL_BLOCKS
    """residual blocks of every network"""


class EntropyTemperature(Temperature):
    """A temperature with the loss alpha · (entropy - target entropy), whose gradient is that of log alpha."""

    def loss(self, logprobs: Tensor) -> Tensor:
        if not self.learned:
            return super().loss(logprobs)
        return self.log_alpha.exp() * (-logprobs.detach().mean() - self.target_entropy)


def projected(probs: Tensor, places: Tensor) -> Tensor:
    """Divide each of `probs [B, M]` between the two bins next to its place, which is counted in bins from 0.

    The sums are in float64, so that their order, which varies on a GPU, does not show in float32.
    """
    below = places.floor()
    lower = below.nan_to_num().long()  # NaN is not an index; the share of a NaN place is NaN too
    upper = (lower + 1).clamp(max=probs.shape[-1] - 1)
    share, wide = (places - below).double(), probs.double()
    found = torch.zeros_like(wide).scatter_add(-1, lower, wide * (1.0 - share))
    return found.scatter_add(-1, upper, wide * share).to(probs.dtype)


def categorical_target(logits: Tensor, bins: Tensor, values: Tensor) -> Tensor:
    """The distribution `[B, M]` of the critic with the lower mean, moved from `bins [M]` to `values [B, M]`."""
    probs = logits.softmax(-1)  # [2, B, M]
    first, second = (probs * bins).sum(-1)
    least = torch.where((first <= second)[:, None], probs[0], probs[1])
    last = len(bins) - 1
    places = (values - bins[0]) * (last / (bins[-1] - bins[0]))
    return projected(least, places.clamp(0, last))


def critic_terms(log_probs: Tensor, target: Tensor, bins: Tensor) -> Terms:
    """Cross-entropy of `log_probs [2, B, M]` and `target [B, M]`, averaged over critics and batch."""
    return {"critic_loss": -(target * log_probs).sum(-1).mean(), "target_q_mean": (target * bins).sum(-1).mean()}


def flash_sac_loss(batch: Mapping[str, Any]) -> Terms:
    """Every term from precomputed tensors: `log_probs [B, 2, M] target_probs [B, M] bins [M] sampled_logprobs
    sampled_q1 sampled_q2 alpha`."""
    sampled_q = torch.stack([batch["sampled_q1"], batch["sampled_q2"]])
    return critic_terms(batch["log_probs"].transpose(0, 1), batch["target_probs"], batch["bins"]) | actor_terms(
        sampled_q, batch["sampled_logprobs"], batch["alpha"]
    )


class FlashSAC(DelayedActor):
    """FlashSAC on an `MLPFlashSACModel`."""

    name = "flash_sac"
    most_first_steps = 10_000
    Config = FlashSACConfig
    Model = MLPFlashSACModel
    Network = FlashSACNetworkConfig
    least_batch = 2
    fixed_by_model = ("num_bins", "value_limit")
    temperature_class = EntropyTemperature
    entropy_per_dimension = 0.5 * math.log(2.0 * math.pi * math.e * TARGET_STD**2)

    def __init__(self, *, model: MLPFlashSACModel, **hyperparameters: Any) -> None:
        super().__init__(model=model, **hyperparameters)
        for name, net in (("actor", model.actor.net), ("critics", model.critics.net)):
            self.optimizers[name].spheres = net.spheres()

    def statistics(self) -> dict[str, list[Tensor]]:
        model = self.model
        critics = [*model.critics.net.statistics(), *model.target_critics.net.statistics()]
        return {"critics": critics, "actor": model.actor.net.statistics()}

    @property
    def longest_noise(self) -> int:
        return int(self.config.longest_noise)

    def variant(self, update: int) -> bool:
        """Whether the actor and the temperature are updated."""
        return update >= self.actor_starts and update % self.config.policy_delay == 0

    def schedule_step(self, optimizer: Adam, update: int) -> int:
        if optimizer is self.optimizers["critics"]:
            return update
        before, reached = (math.ceil(i / self.config.policy_delay) for i in (self.actor_starts, update))
        return max(reached - before, 0)

    def gradient_step(self, batch: TransitionBatch, variant: object) -> Terms:
        next_noise, noise = self.normal(2, *batch.actions.shape)  # for a' and for a
        terms = self.minimize((batch, noise), {"actor": self.actor_loss}) if variant else {}
        return terms | self.minimize((batch, next_noise), {"critics": self.critic_loss}, tau=self.config.tau)

    def actor_loss(self, batch: TransitionBatch, noise: Tensor) -> tuple[Tensor, Terms, list[Tensor]]:
        both = torch.cat([batch.obs, batch.next_obs])
        (actions, logprobs), statistics = self.model.actor.sample_by_batch(both, noise)
        q = self.model.critics(batch.obs, actions, frozen=True)  # [2, B]
        return *self.soft_objective(actor_terms, q, logprobs), statistics

    def critic_loss(self, batch: TransitionBatch, next_noise: Tensor) -> tuple[Tensor, Terms, list[Tensor]]:
        model, bins = self.model, self.model.critics.bins
        with torch.no_grad():
            next_actions, next_logprobs = model.actor.sample_with_logprob(batch.next_obs, next_noise)
            pairs = torch.cat([batch.obs, batch.next_obs]), torch.cat([batch.actions, next_actions])
            both, target_statistics = model.target_critics.by_batch(*pairs)  # [2, 2 B, M]
            values = self.backed_up(bins.expand(len(batch.rewards), -1), next_logprobs[:, None])  # [B, M]
            moved = td_target(batch.rewards[:, None], batch.dones[:, None], values, self.config.gamma)
            target = categorical_target(both.chunk(2, dim=1)[1], bins, moved)
        both, statistics = model.critics.by_batch(*pairs)
        terms = critic_terms(both.chunk(2, dim=1)[0].log_softmax(-1), target, bins)
        return terms["critic_loss"], terms, [*statistics, *target_statistics]
