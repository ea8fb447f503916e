"""A policy as a list of operations with their weights, for export.

The method `steps(sampled)` of an actor returns them. Each operation takes the output of the one before it,
`[B, features]`; `kept` is the one that the last `keep` saw:

    normalize   (x - shift) * scale              affine      x @ weight + bias
    clip        to [low, high]                   layer_norm  over the features, then * weight + bias
    relu leaky_relu elu gelu gelu_tanh silu tanh argmax      the index of the largest, [B]
    keep        x                                add_kept    x + kept
    rms_norm    x / sqrt(mean x² + epsilon) over the features, then * weight
    tanh_log_std of [mean | x]: log std = low + (high - low) (1 + tanh x) / 2
    tanh_mean   of [mean | log std]: tanh of the mean
    gaussian    of [mean | log std], the latter clipped to [low, high]: mean + std * noise
    add_noise   x + scale * noise                append_noise [x | noise]
    categorical of logits: inverse transform sampling with the normal CDF of `noise [B, 1]`

A new operation needs a line in each writer of `export/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rl_training.errors import ExportError


class Step(NamedTuple):
    """One operation."""

    operation: str
    arrays: Mapping[str, NDArray[Any]] = MappingProxyType({})

    @classmethod
    def of(cls, operation: str, **values: Tensor | float) -> Step:
        """An operation with copies of `values` in host memory, which later updates do not change."""
        tensors = {name: torch.as_tensor(value).detach().to("cpu", copy=True) for name, value in values.items()}
        return cls(operation, {name: tensor.contiguous().numpy() for name, tensor in tensors.items()})

    def first(self, outputs: int | None) -> Step:
        """This operation restricted to its first `outputs`, if given."""
        return self._replace(arrays={name: array[..., :outputs] for name, array in self.arrays.items()})


_OPERATIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.LeakyReLU: "leaky_relu",
    nn.ELU: "elu",
    nn.GELU: "gelu",
    nn.SiLU: "silu",
    nn.Tanh: "tanh",
}
_NAMES = {*_OPERATIONS.values(), "keep", "add_kept"}


def steps_of(listed: Iterable[nn.Module | Step | str]) -> list[Step]:
    """The operations of torch's layers in order; a text is the name of one without weights, such as `keep`.

    The arguments of activations are not read: an export compares actions before it writes a file.
    """
    found: list[Step] = []
    for one in listed:
        if isinstance(one, nn.Sequential):
            found += steps_of(one)
        elif isinstance(one, nn.Linear):
            bias = torch.zeros(one.out_features) if one.bias is None else one.bias
            found.append(Step.of("affine", weight=one.weight.T, bias=bias))
        elif isinstance(one, nn.LayerNorm):
            gain = torch.ones(one.normalized_shape) if one.weight is None else one.weight
            shift = torch.zeros_like(gain) if one.bias is None else one.bias
            found.append(Step.of("layer_norm", weight=gain, bias=shift, epsilon=one.eps))
        elif isinstance(one, Step):
            found.append(one)
        elif not isinstance(one, nn.Identity):
            operation = one if isinstance(one, str) else _OPERATIONS.get(type(one), type(one).__name__)
            if operation not in _NAMES:
                raise ExportError(f"steps(): {operation} cannot be exported; known: {', '.join(sorted(_NAMES))}")
            found.append(Step(operation))
    return found
