"""Where minibatches come from. A `BatchSource` draws fixed shapes on one device without a host read.

Sources hold raw observations; normalisation lives in the model. All of them draw from the generator they were
given, so the order of draws, and with it a resumed run, is the same on every path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.data.replay_buffer import PinnedStaging
from rl_training.data.transitions import RowLayout
from rl_training.errors import ConfigError


class BatchSource(Protocol):
    """Something minibatches are drawn from."""

    layout: RowLayout

    @property
    def device(self) -> torch.device: ...

    @property
    def arrivals(self) -> tuple[PinnedStaging, ...]:
        """Rows that an update has to write before it draws; `sample_rows` does, but not inside a graph."""
        ...

    def sample_rows(self, batch_size: int) -> Tensor:
        """`batch_size` packed rows drawn with replacement, `[B, width]`."""
        ...

    def __len__(self) -> int: ...


class TensorSource:
    """A fixed set of rows: on the device, in memory, or in a file that is mapped into it.

    Indices are drawn where the generator lives and then go to the rows, so that the same rows are drawn wherever
    they are. `ahead` can be told which rows of a file will be needed.
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
        """Indices of `rows`, `[B]`, on the device of the generator, which is the source's own unless given."""
        chosen = generator or self.generator
        return torch.randint(len(self.rows), (batch_size,), generator=chosen, device=chosen.device)

    def gather(self, index: Tensor, out: Tensor | None = None) -> Tensor:
        """The rows at `index`, `[n, width]`."""
        return torch.index_select(self.rows, 0, index.to(self.rows.device), out=out)

    def sample_rows(self, batch_size: int) -> Tensor:
        return self.gather(self.draw(batch_size))

    def __len__(self) -> int:
        return len(self.rows)


class MixedSource:
    """Each minibatch holds exactly `round(ratio * batch_size)` rows of `prior`, the rest of `replay`."""

    def __init__(self, prior: BatchSource, replay: BatchSource, *, ratio: float) -> None:
        if prior.layout != replay.layout:
            raise ConfigError(f"prior data and environment differ in shape: {prior.layout} != {replay.layout}")
        self.prior = prior
        self.replay = replay
        self.ratio = ratio
        self.layout = prior.layout

    @property
    def device(self) -> torch.device:
        """Where all rows lie; the host, if the two sides are apart."""
        return self.prior.device if self.prior.device == self.replay.device else torch.device("cpu")

    @property
    def arrivals(self) -> tuple[PinnedStaging, ...]:
        return (*self.prior.arrivals, *self.replay.arrivals)

    def split(self, batch_size: int) -> tuple[int, int]:
        """Rows drawn from the prior data and from the replay buffer."""
        prior_rows = round(self.ratio * batch_size)
        if 0 < self.ratio < 1 and prior_rows in (0, batch_size):
            raise ConfigError(
                f"algo_kwargs.offline_batch_ratio {self.ratio} of a batch of {batch_size} leaves one side empty; "
                "use 0, 1, a larger batch_size or a ratio nearer to 0.5",
                key="algo_kwargs.offline_batch_ratio",
            )
        return prior_rows, batch_size - prior_rows

    def sample_rows(self, batch_size: int) -> Tensor:
        prior_rows, replay_rows = self.split(batch_size)
        if replay_rows == 0:
            return self.prior.sample_rows(prior_rows)
        if prior_rows == 0:
            return self.replay.sample_rows(replay_rows)
        prior = self.prior.sample_rows(prior_rows)
        return torch.cat([prior.to(self.replay.device), self.replay.sample_rows(replay_rows)])

    def __len__(self) -> int:
        return len(self.prior) + len(self.replay)
