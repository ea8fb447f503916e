"""Shared code of the SAC family: the entropy weight alpha, the two optimisers, and the delayed actor.

Each algorithm defines its own losses and `gradient_step`, and its own targets unless they are SAC's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import torch
from pydantic import PlainValidator
from torch import Tensor, nn

from rl_training.algorithms.base import ActorStartConfig, Learner, LearnerConfig, TargetConfig, Terms
from rl_training.algorithms.losses import soft_value, td_target
from rl_training.data.transitions import TransitionBatch
from rl_training.errors import ConfigError
from rl_training.settings import OnlyWith, PositiveFloat, PositiveInt


def _number_or_auto(value: Any) -> float | str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value == "auto" or (is_number and 0 < value < float("inf")):
        return "auto" if value == "auto" else float(value)
    raise ValueError(f"must be a number > 0 or 'auto', got {value!r}")


Alpha = Annotated[float | str, PlainValidator(_number_or_auto)]


class EntropyConfig(LearnerConfig):
    """Hyperparameters of the entropy term."""

    alpha: Alpha = 0.2
    """entropy coefficient: a number, or `auto` to learn it"""
    initial_alpha: Annotated[PositiveFloat, OnlyWith("alpha", "auto")] = 1.0
    """initial value with `alpha: auto`"""
    target_entropy: Annotated[float | None, OnlyWith("alpha", "auto")] = None
    """target entropy of `alpha: auto`; null means the default of the algorithm"""
    backup_entropy: bool = True
    """include the entropy term in the critics' target"""


class SoftConfig(EntropyConfig, TargetConfig):
    """Hyperparameters of the SAC family with target networks."""


class DelayedActorConfig(ActorStartConfig, SoftConfig):
    """For many critic updates per environment step (a high update-to-data ratio) and one actor update."""

    policy_delay: PositiveInt | None = None
    """critic updates per actor update; null means `gradient_updates_per_step`"""


def temperature_loss(log_alpha: Tensor, logprobs: Tensor, target_entropy: float) -> Tensor:
    """-log alpha (log pi + H): increases alpha while the policy's entropy is below H."""
    return -log_alpha * (logprobs.detach() + target_entropy).mean()


class Temperature(nn.Module):
    """alpha as a tensor: a buffer if fixed, exp of a parameter if learned."""

    fixed: Tensor

    def __init__(self, config: Any, *, target_entropy: float) -> None:
        super().__init__()
        self.learned = config.alpha == "auto"
        self.target_entropy = target_entropy if config.target_entropy is None else config.target_entropy
        if self.learned:
            self.log_alpha = nn.Parameter(torch.tensor(math.log(config.initial_alpha)))
        else:
            self.register_buffer("fixed", torch.tensor(float(config.alpha)), persistent=False)

    def alpha(self) -> Tensor:
        """The current alpha, detached, as the critic and actor losses use it."""
        return self.log_alpha.detach().exp() if self.learned else self.fixed

    def loss(self, logprobs: Tensor) -> Tensor:
        """The loss of alpha; 0 if alpha is fixed."""
        if not self.learned:
            return logprobs.new_zeros(())
        return temperature_loss(self.log_alpha, logprobs, self.target_entropy)


class SoftActorCritic(Learner):
    """A learner with critics, a stochastic actor and a temperature, which the actor's optimiser updates."""

    # The default target entropy per action dimension.
    entropy_per_dimension: ClassVar[float] = -1.0
    temperature_class: ClassVar[type[Temperature]] = Temperature

    def __init__(self, *, model: Any, **hyperparameters: Any) -> None:
        super().__init__(model=model, **hyperparameters)
        if (family := getattr(model, "policy_distribution", "tanh")) != "tanh":
            raise ConfigError(f"{self.name} needs a model whose policy_distribution is 'tanh', got {family!r}")
        target_entropy = self.entropy_per_dimension * model.action_dim
        self.temperature = self.temperature_class(self.config, target_entropy=target_entropy).to(self.device)
        self.optimizers = {
            "critics": self.adam(model.critics),
            "actor": self.adam(
                model.actor, self.temperature, learning_rate=getattr(self.config, "actor_learning_rate", None)
            ),
        }

    @classmethod
    def structure(cls, config: Any) -> dict[str, Any]:
        # The temperature stores it as a constant.
        return super().structure(config) | {"target_entropy": config.target_entropy}

    def modules(self) -> dict[str, nn.Module]:
        return {"model": self.model, "temperature": self.temperature}

    def variant(self, update: int) -> bool:
        """Whether the actor and the temperature are updated."""
        return update >= self.actor_starts

    @torch.no_grad()
    def soft_target(self, batch: TransitionBatch, next_noise: Tensor, subset: Tensor | None = None) -> Tensor:
        """The critics' target `[B]`: the minimum of the target critics, or of a `subset` of them, at a' ~ pi."""
        next_actions, next_logprobs = self.model.actor.sample_with_logprob(batch.next_obs, next_noise)
        next_q = self.model.target_critics(batch.next_obs, next_actions, members=subset)  # [N, B]
        value = self.backed_up(next_q.amin(0), next_logprobs)
        return td_target(batch.rewards, batch.dones, value, self.config.gamma)

    def backed_up(self, q: Tensor, logprobs: Tensor) -> Tensor:
        """Q(s', a') with the entropy term, unless `backup_entropy` is false."""
        return soft_value(q, logprobs, self.temperature.alpha()) if self.config.backup_entropy else q

    def soft_objective(
        self, actor_terms: Callable[[Tensor, Tensor, Tensor], Terms], q: Tensor, logprobs: Tensor
    ) -> tuple[Tensor, Terms]:
        """The loss of actor and temperature, and its terms, from `q` and `logprobs` of the policy's own actions."""
        alpha = self.temperature.alpha()
        terms = actor_terms(q, logprobs, alpha) | {"alpha": alpha}
        return terms["actor_loss"] + self.temperature.loss(logprobs), terms


class DelayedActor(SoftActorCritic):
    """A `SoftActorCritic` that updates its actor in the last of every `policy_delay` updates (default: in each)."""

    def __init__(self, *, model: Any, **hyperparameters: Any) -> None:
        super().__init__(model=model, **hyperparameters)
        self.expect_terms(actor_loss=0.0, entropy_term=0.0, alpha=self.temperature.alpha())

    @classmethod
    def configure(cls, config: Any, updates_per_step: int) -> Any:
        delay = updates_per_step if config.policy_delay is None else config.policy_delay
        return config.model_copy(update={"policy_delay": delay})

    def variant(self, update: int) -> bool:
        return super().variant(update) and self.ends_period(update, self.config.policy_delay or 1)
