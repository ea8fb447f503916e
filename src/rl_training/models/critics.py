"""State-action value functions as ensembles: `[N, B]` values, or `[N, B, M]` quantiles."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_training.models.mlp import EnsembleMLP, Init


class Critics(nn.Module):
    """N networks Q_i(s, a). With `outputs` > 1 each returns that many quantiles."""

    def __init__(
        self,
        num_critics: int,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        *,
        outputs: int = 1,
        layer_norm: bool = False,
        init: Init = "torch",
    ) -> None:
        super().__init__()
        self.num_critics = num_critics
        self.action_dim = action_dim
        self.net = EnsembleMLP(
            num_critics, obs_dim + action_dim, hidden_sizes, outputs, layer_norm=layer_norm, init=init
        )

    def forward(
        self, obs: Tensor, actions: Tensor, frozen: bool = False, members: int | None = None
    ) -> Tensor:
        """`[N, B]` values (`[N, B, M]` quantiles), of the first `members` if given.

        `frozen` keeps gradients out of the weights.
        """
        out: Tensor = self.net(torch.cat([obs, actions], dim=-1), frozen, members)
        return out.squeeze(-1) if out.shape[-1] == 1 else out

    def with_slopes(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Values `[N, B]` and their slopes in the action, `[N, B, A]`."""
        q, slopes = self.net.with_slopes(torch.cat([obs, actions], dim=-1), self.action_dim)
        return q.squeeze(-1), slopes
