"""A policy as a list of operations with their weights, for export.

The method `steps(sampled)` of an actor returns them. Each operation takes the output of the one before it,
`[B, features]`; `kept` is the one that the last `keep` saw:

    normalize   (x - shift) * scale              affine      x @ weight + bias
    clip        to [low, high]                   layer_norm  over the features, then * weight + bias
    relu leaky_relu elu gelu silu tanh           argmax      the index of the largest, [B]
    keep        x                                add_kept    x + kept
    tanh_mean   of [mean | log std]: tanh of the mean
    gaussian    of [mean | log std], the latter clipped to [low, high]: mean + std * noise
    add_noise   x + scale * noise
    categorical of logits: inverse transform sampling with the normal CDF of `noise [B, 1]`

A new operation needs a line in each writer of `export/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from numpy.typing import NDArray
from torch import Tensor


class Step(NamedTuple):
    """One operation."""

    operation: str
    arrays: Mapping[str, NDArray[Any]] = MappingProxyType({})


def as_array(tensor: Tensor) -> NDArray[Any]:
    """A copy in host memory, which later updates do not change."""
    return tensor.detach().to("cpu", copy=True).contiguous().numpy()
