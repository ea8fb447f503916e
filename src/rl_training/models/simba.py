"""SimBa: residual networks with LayerNorm (Lee et al., ICLR 2025), a single one (`SimBa`) or an ensemble.

    embed: Linear(in, h)  ->  each block: x + Linear(4h, h)(activation(Linear(h, 4h)(LN(x))))  ->  LN  ->  head

As in the authors' code, `embed` and `head` have orthogonal weights of gain 1, the blocks He-normal ones, all biases
are 0, and epsilon is 1e-6. Mean and log std of an actor are one orthogonal matrix here, and two there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from rl_training.errors import ConfigError
from rl_training.models.mlp import (
    RESIDUAL_BLOCKS,
    Activation,
    EnsembleLayerNorm,
    EnsembleLinear,
    EnsembleNetwork,
    Select,
    SingleNetwork,
)
from rl_training.models.steps import Step

EXPANSION = 4  # inner width of a block, in widths of the network


def one_width(hidden_sizes: Sequence[int], kind: str) -> int:
    """The width of a residual network; raises if `hidden_sizes` differ."""
    if len(set(hidden_sizes)) != 1:
        raise ConfigError(
            f"hidden_sizes or critic_hidden_sizes: a {kind!r} network has one width, got {list(hidden_sizes)}; "
            "use one size, and residual_blocks for the depth"
        )
    return hidden_sizes[0]


class ResidualBlock(nn.Module):
    """`x + contract(activation(expand(norm(x))))`, per member."""

    def __init__(self, num_members: int, width: int, epsilon: float) -> None:
        super().__init__()
        self.norm = EnsembleLayerNorm(num_members, width, epsilon)
        self.expand = EnsembleLinear(num_members, width, EXPANSION * width, init="he")
        self.contract = EnsembleLinear(num_members, EXPANSION * width, width, init="he")

    def forward(self, x: Tensor, select: Select, activate: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.contract(activate(self.expand(self.norm(x, select), select)), select)

    def steps(self, activation: Activation) -> list[Step]:
        """The operations of the first member."""
        inner = [self.norm.step(), self.expand.step(), Step(activation), self.contract.step()]
        return [Step("keep"), *inner, Step("add_kept")]


class EnsembleSimBa(EnsembleNetwork):
    """N SimBa networks of one width, the one size in `hidden_sizes`; equal sizes count as one."""

    def __init__(
        self,
        num_members: int,
        in_features: int,
        hidden_sizes: Sequence[int],
        out_features: int,
        *,
        residual_blocks: int = RESIDUAL_BLOCKS,
        layer_norm: bool = False,
        layer_norm_epsilon: float = 1e-6,
        activation: Activation = "relu",
    ) -> None:
        if layer_norm:
            raise ConfigError("layer_norm must be false if network is 'simba', which has LayerNorm of its own")
        width = one_width(hidden_sizes, "simba")
        super().__init__(num_members, activation)
        self.embed = EnsembleLinear(num_members, in_features, width, init="unit_orthogonal")
        self.blocks = nn.ModuleList(
            ResidualBlock(num_members, width, layer_norm_epsilon) for _ in range(residual_blocks)
        )
        self.norm = EnsembleLayerNorm(num_members, width, layer_norm_epsilon)
        self.head = EnsembleLinear(num_members, width, out_features, init="unit_orthogonal")

    def features(self, x: Tensor, select: Select) -> Tensor:
        x = self.embed(x, select)
        for block in self.blocks:
            x = block(x, select, self.activate)
        return self.norm(x, select)

    def feature_steps(self) -> list[Step]:
        blocks = [step for block in self.blocks for step in block.steps(self.activation)]  # type: ignore[operator]
        return [self.embed.step(), *blocks, self.norm.step()]


class SimBa(SingleNetwork, EnsembleSimBa):
    """One SimBa network."""
