"""Where minibatches come from. A `BatchSource` draws fixed shapes on one device without a host read.

Sources hold raw observations; normalisation lives in the model. All of them draw from the generator they were
given, so the order of draws, and with it a resumed run, is the same on every path.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from rl_training.data.transitions import RowLayout
from rl_training.errors import ConfigError


class BatchSource(Protocol):
    """Something minibatches are drawn from."""

    layout: RowLayout

    @property
    def device(self) -> torch.device: ...

    def sample_rows(self, batch_size: int) -> Tensor:
        """`batch_size` packed rows drawn with replacement, `[B, width]`."""
        ...

    def __len__(self) -> int: ...


class TensorSource:
    """A fixed set of rows in memory (or on the device)."""

    def __init__(self, rows: Tensor, layout: RowLayout, generator: torch.Generator) -> None:
        self.rows = rows
        self.layout = layout
        self.generator = generator

    @property
    def device(self) -> torch.device:
        return self.rows.device

    def draw(self, batch_size: int) -> Tensor:
        """Indices of `rows`, `[B]`."""
        return torch.randint(len(self.rows), (batch_size,), generator=self.generator, device=self.rows.device)

    def sample_rows(self, batch_size: int) -> Tensor:
        return self.rows.index_select(0, self.draw(batch_size))

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
        return self.prior.device

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
        return torch.cat([self.prior.sample_rows(prior_rows), self.replay.sample_rows(replay_rows)])

    def __len__(self) -> int:
        return len(self.prior) + len(self.replay)
