"""MLPs with batch renormalisation (Ioffe 2017) of the input and after each hidden activation, as in CrossQ.

Calls and the train mode are those of `batch_norm`, except for the two corrections r and d:

    train mode   y = gain · ((x - mean) / std · r + d) + shift
    call         y = gain · (x - running mean) / running std + shift

std is sqrt(biased variance + epsilon), also the running one. r = std / running std and d = (mean - running mean) /
running std are clipped and have no gradient. In the first `WARM_UP` batches they are 1 and 0 (batch normalisation).
The authors of CrossQ add epsilon after they divide the variance by r², and multiply d by a std without epsilon,
whose gradient is infinite if a unit is constant. Both matter only if the variance is not much larger than epsilon.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.models.batch_norm import BatchNorm, BatchNormNetwork, Moments, SingleBatchNormNetwork
from rl_training.models.mlp import Activation, EnsembleLinear, Init, Select
from rl_training.models.steps import Step

EPSILON, MOMENTUM, WARM_UP = 1e-3, 0.01, 100_000
R_MAX, D_MAX = 3.0, 5.0  # r is clipped to [1 / R_MAX, R_MAX], d to [-D_MAX, D_MAX]


class BatchRenorm(BatchNorm):
    """Batch renormalisation with statistics, a gain and a shift per member."""

    epsilon = EPSILON
    batches: Tensor  # number of batches so far; a float, like all tensors of a policy

    def __init__(self, num_members: int, features: int) -> None:
        super().__init__(num_members, features)
        self.register_buffer("batches", torch.zeros(()))

    def statistics(self) -> list[Tensor]:
        return [*super().statistics(), self.batches]

    def by_batch(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        moments = Moments.of(x)
        std = (moments.variance + EPSILON).sqrt()
        with torch.no_grad():
            running_std = (self.variance + EPSILON).sqrt()
            warm = self.batches >= WARM_UP
            r = torch.where(warm, (std / running_std).clamp(1.0 / R_MAX, R_MAX), 1.0)
            d = torch.where(warm, ((moments.mean - self.mean) / running_std).clamp(-D_MAX, D_MAX), 0.0)
            running = self.mean.lerp(moments.mean, MOMENTUM), self.variance.lerp(moments.variance, MOMENTUM)
        normal = moments.scaled(self.weight * r / std, self.bias + self.weight * d)
        return normal, [*running, self.batches + 1.0]


class EnsembleRenormMLP(BatchNormNetwork):
    """N networks `norm -> hidden activation norm … -> out`."""

    def __init__(
        self,
        num_members: int,
        in_features: int,
        hidden_sizes: Sequence[int],
        out_features: int,
        *,
        activation: Activation = "relu",
        init: Init = "torch",
    ) -> None:
        super().__init__(num_members, activation)
        sizes = [in_features, *hidden_sizes]
        self.hidden = nn.ModuleList(
            EnsembleLinear(num_members, a, b, init=init) for a, b in itertools.pairwise(sizes)
        )
        self.norms = nn.ModuleList(BatchRenorm(num_members, size) for size in sizes)
        self.head = EnsembleLinear(num_members, sizes[-1], out_features, init=init)

    def through(self, x: Tensor, select: Select, normalize: Callable[[Any, Tensor], Tensor]) -> Tensor:
        first, *others = self.norms
        x = normalize(first, x)
        for linear, norm in zip(self.hidden, others):
            x = normalize(norm, self.activate(linear(x, select)))
        return x


class RenormMLP(SingleBatchNormNetwork, EnsembleRenormMLP):
    """One such network."""

    def steps(self, outputs: int | None = None) -> list[Step]:
        """The operations of a call; each norm is part of the linear layer that follows it."""
        found: list[Step] = []
        for norm, linear in zip(self.norms, (*self.hidden, self.head)):
            scale, shift = norm.scale_and_shift(lambda parameter: parameter[0])  # type: ignore[operator]
            weight = linear.weight[0]
            bias = linear.bias[0, 0] + (shift @ weight)[0]
            found += [Step.of("affine", weight=scale.T * weight, bias=bias), Step(self.activation)]
        return [*found[:-2], found[-2].first(outputs)]
