"""n-step returns: a row becomes the transition over the next n rows of its environment.

A replay buffer stores single steps, whose rows of one environment are `num_envs` apart, and changes rows when they
are drawn. The rows of a data set are changed once, when it is loaded. A row keeps its observation and action, and
gets the discounted rewards of k rows, and the next observation (and next action) of the last of them. k is n, or
less if the episode or the newest row comes first. `dones` becomes 1 if that last step terminated and
1 - gamma^(k-1) if not, so that a learner's r + gamma (1 - d) V(s') bootstraps with gamma^k.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_training.data.transitions import RowLayout
from rl_training.settings import PositiveInt, Settings

# Stored `dones` of the last row of a truncated episode; 1 if it terminated, 0 in all other rows.
TRUNCATED = -1.0


class NStepConfig(Settings):
    """Length of returns."""

    n_step: PositiveInt = 1
    """environment steps whose rewards are summed before the target bootstraps; fewer at the end of an episode"""


def stored_dones(terminated: Any, truncated: Any) -> Any:
    """`dones` as stored for n-step returns, from boolean arrays or tensors `[n]`."""
    return terminated + TRUNCATED * (truncated & ~terminated)


class Drawn(NamedTuple):
    """Rows drawn from a ring of single steps, from which `Column.replayed` computes a column."""

    ring: Tensor
    layout: RowLayout
    first: Tensor  # slots of the rows, [B]
    last: Tensor  # slots of the last rows of their n-step returns, [B]
    newest: Tensor | int  # the number of the newest row
    num_envs: int

    def following(self, start: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Slots `[B, count]` of rows `start [B]` and of the rows after them, and whether their episode has them."""
        offsets = self.num_envs * torch.arange(count, device=start.device)
        return _following(self.ring, start, offsets, self.newest)


def _following(ring: Tensor, start: Tensor, offsets: Tensor, newest: Tensor | int) -> tuple[Tensor, Tensor]:
    slots = (start[:, None] + offsets) % len(ring)  # [B, n]
    later = ((newest - start) % len(ring))[:, None]  # number of rows that are newer
    follows = (ring[:, -1][slots[:, :-1]] == 0) & (offsets[1:] <= later)
    return slots, torch.cat([torch.ones_like(later, dtype=torch.bool), follows], 1).cumprod(1)


class NStepReturns:
    """Computes n-step transitions from a ring of rows, in fixed shapes and without reading from the device.

    `replayed`: the ring has no values of extra columns, which are computed too.
    """

    def __init__(
        self, n: int, gamma: float, num_envs: int, device: torch.device, *, replayed: bool = False
    ) -> None:
        self.num_envs = num_envs
        self._offsets = num_envs * torch.arange(n, device=device)
        self._discounts = torch.tensor([gamma**k for k in range(n)], device=device)
        self._replayed = replayed

    def rows(self, ring: Tensor, index: Tensor, newest: Tensor | int, layout: RowLayout) -> Tensor:
        """The transitions that start at rows `index [B]` of `ring`, whose newest row is `newest`: `[B, width]`."""
        slots, used = _following(ring, index, self._offsets, newest)
        rewards, dones = ring[:, -2:][slots].unbind(-1)
        last = used.sum(1, keepdim=True) - 1
        rows, drawn = ring.index_select(0, index), slots.gather(1, last)[:, 0]
        for name in ("next_obs", "next_actions"):
            if (place := layout.places.get(name)) is not None:
                rows[:, place] = ring[:, place].index_select(0, drawn)
        for column in layout.extras if self._replayed else ():
            assert column.replayed is not None
            values = column.replayed(Drawn(ring, layout, index, drawn, newest, self.num_envs), *column.bound)
            rows[:, layout.places[column.name]] = values.reshape(len(rows), -1)
        # Rows that are not used may be uninitialised.
        rows[:, -2] = torch.where(used == 1, self._discounts * rewards, 0.0).sum(1)
        rows[:, -1] = torch.where(dones.gather(1, last) == 1, 1.0, 1.0 - self._discounts[last])[:, 0]
        return rows
