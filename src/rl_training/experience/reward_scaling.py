"""`RunningReturns`: `normalize_rewards`, which divides rewards by a running measure of the discounted return.

In each environment G ← gamma·G + r, from 0 at the start of an episode. A reward is divided by
max(sqrt(var G + 1e-8), max |G| / 5), as in FlashSAC, when it is drawn from the replay buffer, which stores raw
rewards.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rl_training.experience.moments import RunningMoments

# Scaled returns are at most about this large.
_LARGEST_RETURN = 5.0


class RunningReturns:
    """The discounted returns of all environments, and their statistics so far; all tensors change in place."""

    def __init__(self, num_envs: int, gamma: float, device: torch.device) -> None:
        self._gamma, self._moments = gamma, RunningMoments(1, device)
        self._current = torch.zeros(num_envs, dtype=torch.float64, device=device)
        self._largest = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, rewards: Tensor, ended: Tensor) -> None:
        """Add one step of every environment; `ended [N]` marks the last step of an episode."""
        self._current.mul_(self._gamma).add_(rewards)
        self._moments.add(self._current[:, None])
        self._largest.copy_(torch.maximum(self._largest, self._current.abs().max()))
        self._current.masked_fill_(ended, 0.0)

    @property
    def scale(self) -> Tensor:
        """The factor of rewards, 0-d."""
        spread = (self._moments.std[0] ** 2 + 1e-8).sqrt()
        return 1.0 / torch.maximum(spread, self._largest / _LARGEST_RETURN)

    def tensors(self) -> dict[str, Tensor]:
        """The state, to be saved."""
        moments = self._moments
        return {
            "scaling.current": self._current,
            "scaling.largest": self._largest,
            "scaling.count": moments.count,
            "scaling.mean": moments.mean,
            "scaling.squares": moments.squares,
        }

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` returned."""
        for name, tensor in self.tensors().items():
            tensor.copy_(saved[name])
