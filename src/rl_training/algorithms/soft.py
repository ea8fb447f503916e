"""The plumbing of the SAC family: the entropy weight alpha, the two optimisers, and the rhythm of a delayed actor.

Targets, losses and `gradient_step` are not here: each algorithm writes its own.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import torch
from pydantic import PlainValidator
from torch import Tensor, nn

from rl_training.algorithms.base import Learner, TargetConfig
from rl_training.errors import ConfigError
from rl_training.settings import PositiveFloat, PositiveInt


def _number_or_auto(value: Any) -> float | str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value == "auto" or (is_number and 0 < value < float("inf")):
        return "auto" if value == "auto" else float(value)
    raise ValueError(f"must be a number > 0 or 'auto', got {value!r}")


Alpha = Annotated[float | str, PlainValidator(_number_or_auto)]


class SoftConfig(TargetConfig):
    """What every SAC-family learner can be told."""

    alpha: Alpha = 0.2
    """weight of the entropy: a number, or `auto` to learn it"""
    initial_alpha: PositiveFloat = 1.0
    """where `alpha: auto` starts"""
    target_entropy: float | None = None
    """entropy that `alpha: auto` aims at; null means the algorithm's rule"""
    backup_entropy: bool = True
    """entropy in the critics' target"""


class DelayedActorConfig(SoftConfig):
    """For many critic updates per environment step (a high UTD ratio) and one actor update."""

    policy_delay: PositiveInt | None = None
    """critic updates per actor update; null means `gradient_updates_per_step`"""


def temperature_loss(log_alpha: Tensor, logprobs: Tensor, target_entropy: float) -> Tensor:
    """-log alpha (log pi + H): raises alpha while the policy's entropy is below H."""
    return -log_alpha * (logprobs.detach() + target_entropy).mean()


class Temperature(nn.Module):
    """alpha as a tensor: a buffer when fixed, exp of a parameter when learned."""

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
        """The current weight, detached: losses of critic and actor take it as a constant."""
        return self.log_alpha.detach().exp() if self.learned else self.fixed

    def loss(self, logprobs: Tensor) -> Tensor:
        """What moves alpha; 0 when it is fixed."""
        if not self.learned:
            return logprobs.new_zeros(())
        return temperature_loss(self.log_alpha, logprobs, self.target_entropy)


class SoftActorCritic(Learner):
    """A learner with critics, a stochastic actor and a temperature, which the actor's optimiser steps."""

    # The target entropy per action dimension where the user gives none.
    entropy_per_dimension: ClassVar[float] = -1.0

    def __init__(self, *, model: Any, **hyperparameters: Any) -> None:
        super().__init__(model=model, **hyperparameters)
        if (family := getattr(model, "policy_distribution", "tanh")) != "tanh":
            raise ConfigError(f"{self.name} needs a model whose policy_distribution is 'tanh', got {family!r}")
        target_entropy = self.entropy_per_dimension * model.action_dim
        self.temperature = Temperature(self.config, target_entropy=target_entropy).to(self.device)
        self.optimizers = {
            "critics": self.adam(model.critics),
            "actor": self.adam(model.actor, self.temperature),
        }

    @classmethod
    def structure(cls, config: Any) -> dict[str, Any]:
        # The temperature keeps it as a constant.
        return super().structure(config) | {"target_entropy": config.target_entropy}

    def modules(self) -> dict[str, nn.Module]:
        return {"model": self.model, "temperature": self.temperature}


class DelayedActor(SoftActorCritic):
    """A `SoftActorCritic` whose actor moves at the last of every `policy_delay` updates; unset, at each."""

    def __init__(self, *, model: Any, **hyperparameters: Any) -> None:
        super().__init__(model=model, **hyperparameters)
        self.expect_terms(actor_loss=0.0, entropy_term=0.0, alpha=self.temperature.alpha())

    @classmethod
    def configure(cls, config: Any, updates_per_step: int) -> Any:
        delay = updates_per_step if config.policy_delay is None else config.policy_delay
        return config.model_copy(update={"policy_delay": delay})

    def variant(self, update: int) -> bool:
        """Whether the update moves the actor."""
        return self.ends_period(update, self.config.policy_delay or 1)
