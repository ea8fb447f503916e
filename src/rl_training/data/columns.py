"""Named columns of transitions in a file or in a user's arrays, read in chunks.

Columns are raw: they have the environment's units and the file's number types, and only the file format has been
checked. `packing.py` packs them into rows. A *chunk* is a number of consecutive rows that fit into memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rl_training.errors import DatasetError, MemoryLimitError, nearest
from rl_training.memory import available_memory, human_bytes

REQUIRED = ("observations", "actions", "rewards", "terminals")
OPTIONAL = ("timeouts", "next_observations")
# Optional: the probability of each discrete action when it was taken.
ACTION_PROBS = "action_probs"
# The action space of arrays, in addition to their columns.
SPACE = ("action_low", "action_high", "num_actions", "start")
# Whether episodes continue after a row in `terminals`; see `Columns`.
ENDS_AT_TIMEOUTS = "ends_at_timeouts"
# Names of columns in other libraries, with the argument to use.
OTHER_NAMES = {
    **dict.fromkeys(("obs", "states"), "use observations=…"),
    **dict.fromkeys(("next_obs", "next_states"), "use next_observations=…"),
    **dict.fromkeys(("dones", "terminations"), "use terminals=…, without time limits, and timeouts=… for these"),
    "truncations": "use timeouts=…",
}
_MOST_IGNORED = 10  # names in a message
CHUNK_BYTES = 8 * 2**20  # small enough that chunks reuse the same memory


class Column(Protocol):
    """A column that is read in chunks; reading all chunks in order takes one pass."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows `start` to `stop`."""
        ...


class ArrayColumn:
    """A column in memory or in a mapped file."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self.array[start:stop]


def bounds_of(value: ArrayLike | None) -> tuple[float, ...] | None:
    """Action bounds, one number or one per component, as a tuple."""
    return None if value is None else tuple(np.asarray(value, dtype=np.float64).reshape(-1).tolist())


def _whole(name: str, key: str, value: Any) -> int:
    """A whole number, also of NumPy; 0 for None."""
    number = np.asarray(0 if value is None else value)
    if number.ndim != 0 or number.dtype.kind not in "iu":
        raise DatasetError(f"{name}: {key} must be a whole number, got {value!r}")
    return int(number)


@dataclass
class Columns:
    """The columns of one data set and the action space that its source declares.

    `separated`: the format itself separates episodes (Minari), so a next observation that equals the following
    row's observation does not show a shift across episodes.
    `ends_at_timeouts`: only `timeouts` end an episode; it continues after a row in `terminals`, whose value is not
    bootstrapped (trajectories that were labelled with a task later).
    """

    name: str
    data: Mapping[str, Column]
    action_low: tuple[float, ...] | None = None
    action_high: tuple[float, ...] | None = None
    num_actions: int = 0
    start: int = 0
    separated: bool = False
    ends_at_timeouts: bool = False
    ignored: Sequence[str] = ()  # names of other columns in the source, for messages
    on_close: Callable[[], None] = field(default=lambda: None, repr=False)

    @classmethod
    def of_arrays(cls, name: str, given: Mapping[str, Any]) -> Self:
        """Columns in memory; `given` may also contain their action space (`SPACE`) and `ends_at_timeouts`."""
        known = (*REQUIRED, *OPTIONAL, ACTION_PROBS)
        for key in given:
            if key not in (*known, *SPACE, ENDS_AT_TIMEOUTS):
                raise DatasetError(f"{name}: unknown column {key!r}{nearest(str(key), known)}")
        low, high = (bounds_of(given.get(key)) for key in SPACE[:2])
        data = {key: ArrayColumn(np.asarray(given[key])) for key in known if given.get(key) is not None}
        count, start = (_whole(name, key, given.get(key)) for key in SPACE[2:])
        return cls(name, data, low, high, count, start, ends_at_timeouts=bool(given.get(ENDS_AT_TIMEOUTS)))

    def __post_init__(self) -> None:
        found = ", ".join([*self.data, *self.ignored[:_MOST_IGNORED]])
        for name in REQUIRED:
            if name not in self.data:
                raise DatasetError(
                    f"{self.name}: column {name!r} is missing; found: {found or 'none'}; "
                    f"needed: {', '.join(REQUIRED)}"
                )
        if not any(name in self.data for name in OPTIONAL):
            raise DatasetError(
                f"{self.name}: columns 'timeouts' and 'next_observations' are both missing; one is needed "
                "to keep episodes apart (timeouts may be all zero if no episode was cut)"
            )
        if self.ends_at_timeouts and "timeouts" not in self.data:
            raise DatasetError(f"{self.name}: ends_at_timeouts needs the column 'timeouts', the ends of episodes")
        self._check_types()
        self._check_shapes()
        if self._row_bytes() > available_memory() // 2:
            raise MemoryLimitError(f"{self.name}: one row takes {human_bytes(self._row_bytes())} of memory")

    def _check_types(self) -> None:
        for name, column in self.data.items():
            if column.dtype.kind not in "fiub":
                raise DatasetError(f"{self.name}: column {name!r} holds {column.dtype}, not numbers")
            wanted = 2 if name.endswith("observations") else 1
            wrong = len(column.shape) != wanted
            if name == "actions":
                wrong, wanted = len(column.shape) not in (1, 2), 2
            if wrong:
                raise DatasetError(
                    f"{self.name}: column {name!r} must have {wanted} dimension{'s' * (wanted > 1)}, "
                    f"got shape {list(column.shape)}"
                )

    def _check_shapes(self) -> None:
        rows = len(self)
        for name, column in self.data.items():
            if column.shape[0] != rows:
                raise DatasetError(
                    f"{self.name}: column {name!r} has {column.shape[0]} rows, 'observations' has {rows}; "
                    "all columns need the same length"
                )
        if rows == 0:
            raise DatasetError(f"{self.name}: column 'observations' is empty; at least one row is needed")
        if self.obs_dim == 0:
            raise DatasetError(f"{self.name}: column 'observations' has no components, got shape [{rows}, 0]")
        following = self.data.get("next_observations")
        if following is not None and following.shape[1] != self.obs_dim:
            raise DatasetError(
                f"{self.name}: column 'next_observations' has {following.shape[1]} components, "
                f"'observations' has {self.obs_dim}"
            )

    def __len__(self) -> int:
        return self.data["observations"].shape[0]

    @property
    def obs_dim(self) -> int:
        return self.data["observations"].shape[1]

    def _row_bytes(self) -> int:
        return sum(math.prod(column.shape[1:]) * column.dtype.itemsize for column in self.data.values())

    def chunks(self) -> Iterator[tuple[int, int]]:
        """`(start, stop)` of chunks of about `CHUNK_BYTES` that cover all rows, in order."""
        step = max(1, CHUNK_BYTES // max(1, self._row_bytes()))
        for start in range(0, len(self), step):
            yield start, min(start + step, len(self))

    def read_chunks(self) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
        """`(first row, all columns)` of each chunk, in order."""
        for start, stop in self.chunks():
            yield start, {name: column.read(start, stop) for name, column in self.data.items()}

    def close(self) -> None:
        """Close the file behind the columns."""
        self.on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
