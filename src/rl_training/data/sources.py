"""Sources of minibatches. A `BatchSource` draws batches of fixed shape without reading from the device.

Observations are raw; the model normalises them. Every source draws from the generator that it is given, so that the
order of draws is the same in every mode of execution and in a resumed run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.data.replay_buffer import PinnedStaging, ReplayBuffer
from rl_training.data.transitions import RowLayout
from rl_training.errors import ConfigError


class BatchSource(Protocol):
    """A source of minibatches."""

    layout: RowLayout

    @property
    def device(self) -> torch.device: ...

    @property
    def arrivals(self) -> tuple[PinnedStaging, ...]:
        """Rows to write before drawing; `sample_rows` does so, but not inside a CUDA graph."""
        ...

    def sample_rows(self, batch_size: int) -> Tensor:
        """`batch_size` packed rows drawn with replacement, `[B, width]`."""
        ...

    def __len__(self) -> int: ...


class TensorSource:
    """A fixed set of rows: on the device, in memory, or in a mapped file.

    Indices are drawn on the generator's device, so that the same rows are drawn wherever they are stored. `ahead`
    is called with the indices of rows that will be needed.
    """

    arrivals = ()

    def __init__(
        self,
        rows: Tensor,
        layout: RowLayout,
        generator: torch.Generator,
        ahead: Callable[[NDArray[np.int64]], None] | None = None,
    ) -> None:
        self.rows = rows
        self.layout = layout
        self.generator = generator
        self.ahead = ahead

    @property
    def device(self) -> torch.device:
        return self.rows.device

    def draw(self, batch_size: int, generator: torch.Generator | None = None) -> Tensor:
        """Random indices of `rows`, `[B]`, on the device of the generator (default: that of the source)."""
        chosen = generator or self.generator
        return torch.randint(len(self.rows), (batch_size,), generator=chosen, device=chosen.device)

    def gather(self, index: Tensor, out: Tensor | None = None) -> Tensor:
        """The rows at `index`, `[n, width]`."""
        return torch.index_select(self.rows, 0, index.to(self.rows.device), out=out)

    def sample_rows(self, batch_size: int) -> Tensor:
        return self.gather(self.draw(batch_size))

    def __len__(self) -> int:
        return len(self.rows)


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


class MixedSource:
    """Each minibatch holds exactly `round(ratio * batch_size)` rows of `prior`, the rest of `replay`.

    If `ratio` is None, rows are drawn uniformly from both together, and `replay` is a `ReplayBuffer`.
    """

    def __init__(self, prior: BatchSource, replay: BatchSource, *, ratio: float | None) -> None:
        if prior.layout != replay.layout:
            raise ConfigError(f"prior data and environment differ in shape: {prior.layout} != {replay.layout}")
        self.prior = prior
        self.replay = replay
        self.ratio = ratio
        self.layout = prior.layout

    @property
    def device(self) -> torch.device:
        """The device of all rows; the host if the two sources are on different devices."""
        return self.prior.device if self.prior.device == self.replay.device else torch.device("cpu")

    @property
    def arrivals(self) -> tuple[PinnedStaging, ...]:
        return (*self.prior.arrivals, *self.replay.arrivals)

    def expected(self, batch_size: int) -> tuple[float, float]:
        """Mean numbers of rows drawn from the prior data and from the replay buffer."""
        if self.ratio is not None:
            return self.split(batch_size)
        share = len(self.prior) / len(self)
        return share * batch_size, (1.0 - share) * batch_size

    def split(self, batch_size: int) -> tuple[int, int]:
        """Rows drawn from the prior data and from the replay buffer, if `ratio` is a number."""
        assert self.ratio is not None
        prior_rows = round(self.ratio * batch_size)
        if 0 < self.ratio < 1 and prior_rows in (0, batch_size):
            raise ConfigError(
                f"algo_kwargs.offline_batch_ratio {self.ratio} of a batch of {batch_size} leaves one side empty; "
                "use 0, 1, a larger batch_size or a ratio nearer to 0.5",
                key="algo_kwargs.offline_batch_ratio",
            )
        return prior_rows, batch_size - prior_rows

    def _uniform(self, batch_size: int) -> Tensor:
        """Rows drawn uniformly from both sides together; a row of each is drawn, and one of the two is used."""
        assert isinstance(self.replay, ReplayBuffer)
        prior, new = (side.sample_rows(batch_size) for side in (self.prior, self.replay))
        size, generator = len(self.prior), self.replay.generator
        draws = torch.rand(batch_size, generator=generator, device=generator.device, dtype=torch.float64)
        return torch.where((draws * (size + self.replay.filled) < size)[:, None], prior.to(new.device), new)

    def sample_rows(self, batch_size: int) -> Tensor:
        if self.ratio is None:
            return self._uniform(batch_size)
        prior_rows, replay_rows = self.split(batch_size)
        if replay_rows == 0:
            return self.prior.sample_rows(prior_rows)
        if prior_rows == 0:
            return self.replay.sample_rows(replay_rows)
        prior = self.prior.sample_rows(prior_rows)
        return torch.cat([prior.to(self.replay.device), self.replay.sample_rows(replay_rows)])

    def __len__(self) -> int:
        return len(self.prior) + len(self.replay)
