"""Drawing from several data sets with given probabilities, without a host read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rl_training.data.transitions import RowLayout


class Part(NamedTuple):
    """One data set of a mixture: how many consecutive rows it has, and the probability mass they share."""

    rows: int
    weight: float


class WeightedSource:
    """Each row of a batch chooses its part by weight, then one of the part's rows uniformly."""

    def __init__(self, rows: Tensor, layout: RowLayout, generator: torch.Generator, parts: Sequence[Part]) -> None:
        self.rows = rows
        self.layout = layout
        self.generator = generator
        sizes = torch.tensor([part.rows for part in parts], dtype=torch.int64)
        weights = torch.tensor([part.weight for part in parts], dtype=torch.float64)
        # The last edge is left out: a draw that rounding puts above it still belongs to the last part.
        self.edges = (weights.cumsum(0) / weights.sum())[:-1].float().to(rows.device)
        self.sizes = sizes.to(rows.device)
        self.starts = (sizes.cumsum(0) - sizes).to(rows.device)

    @property
    def device(self) -> torch.device:
        return self.rows.device

    def sample_rows(self, batch_size: int) -> Tensor:
        device = self.device
        draw = torch.rand(batch_size, generator=self.generator, device=device)
        part = torch.searchsorted(self.edges, draw, right=True)  # [B]
        offset = torch.randint(2**62, (batch_size,), generator=self.generator, device=device)
        index = self.starts[part] + offset % self.sizes[part]
        return self.rows.index_select(0, index)

    def __len__(self) -> int:
        return len(self.rows)
