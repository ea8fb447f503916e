"""The replay buffer: a ring buffer of packed rows on the training device.

Its size is a device tensor, so that a captured update samples from all rows added since.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.data.n_step import TRUNCATED, NStepReturns, stored_dones
from rl_training.data.transitions import RowLayout


class PinnedStaging:
    """The newest rows of a ring buffer on a GPU, in pinned host memory until the next update copies them.

    The copy is part of the update, also of a captured one, so that a step needs no separate call. It is idempotent:
    a replay writes the same rows to the same slots.
    """

    def __init__(self, ring: Tensor, size: Tensor, count: int) -> None:
        """`count`: rows per `put`."""
        self._ring, self._size, self.count = ring, size, count
        width = ring.shape[1]
        # Slots and size, then the rows, in one transfer.
        self._host = torch.zeros(count + 1 + (count * width + 1) // 2, dtype=torch.int64, pin_memory=True)
        self._there = self._host.to(ring.device)
        (slots, rows), (self._slots, self._rows) = (
            (block[: count + 1], block[count + 1 :].view(torch.float32)[: count * width].view(count, width))
            for block in (self._host, self._there)
        )
        self._slot_numbers, self._row_numbers = slots.numpy(), rows.numpy()
        self._read = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.waiting = False

    @property
    def newest(self) -> Tensor:
        """The slot of the newest row."""
        return self._slots[-2]

    def put(self, rows: NDArray[np.float32], slots: NDArray[np.int64], size: int) -> None:
        """Store new rows, after the GPU has read the previous ones."""
        self._read.synchronize()
        self._row_numbers[:] = rows
        self._slot_numbers[:-1] = slots
        self._slot_numbers[-1] = size
        self.waiting = True

    def write(self) -> None:
        """Write the rows to the ring on the current stream; call `written` afterwards, also after each replay."""
        self._there.copy_(self._host, non_blocking=True)
        self._ring.index_copy_(0, self._slots[:-1], self._rows)
        self._size.copy_(self._slots[-1])

    def written(self) -> None:
        self._read.record()
        self.waiting = False


class ReplayBuffer:
    """The newest `capacity` transitions; a `BatchSource`.

    Row i of `rows` is slot i of the ring; `added` counts all rows ever written, so the next slot is
    `added % capacity`.
    """

    def __init__(
        self,
        capacity: int,
        layout: RowLayout,
        generator: torch.Generator,
        *,
        pin: bool = False,
        together: int = 1,
        n_step: NStepReturns | None = None,
    ) -> None:
        """Rows are on the generator's device; `pin` pins host memory for copies to a GPU.

        `together`: usual number of rows per `add`; 0 if tensors are appended. `n_step`: drawn rows are n-step
        transitions; stored rows are single steps with `dones` from `dones()`.
        """
        self.capacity = capacity
        self.layout = layout
        self.generator = generator
        self.n_step = n_step
        # Rows that may change after they were added: the newest ones, of ended episodes.
        self.amended = 0 if n_step is None else n_step.num_envs
        # Not zeroed, so that the operating system allocates memory only as the ring fills.
        self._rows = torch.empty((capacity, layout.width), device=generator.device, pin_memory=pin)
        self.added = 0
        self.filled = torch.zeros((), dtype=torch.int64, device=generator.device)  # `len` without waiting rows
        self._position = torch.zeros_like(self.filled)  # number of rows that were appended
        self.arrivals: tuple[PinnedStaging, ...] = ()
        self._arrays: tuple[NDArray[np.float32], NDArray[np.int64]] | None = None  # rows and size, in host memory
        if generator.device.type == "cpu":
            self._arrays = self._rows.numpy(), self.filled.numpy()
        elif 0 < together <= capacity:
            self._offsets = np.arange(together)
            self.arrivals = (PinnedStaging(self._rows, self.filled, together),)

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    @property
    def rows(self) -> Tensor:
        self._settle()
        return self._rows

    def _settle(self) -> None:
        """Write waiting rows to the ring."""
        for arrivals in self.arrivals:
            if arrivals.waiting:
                arrivals.write()
                arrivals.written()

    def add(self, rows: NDArray[np.float32]) -> None:
        """Append rows `[n, width]`, overwriting the oldest; does not wait for a GPU if n is the usual number."""
        self._settle()
        if self.arrivals and len(rows) == self.arrivals[0].count:
            start = self.added % self.capacity
            self.added += len(rows)
            slots = self._offsets + start
            self.arrivals[0].put(
                rows, slots if start + len(rows) <= self.capacity else slots % self.capacity, len(self)
            )
            return
        newest = rows[-self.capacity :]
        start = (self.added + len(rows) - len(newest)) % self.capacity
        self.added += len(rows)
        head = min(len(newest), self.capacity - start)
        parts = (slice(start, start + head), newest[:head]), (slice(len(newest) - head), newest[head:])
        if self._arrays is not None:
            ring, size = self._arrays
            for place, part in parts:
                ring[place] = part
            size[...] = len(self)
            return
        for place, part in parts:
            self._rows[place].copy_(torch.from_numpy(part))
        self.filled.fill_(len(self))
        self._position.fill_(self.added)
        self._remember_newest()

    def append(self, rows: Tensor) -> None:
        """Append rows `[n, width]` on this device without reading anything back, so that it can be captured.

        Call `appended` after it, and after each replay. A buffer is filled by `add` or by `append`, never by both.
        """
        slots = (self._position + torch.arange(len(rows), device=self.device)) % self.capacity
        self._rows.index_copy_(0, slots, rows)
        self._position += len(rows)
        self.filled.copy_(self._position.clamp(max=self.capacity))

    def appended(self, count: int) -> None:
        """Count the rows of an `append`."""
        self.added += count

    def _remember_newest(self) -> None:
        """Make the newest rows those that the next replay writes again."""
        for arrivals in self.arrivals:
            slots = np.arange(self.added - arrivals.count, self.added)
            slots = np.maximum(slots, max(0, self.added - self.capacity)) % self.capacity
            there = torch.from_numpy(slots).to(self.device)
            arrivals.put(self._rows.index_select(0, there).cpu().numpy(), slots, len(self))
            self._settle()

    def dones(self, terminated: Any, truncated: Any) -> Any:
        """The column `dones` of rows to store, from boolean arrays or tensors `[n]`."""
        return terminated if self.n_step is None else stored_dones(terminated, truncated)

    def cut(self, environments: Sequence[int]) -> None:
        """Mark the newest row of each of `environments` as truncated, because the environment was reset."""
        if self.n_step is None or self.added == 0:
            return
        first = self.added - self.n_step.num_envs
        slots = (first + torch.tensor(environments, device=self.device)) % self.capacity
        dones = self.rows[slots, -1]
        self._rows[slots, -1] = torch.where(dones == 0, TRUNCATED, dones)
        self._remember_newest()

    def end_episode(self, environment: int, length: int, reward_map: tuple[float, float]) -> None:
        """Write the columns that are known at the end of an episode, whose last row is one of the newest.

        Rows of the episode that were overwritten since are left out. `reward_map` is that of the stored rewards.
        """
        for column in self.layout.extras:
            if column.at_end is None or self.n_step is None:
                continue
            step = self.n_step.num_envs
            numbers = self.added - step + environment - step * np.arange(length)[::-1]
            kept = numbers[numbers >= self.added - len(self)] % self.capacity
            slots = torch.from_numpy(kept).to(self.device)
            rewards, dones = self.rows[slots, -2:].cpu().numpy().T
            ends = np.array([len(kept) - 1])
            values = torch.from_numpy(column.at_end(rewards, dones, ends, reward_map, *column.bound))
            self._rows[slots, self.layout.places[column.name].start] = values.to(self.device)
            self.amended = max(self.amended, step * length)
            self._remember_newest()

    @property
    def device(self) -> torch.device:
        return self._rows.device

    def draw(self, batch_size: int) -> Tensor:
        """Random indices of filled rows, `[B]`."""
        draws = torch.randint(2**62, (batch_size,), generator=self.generator, device=self.device)
        return draws % self.filled

    def sample_rows(self, batch_size: int) -> Tensor:
        self._settle()
        index = self.draw(batch_size)
        if self.n_step is None:
            return self._rows.index_select(0, index)
        return self.n_step.rows(self._rows, index, self._newest(), self.layout)

    def _newest(self) -> Tensor | int:
        """The number of the newest row, counted from the first or from slot 0; on a GPU a tensor."""
        if self._arrays is not None:
            return self.added - 1
        return self.arrivals[0].newest if self.arrivals else self._position - 1

    def load(self, rows: Tensor, *, added: int) -> None:
        """Restore `rows`, in slot order, of a buffer to which `added` rows had been added."""
        self._rows[: len(rows)].copy_(rows)
        self.added = added
        self.filled.fill_(len(self))
        self._position.fill_(added)
        if added > 0:
            self._remember_newest()
