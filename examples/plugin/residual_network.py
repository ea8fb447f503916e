"""A network of your own: residual blocks with LayerNorm. `steps` lists its layers for the export of policies.

rl-training train --algo sac --env Pendulum-v1 --steps 5000 --allow-import \
    --set network=residual_network:Residual --set network_kwargs.blocks=2 --set hidden_sizes=[64]
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(torch.relu(self.inner(self.norm(x))))


class Residual(nn.Module):
    def __init__(self, in_features: int, out_features: int, hidden_sizes: list[int], *, blocks: int = 1) -> None:
        super().__init__()
        self.embed = nn.Linear(in_features, hidden_sizes[0])
        self.blocks = nn.Sequential(*(Block(hidden_sizes[0]) for _ in range(blocks)))
        self.head = nn.Linear(hidden_sizes[0], out_features)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(x)))

    def steps(self) -> list[Any]:
        blocks = [("keep", one.norm, one.inner, "relu", one.outer, "add_kept") for one in self.blocks]
        return [self.embed, *(layer for block in blocks for layer in block), self.head]
