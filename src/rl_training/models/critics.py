"""State-action value functions as ensembles: `[N, B]` values, or `[N, B, M]` quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from rl_training.models.mlp import EnsembleMLP, Members
from rl_training.models.networks import NetworkOptions, build_ensemble
from rl_training.models.policies import at_actions

_ACTIONS_IN_CACHE = 4


class Critics(nn.Module):
    """N networks Q_i(s, a); if `quantiles` is given, each returns that many quantiles."""

    def __init__(
        self,
        num_critics: int,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        *,
        quantiles: int | None = None,
        **options: Unpack[NetworkOptions],
    ) -> None:
        super().__init__()
        self.num_critics = num_critics
        self.action_dim = action_dim
        self.quantiles = quantiles
        self.net = build_ensemble(num_critics, obs_dim + action_dim, hidden_sizes, quantiles or 1, **options)

    def forward(self, obs: Tensor, actions: Tensor, frozen: bool = False, members: Members = None) -> Tensor:
        """`[N, B]` values (`[N, B, M]` quantiles) of all `members`, the first few, or those with these indices.

        `frozen` detaches the weights.
        """
        out = self.net(torch.cat([obs, actions], dim=-1), frozen, members)
        return out.squeeze(-1) if self.quantiles is None else out

    def by_batch(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The outputs of networks with batch normalisation in train mode, and new values of their `statistics`."""
        out, statistics = self.net.by_batch(torch.cat([obs, actions], dim=-1))  # type: ignore[operator]
        return out.squeeze(-1) if self.quantiles is None else out, statistics

    def over_actions(self, obs: Tensor, actions: Tensor, members: Members = None) -> Tensor:
        """K actions per state, `[K, B, A]`: `[N, K, B]`; `members` as in `forward`.

        A GPU computes all of them in one product per layer. On a CPU a few at a time are faster, because their
        activations stay in the cache.
        """
        parts = [actions] if actions.is_cuda else torch.split(actions, _ACTIONS_IN_CACHE)
        outputs = []
        for part in parts:
            rows = torch.cat([obs.expand(len(part), -1, -1), part], dim=-1)  # [k, B, O + A]
            out = self.net(rows.flatten(0, 1), False, members)
            outputs.append(out.view(len(out), *rows.shape[:2]))
        return torch.cat(outputs, dim=1)

    def with_action_gradients(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Values `[N, B]` and their action gradients dQ/da, `[N, B, A]`; plain ReLU critics only."""
        assert isinstance(self.net, EnsembleMLP), "the learner refuses other networks"
        q, slopes = self.net.with_action_gradients(torch.cat([obs, actions], dim=-1), self.action_dim)
        return q.squeeze(-1), slopes


class ChoiceCritics(nn.Module):
    """N networks Q_i(s, ·) with one output per discrete action; called like `Critics`, with the action taken."""

    action_dim = 1  # columns of a discrete action

    def __init__(
        self,
        num_critics: int,
        obs_dim: int,
        num_actions: int,
        hidden_sizes: Sequence[int],
        **options: Unpack[NetworkOptions],
    ) -> None:
        super().__init__()
        self.num_critics = num_critics
        self.net = build_ensemble(num_critics, obs_dim, hidden_sizes, num_actions, **options)

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """`[N, B]` of the actions `[B]`."""
        return at_actions(self.net(obs), actions)
