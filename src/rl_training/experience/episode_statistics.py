"""`EpisodeStatistics`: returns and lengths of episodes as tensors, without reads by the host."""

from __future__ import annotations

import torch
from torch import Tensor


class EpisodeStatistics:
    """Running totals of N simulations, and the last `window` episodes that have ended; all change in place."""

    def __init__(self, num_envs: int, window: int, device: torch.device) -> None:
        self.window = window
        self.totals = torch.zeros(num_envs, dtype=torch.float64, device=device)
        self.steps = torch.zeros(num_envs, dtype=torch.int64, device=device)
        # The last entry receives everything that is not recorded.
        self.returns = torch.zeros(window + 1, dtype=torch.float64, device=device)
        self.lengths = torch.zeros(window + 1, dtype=torch.int64, device=device)
        self.ended = torch.zeros((), dtype=torch.int64, device=device)

    def add(self, rewards: Tensor, ended: Tensor) -> None:
        """Add one step of every simulation; `ended [N]` marks the last step of an episode."""
        self.totals += rewards
        self.steps += 1
        rank = ended.cumsum(0)  # 1, 2, … for the episodes that end here
        count = rank[-1]
        recorded = ended & (rank > count - self.window)  # each of the newest has a slot of its own
        slots = torch.where(recorded, (self.ended + rank - 1) % self.window, self.window)
        for ring, values in ((self.returns, self.totals), (self.lengths, self.steps)):
            ring.index_copy_(0, slots, values)
            ring[-1:].zero_()  # the order of writes to one slot is not defined
        self.ended += count
        self.totals.masked_fill_(ended, 0.0)
        self.steps.masked_fill_(ended, 0)

    def means(self) -> dict[str, float]:
        """Means over the last episodes; empty if none has ended. Reads from the device."""
        number = min(int(self.ended), self.window)
        if number == 0:
            return {}
        return {
            "rollout_return_mean": float(self.returns[:number].mean()),
            "rollout_length_mean": float(self.lengths[:number].double().mean()),
        }

    def tensors(self) -> dict[str, Tensor]:
        """The state, to be saved and to be restored in place."""
        names = ("totals", "steps", "returns", "lengths", "ended")
        return {name: getattr(self, name) for name in names}
