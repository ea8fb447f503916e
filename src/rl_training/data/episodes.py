"""Episodes of a data set: their rows, held-out episodes, and bootstrap resamples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.data.datasets import TransitionDataset
from rl_training.data.statistics import rows_to_termination
from rl_training.errors import ConfigError, DatasetError
from rl_training.seeding import held_out_episodes

Numbers = NDArray[np.int64]


class Episodes(NamedTuple):
    """First row and length of each episode, `[E]`."""

    starts: Numbers
    lengths: Numbers

    @property
    def ends(self) -> Numbers:
        """The last row of each episode."""
        return self.starts + self.lengths - 1

    @classmethod
    def of(cls, dataset: TransitionDataset, purpose: str) -> Episodes:
        """The episodes of `dataset`, at least two; errors name `purpose`."""
        if len(dataset.episode_ends) < 2:
            found = "there is only one" if len(dataset.episode_ends) else "its rows do not follow each other"
            raise DatasetError(
                f"{dataset.name}: {purpose} needs several episodes, and {found}; use data whose rows follow each "
                "other (or hold out more of them), with the ends of episodes in 'terminals' or 'timeouts'"
            )
        return cls(*dataset.episodes(purpose))

    def to_termination(self, dones: NDArray[np.float32]) -> Episodes:
        """These episodes, each up to its first termination."""
        return Episodes(self.starts, rows_to_termination(self.starts, self.lengths, dones))


class Split(NamedTuple):
    """Training and held-out episodes of a data set."""

    training: TransitionDataset
    held_out: TransitionDataset


def hold_out(dataset: TransitionDataset, fraction: float) -> Split:
    """Split off a random `fraction` of the episodes (at least one).

    The choice depends only on the number of episodes in the source, so that training and evaluation hold out the
    same ones, also if the rows of some episodes are all left out.
    """
    if not 0 < fraction < 1:
        raise ConfigError(f"validation_fraction must be in (0, 1), got {fraction}", key="validation_fraction")
    present = len(Episodes.of(dataset, "validation_fraction").starts)
    count = present + len(dataset.lost)
    held = min(count - 1, max(1, round(fraction * count)))
    chosen = held_out_episodes().permutation(count)[:held]
    is_held = np.isin(np.setdiff1d(np.arange(count), dataset.lost), chosen)
    if is_held.all() or not is_held.any():
        raise DatasetError(f"{dataset.name}: too few episodes for validation_fraction {fraction}: {present}")
    return Split(
        dataset.of_episodes(np.flatnonzero(~is_held), f"{held} of {count} episodes held out"),
        dataset.of_episodes(np.flatnonzero(is_held), f"{held} held-out episodes of {count}"),
    )


@dataclass(frozen=True)
class Resample:
    """A bootstrap resample: as many episodes as the data set has, drawn with replacement.

    Positions count the rows of all drawn episodes in order. No rows are copied.
    """

    counts: Tensor  # [E], how often each episode was drawn, float64
    edges: Tensor  # [E], the position after the last row of each drawn episode
    shifts: Tensor  # [E], difference between a row and its position

    @classmethod
    def of(cls, episodes: Episodes, drawn: Numbers, device: torch.device) -> Resample:
        """The resample of the episodes `drawn`."""
        edges = np.cumsum(episodes.lengths[drawn])
        shifts = episodes.starts[drawn] - (edges - episodes.lengths[drawn])
        counts = np.bincount(drawn, minlength=len(episodes.starts)).astype(np.float64)
        return cls(*(torch.from_numpy(one).to(device) for one in (counts, edges, shifts)))

    def to(self, device: torch.device) -> Resample:
        """This resample on another device."""
        return Resample(self.counts.to(device), self.edges.to(device), self.shifts.to(device))

    @property
    def size(self) -> int:
        """Number of rows of all drawn episodes; reads from the device."""
        return int(self.edges[-1])

    def rows_at(self, positions: Tensor) -> Tensor:
        """Indices of the rows at `positions`, of any shape; does not read from the device."""
        drawn = torch.searchsorted(self.edges, positions.contiguous(), right=True)
        return positions + self.shifts[drawn]


def resamples(episodes: Episodes, count: int, rng: np.random.Generator, device: torch.device) -> list[Resample]:
    """`count` bootstrap resamples of the episodes; for one, the original episodes."""
    total = len(episodes.starts)
    if count == 1:
        return [Resample.of(episodes, np.arange(total), device)]
    return [Resample.of(episodes, rng.integers(total, size=total), device) for _ in range(count)]
