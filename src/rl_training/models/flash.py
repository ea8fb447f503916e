"""The networks of FlashSAC: residual blocks with batch normalisation (BN), and matrices of unit vectors.

    embed: unit(BN(x))  ->  each block: x + f(f(x)), f = activation(BN(unit(…)))  ->  RMSNorm  ->  head

A unit layer has no bias; the head has one. As in the authors' code, each matrix is orthogonal at first; then its
columns, the weights of one output each, are scaled to norm 1. The learner does the same after each step. It also
scales the gain and shift of each BN together, and the gain of RMSNorm, to norm sqrt(number of features).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rl_training.errors import ConfigError
from rl_training.models.batch_norm import BatchNorm, BatchNormNetwork, SingleBatchNormNetwork
from rl_training.models.mlp import RESIDUAL_BLOCKS, Activation, EnsembleLinear, Select, product, rounded
from rl_training.models.simba import EXPANSION, one_width
from rl_training.models.steps import Step

RMS_EPSILON = 1e-6


class Sphere(NamedTuple):
    """Tensors that are scaled in place after a step, such that their norm along `axis` is `radius`.

    Several tensors have one norm together. `epsilon` is added to its square.
    """

    tensors: tuple[Tensor, ...]
    axis: int  # counted from the end, as the tensors of S learners have one more axis in front
    radius: float
    epsilon: float


@torch.no_grad()
def init_unit(weight: Tensor) -> None:
    """Orthogonal matrices `[N, in, out]`, whose columns are then scaled to norm 1."""
    for matrix in weight:
        nn.init.orthogonal_(matrix.T)
    weight.div_(weight.norm(dim=-2, keepdim=True))


class UnitLinear(nn.Module):
    """N linear layers without a bias: `[N, B, in] -> [N, B, out]`."""

    def __init__(self, num_members: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_members, in_features, out_features))
        init_unit(self.weight.data)

    def forward(self, x: Tensor, select: Select) -> Tensor:
        return product(x, select(self.weight))


class RMSNorm(nn.Module):
    """`x / sqrt(mean x² + epsilon)` over the features, with a gain per member."""

    def __init__(self, num_members: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_members, 1, features))

    def forward(self, x: Tensor, select: Select) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + RMS_EPSILON) * select(self.weight)

    def step(self) -> Step:
        """The operation of the first member."""
        return Step.of("rms_norm", weight=self.weight[0, 0], epsilon=RMS_EPSILON)


class EnsembleFlash(BatchNormNetwork):
    """N networks of one width, the one size in `hidden_sizes`; equal sizes count as one."""

    def __init__(
        self,
        num_members: int,
        in_features: int,
        hidden_sizes: Sequence[int],
        out_features: int,
        *,
        residual_blocks: int = RESIDUAL_BLOCKS,
        layer_norm: bool = False,
        activation: Activation = "relu",
    ) -> None:
        if layer_norm:
            raise ConfigError("layer_norm must be false for flash_sac, which has its own normalisation")
        super().__init__(num_members, activation)
        width = one_width(hidden_sizes, "flash_sac")
        inner = EXPANSION * width
        # The embedding, then two layers per block; `norms[0]` is before its layer, all others after theirs.
        self.linears = nn.ModuleList([UnitLinear(num_members, in_features, width)])
        self.norms = nn.ModuleList([BatchNorm(num_members, in_features)])
        for _ in range(residual_blocks):
            for a, b in ((width, inner), (inner, width)):
                self.linears.append(UnitLinear(num_members, a, b))
                self.norms.append(BatchNorm(num_members, b))
        self.norm = RMSNorm(num_members, width)
        self.head = EnsembleLinear(num_members, width, out_features, init="unit_orthogonal")  # its bias is 0
        init_unit(self.head.weight.data)

    def through(self, x: Tensor, select: Select, normalize: Callable[[Any, Tensor], Tensor]) -> Tensor:
        x = self.linears[0](normalize(self.norms[0], x), select)
        layers: list[Any] = list(zip(self.linears, self.norms))
        for (expand, first), (contract, second) in zip(layers[1::2], layers[2::2]):
            inner = normalize(first, expand(x, select))
            if self.activation == "relu":
                inner = rounded(inner, contract.weight)
            x = x + self.activate(normalize(second, contract(self.activate(inner), select)))
        return self.norm(x, select)

    def spheres(self) -> list[Sphere]:
        """The norms that the parameters keep."""
        gains: list[Any] = [*((norm.weight, norm.bias) for norm in self.norms), (self.norm.weight,)]
        return [
            *(Sphere((layer.weight,), -2, 1.0, 1e-16) for layer in (*self.linears, self.head)),
            *(Sphere(tensors, -1, tensors[0].shape[-1] ** 0.5, 1e-8) for tensors in gains),
        ]


class Flash(SingleBatchNormNetwork, EnsembleFlash):
    """One such network."""

    def feature_steps(self) -> list[Step]:
        """Each BN is part of its linear layer."""
        weight, *weights = [layer.weight[0] for layer in self.linears]  # type: ignore[index]
        (scale, shift), *folded = [norm.scale_and_shift(itemgetter(0)) for norm in self.norms]  # type: ignore[operator]
        found = [Step.of("affine", weight=scale.T * weight, bias=(shift @ weight)[0])]
        for i, (weight, (scale, shift)) in enumerate(zip(weights, folded)):
            layer = [Step.of("affine", weight=weight * scale, bias=shift[0]), Step(self.activation)]
            found += [Step("keep"), *layer] if i % 2 == 0 else [*layer, Step("add_kept")]
        return [*found, self.norm.step()]
