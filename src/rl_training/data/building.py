"""Builds the rows of a run from opened data sets, all in one array: packing, mixing and transforms.

The array is in memory or in a file. Building needs memory for the rows and for one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.columns import Columns
from rl_training.data.datasets import RawRows, TransitionDataset
from rl_training.data.extra_columns import NEXT_ACTIONS, Column
from rl_training.data.mapped import Contents, as_tensor
from rl_training.data.mixing import mix, require_same_spaces
from rl_training.data.placement import MemoryBudget
from rl_training.data.sources import Part
from rl_training.data.transitions import RowLayout
from rl_training.data.validation import settled_spaces
from rl_training.spaces import SpaceSpec


class Build:
    """Builds one data set from opened data sets.

    `weights` are those of a mixture, else empty; `transform` may change rows in place.
    """

    def __init__(
        self,
        parts: Sequence[Columns | TransitionDataset],
        weights: Sequence[float],
        spaces: SpaceSpec | None,
        *,
        extras: tuple[Column, ...],
        transform: Callable[[TransitionDataset], TransitionDataset],
    ) -> None:
        self.parts, self.weights, self.transform = parts, weights, transform
        self.spaces = [settled_spaces(part, spaces) if isinstance(part, Columns) else part.spaces for part in parts]
        for part, own in zip(parts, self.spaces):
            require_same_spaces(parts[0].name, self.spaces[0], part.name, own)
        self.name = " + ".join(part.name for part in parts)
        self.layout = RowLayout.of(self.spaces[0], extras)
        self.shape = (sum(len(part) for part in parts), self.layout.width)
        self.nbytes = self.shape[0] * self.shape[1] * 4

    def into(self, rows: NDArray[np.float32]) -> TransitionDataset:
        """Build the data set in `rows`, which has room for all; it uses the first of them."""
        made: list[TransitionDataset] = []
        used = 0
        for part, spaces in zip(self.parts, self.spaces):
            made.append(self._place(part, spaces, rows[used:]))
            used += len(made[-1])
        dataset = mix(list(zip(made, self.weights)), rows=rows[:used]) if self.weights else made[0]
        return self.transform(dataset.as_raw()).fill_reserved()

    def _place(
        self, part: Columns | TransitionDataset, spaces: SpaceSpec, rows: NDArray[np.float32]
    ) -> TransitionDataset:
        """Copy one data set to the first of `rows`, with room for the extra columns."""
        if isinstance(part, Columns):
            return TransitionDataset.from_columns(part, spaces=spaces, rows=rows, reserve=self.layout.extras)
        self.layout.pack_batch(part.layout.unpack(as_tensor(part.rows)), out=rows[: len(part)])
        return replace(part, rows=rows[: len(part)], extras=self.layout.extras, checksum=None)

    def contents(self, rows: NDArray[np.float32]) -> Contents:
        """`into`, as the contents of a packed file."""
        data = self.into(rows)
        about = {
            "notes": list(data.notes),
            "parts": [[part.rows, float(part.weight)] for part in data.parts],
            "reward_map": [float(number) for number in data.reward_map],
            "next_actions": NEXT_ACTIONS in data.extras,
            "spaces": data.spaces.record(),
            "fingerprint": data.fingerprint(),
            "raw": list(data.raw or ()),
            "lost": list(data.lost),
        }
        return Contents(data.rows, data.episode_ends, about)


def unpacked(
    contents: Contents, name: str, spaces: SpaceSpec | None, budgets: MemoryBudget, extras: tuple[Column, ...] = ()
) -> TransitionDataset:
    """The data set in a packed file, copied to memory if there is room for it."""
    rows, ends, about = contents
    if rows.nbytes <= budgets.on_host():
        rows = np.array(rows)
    own: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in about["spaces"].items()
    }
    raw, lost = about.get("raw"), about.get("lost", ())  # missing in files of version 0.2
    return TransitionDataset(
        rows,
        spaces or SpaceSpec(**own),
        ends,
        name,
        tuple(about["notes"]),
        tuple(Part(*part) for part in about["parts"]),
        (about["reward_map"][0], about["reward_map"][1]),
        extras,
        memory_limit=budgets.on_host(),
        checksum=about["fingerprint"],
        raw=RawRows(*raw) if raw else None,
        lost=tuple(lost),
    )
