"""The replay rows of a checkpoint in shards of fixed size; checkpoints share unchanged shards.

A ring buffer changes only between two write positions, so most of a large buffer is the same in successive
checkpoints. Unchanged shards are hard-linked from the previous checkpoint. Every folder is complete on its own, and
deleting one does not affect others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

SHARD_ROWS = 16_384


@dataclass(frozen=True)
class RowsToSave:
    """A ring buffer of rows `[capacity or filled, W]` in slot order; row n is in slot `n % capacity`.

    `added` is the number of all rows ever written, so `filled` is `min(added, capacity)`. The newest `amended` rows
    of the previous checkpoint may have changed.
    """

    rows: Tensor
    filled: int
    added: int
    capacity: int
    amended: int = 0

    def __post_init__(self) -> None:
        if self.filled != min(self.added, self.capacity):
            raise ValueError(
                f"filled must be min(added, capacity), got filled={self.filled}, added={self.added}, "
                f"capacity={self.capacity}"
            )
        if self.rows.ndim != 2 or self.rows.shape[0] < self.filled:
            raise ValueError(f"rows must be [>= {self.filled}, W], got {list(self.rows.shape)}")

    @property
    def info(self) -> RowsInfo:
        return RowsInfo(
            self.filled,
            self.added,
            self.capacity,
            width=self.rows.shape[1],
            dtype=str(self.rows.dtype).removeprefix("torch."),
            shard_rows=SHARD_ROWS,
        )


@dataclass(frozen=True)
class RowsInfo:
    """The description of the rows in a manifest, which determines the shards and their sizes."""

    filled: int
    added: int
    capacity: int
    width: int
    dtype: str
    shard_rows: int

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RowsInfo:
        """Raises ValueError if the numbers are inconsistent."""
        info = cls(**value)
        counts = [info.filled, info.added, info.capacity, info.width, info.shard_rows]
        if any(type(count) is not int or count < 0 for count in counts) or info.shard_rows == 0:
            raise ValueError(f"impossible replay counts {counts}")
        if info.filled != min(info.added, info.capacity) or type(info.dtype) is not str:
            raise ValueError(f"impossible replay counts {counts}")
        return info

    @property
    def num_shards(self) -> int:
        return -(-self.filled // self.shard_rows)

    def shards(self) -> Iterator[tuple[str, int, int]]:
        """File name, first slot and end slot of each shard; the last one may be shorter."""
        for number, start in enumerate(range(0, self.filled, self.shard_rows)):
            yield f"replay/shard_{number:05d}.safetensors", start, min(start + self.shard_rows, self.filled)

    def unchanged_since(self, old: RowsInfo | None, amended: int = 0) -> set[str]:
        """Names of the shards whose slots are those in `old` and have not been written since.

        The newest `amended` rows of `old` count as written.
        """
        if old is None or replace(old, filled=self.filled, added=self.added) != self:
            return set()
        since = max(old.added - amended, 0)
        written = self.added - since
        if not 0 <= written < max(self.capacity, 1):
            return set()
        first = since % max(self.capacity, 1)
        spans = [(first, first + written), (first - self.capacity, first + written - self.capacity)]
        before = set(old.shards())
        return {
            name
            for name, start, end in self.shards()
            if (name, start, end) in before
            and all(end <= low or high <= start or low == high for low, high in spans)
        }
