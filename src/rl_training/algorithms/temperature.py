"""The entropy weight alpha of the SAC family: a fixed number, or learned towards a target entropy."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
from pydantic import PlainValidator
from torch import Tensor, nn

from rl_training.algorithms.base import TargetConfig
from rl_training.algorithms.losses import temperature_loss
from rl_training.settings import PositiveFloat


def _number_or_auto(value: Any) -> float | str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value == "auto" or (is_number and 0 < value < float("inf")):
        return "auto" if value == "auto" else float(value)
    raise ValueError(f"must be a number > 0 or 'auto', got {value!r}")


Alpha = Annotated[float | str, PlainValidator(_number_or_auto)]


class SoftConfig(TargetConfig):
    """What every SAC-family learner can be told.

    `target_entropy` unset means the learner's own rule (-A unless its docstring says otherwise).
    """

    alpha: Alpha = 0.2
    """weight of the entropy: a number, or `auto` to learn it"""
    initial_alpha: PositiveFloat = 1.0
    """where `alpha: auto` starts"""
    target_entropy: float | None = None
    """entropy that `alpha: auto` aims at; null means the algorithm's rule"""
    backup_entropy: bool = True
    """entropy in the critics' target"""


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
