"""Batch normalisation, and the parts that networks with it have in common.

A call (`forward`) normalises by running statistics, which are buffers: row i of the output depends on row i of the
input only. `by_batch` is the train mode. It normalises by the statistics of the batch. It also returns new values
of the buffers and changes nothing itself, so that a loss is pure.

    train mode   y = gain · (x - mean) / std + shift
    call         y = gain · (x - running mean) / running std + shift

std is sqrt(biased variance + epsilon); the running variance averages unbiased ones, as in torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from rl_training.models.mlp import EnsembleNetwork, Select, SingleNetwork

EPSILON, MOMENTUM = 1e-5, 0.01


class Moments(NamedTuple):
    """Moments of the rows of `x [N, B, F]`: `shifted` is x less its first row `origin`; the others are `[N, 1, F]`.

    Mean and biased variance are sums over the same differences. So neither they nor their gradients need one sum
    after another, unlike deviations from the mean; and differences keep the digits that squares of `x` would lose.
    """

    shifted: Tensor
    origin: Tensor
    offset: Tensor  # mean of `shifted`
    variance: Tensor

    @classmethod
    def of(cls, x: Tensor) -> Self:
        origin = x[..., :1, :].detach()
        shifted = x - origin
        offset = shifted.mean(-2, keepdim=True)
        variance = shifted.square().mean(-2, keepdim=True) - offset.square()
        return cls(shifted, origin, offset, variance.clamp(min=0.0))

    @property
    def mean(self) -> Tensor:
        return self.origin + self.offset

    def scaled(self, scale: Tensor, shift: Tensor) -> Tensor:
        """`(x - mean) · scale + shift`; one product and one sum per element, also in the gradient."""
        return torch.addcmul(shift - self.offset * scale, self.shifted, scale)


class BatchNorm(nn.Module):
    """Batch normalisation with statistics, a gain and a shift per member."""

    epsilon: ClassVar[float] = EPSILON
    mean: Tensor
    variance: Tensor

    def __init__(self, num_members: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_members, 1, features))
        self.bias = nn.Parameter(torch.zeros(num_members, 1, features))
        self.register_buffer("mean", torch.zeros(num_members, 1, features))
        self.register_buffer("variance", torch.ones(num_members, 1, features))

    def scale_and_shift(self, select: Select) -> tuple[Tensor, Tensor]:
        """A call is `x · scale + shift`."""
        scale = select(self.weight) * torch.rsqrt(select(self.variance) + self.epsilon)
        return scale, select(self.bias) - select(self.mean) * scale

    def forward(self, x: Tensor, select: Select) -> Tensor:
        scale, shift = self.scale_and_shift(select)
        return torch.addcmul(shift, x, scale)

    def statistics(self) -> list[Tensor]:
        """The buffers."""
        return [self.mean, self.variance]

    def by_batch(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """`x [N, B, F]` in train mode, and the new values of `statistics`."""
        moments = Moments.of(x)
        normal = moments.scaled(self.weight * torch.rsqrt(moments.variance + self.epsilon), self.bias)
        with torch.no_grad():
            unbiased = moments.variance * (x.shape[-2] / (x.shape[-2] - 1))
            return normal, [self.mean.lerp(moments.mean, MOMENTUM), self.variance.lerp(unbiased, MOMENTUM)]


class BatchNormNetwork(EnsembleNetwork):
    """N networks with the batch normalisation layers `norms`."""

    norms: nn.ModuleList

    def through(self, x: Tensor, select: Select, normalize: Callable[[Any, Tensor], Tensor]) -> Tensor:
        """The input of the head, from `x [N, B, in]`; `normalize` applies a layer of `norms`, in their order."""
        raise NotImplementedError

    def features(self, x: Tensor, select: Select) -> Tensor:
        return self.through(x, select, lambda norm, x: norm(x, select))

    def statistics(self) -> list[Tensor]:
        """The running statistics of every layer."""
        return [buffer for norm in self.norms for buffer in norm.statistics()]  # type: ignore[operator]

    def by_batch(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Outputs `[N, B, out]` in train mode, and the new values of `statistics`."""
        found: list[Tensor] = []

        def normalize(norm: BatchNorm, x: Tensor) -> Tensor:
            normal, statistics = norm.by_batch(x)
            found.extend(statistics)
            return normal

        def select(parameter: Tensor) -> Tensor:
            return parameter

        features = self.through(x.expand(self.num_members, -1, -1), select, normalize)
        return self.head(features, select), found


class SingleBatchNormNetwork(SingleNetwork, BatchNormNetwork):
    """Base of a single such network."""

    def by_batch(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Outputs `[B, out]` in train mode, and the new values of `statistics`."""
        outputs, statistics = super().by_batch(x)
        return outputs.squeeze(0), statistics
