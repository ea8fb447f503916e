"""The replay buffer: a ring of packed rows on the device that trains.

Its size is a device tensor, so a captured update keeps drawing from all that has been added since.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.data.transitions import RowLayout


class ReplayBuffer:
    """The newest `capacity` transitions; a `BatchSource`.

    `rows` holds slot i of the ring at row i; `added` counts every row ever written, so the next slot is
    `added % capacity`.
    """

    def __init__(self, capacity: int, layout: RowLayout, generator: torch.Generator, *, pin: bool = False) -> None:
        """Rows live on the generator's device; `pin` host memory that a GPU will copy from."""
        self.capacity = capacity
        self.layout = layout
        self.generator = generator
        # Not zeroed: the operating system then hands out memory only as the ring fills.
        self.rows = torch.empty((capacity, layout.width), device=generator.device, pin_memory=pin)
        self.added = 0
        self._size = torch.zeros((), dtype=torch.int64, device=generator.device)

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, rows: NDArray[np.float32]) -> None:
        """Append `[n, width]` rows, overwriting the oldest."""
        fresh = torch.from_numpy(rows[-self.capacity :])
        start = (self.added + len(rows) - len(fresh)) % self.capacity
        head = min(len(fresh), self.capacity - start)
        self.rows[start : start + head].copy_(fresh[:head], non_blocking=True)
        if head < len(fresh):
            self.rows[: len(fresh) - head].copy_(fresh[head:], non_blocking=True)
        self.added += len(rows)
        if self.added <= self.capacity + len(rows):
            self._size.fill_(len(self))

    @property
    def device(self) -> torch.device:
        return self.rows.device

    def draw(self, batch_size: int) -> Tensor:
        """Indices of `rows` that are filled, `[B]`."""
        draws = torch.randint(2**62, (batch_size,), generator=self.generator, device=self.device)
        return draws % self._size

    def sample_rows(self, batch_size: int) -> Tensor:
        return self.rows.index_select(0, self.draw(batch_size))

    def load(self, rows: Tensor, *, added: int) -> None:
        """Restore `rows` (slot order) of a buffer that had seen `added` rows."""
        self.rows[: len(rows)].copy_(rows)
        self.added = added
        self._size.fill_(len(self))
