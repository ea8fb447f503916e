"""Sampling from several data sets with given probabilities, without reading from the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.data.sources import TensorSource
from rl_training.data.transitions import RowLayout


class Part(NamedTuple):
    """One data set of a mixture: its number of consecutive rows and its probability."""

    rows: int
    weight: float


def remaining_parts(
    parts: Sequence[Part], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[Part, ...]:
    """The parts of a mixture after rows were left out; episodes that began at `starts` now have `lengths`.

    The weight of a part is reduced in proportion to its rows, so that a row-uniform mixture stays uniform.
    Empty parts are removed.
    """
    if not parts:
        return ()
    home = np.searchsorted(np.cumsum([part.rows for part in parts]), starts, side="right")
    counts = np.bincount(home, weights=lengths, minlength=len(parts)).astype(int)
    return tuple(Part(int(count), part.weight * count / part.rows) for count, part in zip(counts, parts) if count)


class WeightedSource(TensorSource):
    """For each row of a batch, draws a part by weight, then one of its rows uniformly."""

    def __init__(
        self,
        rows: Tensor,
        layout: RowLayout,
        generator: torch.Generator,
        parts: Sequence[Part],
        ahead: Callable[[NDArray[np.int64]], None] | None = None,
    ) -> None:
        super().__init__(rows, layout, generator, ahead)
        sizes = torch.tensor([part.rows for part in parts], dtype=torch.int64)
        weights = torch.tensor([part.weight for part in parts], dtype=torch.float64)
        # Without the last edge, so that a draw above it, due to rounding, still belongs to the last part.
        self.edges = (weights.cumsum(0) / weights.sum())[:-1].float().to(generator.device)
        self.sizes = sizes.to(generator.device)
        self.starts = (sizes.cumsum(0) - sizes).to(generator.device)

    def draw(self, batch_size: int, generator: torch.Generator | None = None) -> Tensor:
        chosen = generator or self.generator
        draw = torch.rand(batch_size, generator=chosen, device=chosen.device)
        part = torch.searchsorted(self.edges, draw, right=True)  # [B]
        offset = torch.randint(2**62, (batch_size,), generator=chosen, device=chosen.device)
        return self.starts[part] + offset % self.sizes[part]
