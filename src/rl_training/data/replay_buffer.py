"""The replay buffer: a ring of packed rows on the device that trains.

Its size is a device tensor, so a recorded update keeps drawing from all that has been added since.
"""

from __future__ import annotations

from typing import Any

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

    def __init__(
        self,
        capacity: int,
        layout: RowLayout,
        generator: torch.Generator,
        *,
        storage: torch.device | None = None,
    ) -> None:
        self.capacity = capacity
        self.layout = layout
        self.generator = generator
        self.device = generator.device
        where = self.device if storage is None else storage
        # Not zeroed: the operating system then hands out memory only as the ring fills.
        pin = where.type == "cpu" and self.device.type == "cuda"
        self.rows = torch.empty((capacity, layout.width), device=where, pin_memory=pin)
        self.added = 0
        self._size = torch.zeros((), dtype=torch.int64, device=self.device)

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, rows: NDArray[np.float32]) -> None:
        """Append `[n, width]` rows, overwriting the oldest."""
        fresh = torch.from_numpy(rows)
        start = self.added % self.capacity
        head = min(len(rows), self.capacity - start)
        self.rows[start : start + head].copy_(fresh[:head], non_blocking=True)
        if head < len(rows):
            self.rows[: len(rows) - head].copy_(fresh[head:], non_blocking=True)
        self.added += len(rows)
        if self.added <= self.capacity + len(rows):
            self._size.fill_(len(self))

    def sample_rows(self, batch_size: int) -> Tensor:
        index = torch.randint(2**62, (batch_size,), generator=self.generator, device=self.device) % self._size
        if self.rows.device == self.device:
            return self.rows.index_select(0, index)
        return self.rows.index_select(0, index.cpu()).to(self.device, non_blocking=True)

    def load(self, rows: Tensor, *, added: int) -> None:
        """Restore `rows` (slot order) of a buffer that had seen `added` rows."""
        self.rows[: len(rows)].copy_(rows)
        self.added = added
        self._size.fill_(len(self))

    def state(self) -> dict[str, Any]:
        """The plain numbers beside the rows."""
        return {"added": self.added, "capacity": self.capacity}
