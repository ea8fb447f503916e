"""Settings and base classes of networks, and multi-layer perceptrons: one (`MLP`) or an ensemble (`EnsembleMLP`).

An ensemble is an axis, not a list: weights are `[N, in, out]`, activations `[N, B, features]`.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from pydantic import AfterValidator, Field, ValidationInfo, field_validator
from torch import Tensor, nn

from rl_training.errors import ConfigError
from rl_training.importing import find_permitted
from rl_training.models.products import multiply
from rl_training.models.steps import Step
from rl_training.settings import OnlyWith, PositiveFloat, PositiveInt, Settings, Sizes

Select = Callable[[Tensor], Tensor]
Init = Literal["torch", "xavier", "orthogonal", "unit_orthogonal", "he"]
NETWORK = "algo_kwargs.network"  # the setting, in messages
PACKAGED_KINDS = ("mlp", "simba")
RESIDUAL_BLOCKS = 2
Activation = Literal["relu", "leaky_relu", "elu", "gelu", "gelu_tanh", "silu", "tanh"]
_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,  # in-place is safe: the layer's output has no other reader
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
}
# All members (None), the first few, or those in an index tensor.
Members = int | Tensor | None
# Measured on an H200 with 6 and 12 outputs, 256 inputs and 256 rows; for 25 outputs the library is faster. With
# 1,024 rows the gradient of such a sum takes 58 µs, several times as long as a hidden layer's product.
_FEW_OUTPUTS, _FEW_ROWS, _LITTLE_WORK = 16, 512, 4_000_000
# Layers with fewer inputs or outputs, which are most first layers and heads, do not use bfloat16.
_WIDE = 128
# Standard deviation of a standard normal variable that is truncated to [-2, 2].
_TRUNCATED_STD = 0.87962566103423978
Network = TypeVar("Network", bound=nn.Module)


def _known_kind(value: str) -> str:
    if value not in PACKAGED_KINDS and not all(value.partition(":")):
        raise ValueError(f"must be {' or '.join(map(repr, PACKAGED_KINDS))}, got {value!r}")
    return value


def find_factory(name: str, *, allow_import: bool = False) -> Callable[..., nn.Module]:
    """The user's `module:factory` of networks; `allow_import` permits to import it."""
    again = "Algorithm(env, network=…) or rl_training.load(path, network=…)"
    found: Callable[..., nn.Module] = find_permitted(name, NETWORK, allow_import=allow_import, again=again)
    if not callable(found):
        raise ConfigError(f"{NETWORK}: {name} is not a function or class", key=NETWORK)
    return found


class NetworkShape(Settings):
    """Network settings of every model."""

    hidden_sizes: Sizes = (256, 256)
    """sizes of the hidden layers of every network"""
    critic_hidden_sizes: Sizes | None = None
    """sizes of the critics' hidden layers; null means `hidden_sizes`"""
    activation: Activation = "relu"
    """activation function after each hidden layer of every network"""
    layer_norm_epsilon: Annotated[PositiveFloat, OnlyWith("layer_norm", True), OnlyWith("network", "simba")] = 1e-6
    """epsilon of LayerNorm; the default of flax and RLPD (version 0.1 used PyTorch's 1e-5)"""
    network: Annotated[str, AfterValidator(_known_kind)] = "mlp"
    """every network: `mlp`, `simba` (residual blocks of the width in `hidden_sizes`) or your `module:factory`"""
    network_kwargs: dict[str, Any] = Field(default_factory=dict)
    """keyword arguments of your own network"""
    residual_blocks: Annotated[PositiveInt, OnlyWith("network", "simba")] = RESIDUAL_BLOCKS
    """residual blocks of every `simba` network and of FlashSAC; the others have none"""

    @field_validator("network_kwargs")
    @classmethod
    def _arguments_are_used(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if value and (kind := info.data.get("network")) in PACKAGED_KINDS:
            raise ValueError(f"must be empty if network is {kind!r}; only your own takes them")
        return value

    def import_own(self, allow_import: bool) -> None:
        if self.network not in PACKAGED_KINDS:
            find_factory(self.network, allow_import=allow_import)


class NetworkConfig(NetworkShape):
    """Network settings with LayerNorm, for learners whose `Config` has no `layer_norm`."""

    layer_norm: bool = False
    """LayerNorm after each hidden layer of the critics (IQL: also of the value network; DQN: of its network)"""


class ThreeLayerConfig(NetworkConfig):
    """Three hidden layers, as the authors of CQL and EDAC use."""

    hidden_sizes: Sizes = (256, 256, 256)
    """sizes of the hidden layers of every network"""


def _init_matrix(weight: Tensor, bias: Tensor, fan_in: int, init: Init) -> None:
    """Initialise a matrix `[out, in]` and its bias.

    `orthogonal` uses gain sqrt(2) for every activation, `unit_orthogonal` gain 1. `he` is flax's `he_normal`:
    normal with variance 2 / fan_in, truncated to two standard deviations before scaling.
    """
    if init == "torch":
        bound = 1.0 / math.sqrt(fan_in)
        nn.init.uniform_(weight, -bound, bound)
        nn.init.uniform_(bias, -bound, bound)
        return
    if init == "xavier":
        nn.init.xavier_uniform_(weight)
    elif init == "he":
        std = math.sqrt(2.0 / fan_in) / _TRUNCATED_STD
        nn.init.trunc_normal_(weight, std=std, a=-2.0 * std, b=2.0 * std)
    elif init == "unit_orthogonal":
        nn.init.orthogonal_(weight)
    else:
        nn.init.orthogonal_(weight, math.sqrt(2.0))
    nn.init.zeros_(bias)


def _better_as_sum(x: Tensor, weight: Tensor) -> bool:
    """Whether a compiled sum is faster than the library's product: on a GPU, for few outputs and little work.

    The library is slow for such a product, while the sum fuses with the activation before it. The gradient of the
    weights is a sum over rows, of which there must be few too.
    """
    (members, inner, outer), rows = weight.shape, x.shape[-2]
    few = outer <= _FEW_OUTPUTS and rows <= _FEW_ROWS
    return x.is_cuda and few and members * rows * inner * outer <= _LITTLE_WORK


class HalfPrecision:
    """Whether products of wide layers use bfloat16, and where; one choice per process, as for TF32."""

    enabled = False
    devices: tuple[str, ...] = ("cuda",)


def rounded(x: Tensor, weight: Tensor) -> Tensor:
    """`x [N, B, in]` as a factor of `product`: bfloat16 if that of `weight [N, in, out]` uses it.

    Rounding before a ReLU equals rounding after it, and the gradient of the ReLU then reads half as many bytes.
    """
    half = HalfPrecision.enabled and min(weight.shape[-2:]) >= _WIDE and x.device.type in HalfPrecision.devices
    return x.bfloat16() if half and x.dtype == torch.float32 else x


def product(x: Tensor, weight: Tensor) -> Tensor:
    """`x [N, B, in]` times `weight [N, in, out]`; bfloat16 products are summed in float32 and rounded."""
    x = rounded(x, weight)
    return torch.bmm(x, weight.bfloat16()).float() if x.dtype == torch.bfloat16 else multiply(x, weight)


class EnsembleLinear(nn.Module):
    """N independent linear layers as one batched product: `[N, B, in] -> [N, B, out]`."""

    def __init__(self, num_members: int, in_features: int, out_features: int, *, init: Init = "torch") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_members, in_features, out_features))
        self.bias = nn.Parameter(torch.empty(num_members, 1, out_features))
        for weight, bias in zip(self.weight.data, self.bias.data):
            _init_matrix(weight.T, bias, in_features, init)

    def forward(self, x: Tensor, select: Select) -> Tensor:
        weight, bias = select(self.weight), select(self.bias)
        if weight.shape[-1] == 1 or (torch.compiler.is_compiling() and _better_as_sum(x, weight)):
            # A product with one column is a weighted sum, which fuses with the activation before it.
            return (x.unsqueeze(-1) * weight.unsqueeze(1)).sum(-2) + bias
        # Not baddbmm: it copies the bias first, while a separate sum fuses with the activation after it.
        return product(x, weight).add_(bias)

    def step(self) -> Step:
        """The operation of the first member."""
        return Step.of("affine", weight=self.weight[0], bias=self.bias[0, 0])


class EnsembleLayerNorm(nn.Module):
    """Layer normalisation with a gain and a shift per member."""

    def __init__(self, num_members: int, features: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(num_members, 1, features))
        self.bias = nn.Parameter(torch.zeros(num_members, 1, features))

    def forward(self, x: Tensor, select: Select) -> Tensor:
        return torch.addcmul(
            select(self.bias), F.layer_norm(x, x.shape[-1:], eps=self.epsilon), select(self.weight)
        )

    def step(self) -> Step:
        """The operation of the first member."""
        return Step.of("layer_norm", weight=self.weight[0, 0], bias=self.bias[0, 0], epsilon=self.epsilon)


def selection(frozen: bool, members: Members) -> Select:
    """A function that selects members of a parameter, detached if `frozen`."""

    def select(parameter: Tensor) -> Tensor:
        if isinstance(members, Tensor):
            parameter = parameter.index_select(0, members)
        elif members is not None:
            parameter = parameter[:members]
        return parameter.detach() if frozen else parameter

    return select


class EnsembleNetwork(nn.Module):
    """N networks of one shape, computed together: the `features` of a subclass, and a linear `head`.

    `frozen` detaches the weights: gradients flow to the input only, and no backward pass computes gradients of the
    weights. `members` selects the first few networks, or those with these indices.
    """

    head: EnsembleLinear

    def __init__(self, num_members: int, activation: Activation) -> None:
        super().__init__()
        self.num_members = num_members
        self.activation: Activation = activation

    @property
    def activate(self) -> Callable[[Tensor], Tensor]:
        """The activation function; it may work in place."""
        return _ACTIVATIONS[self.activation]

    @property
    def out_features(self) -> int:
        return self.head.weight.shape[-1]

    def count(self, members: Members) -> int:
        """The number of networks that `members` selects."""
        return len(members) if isinstance(members, Tensor) else members or self.num_members

    def forward(self, x: Tensor, frozen: bool = False, members: Members = None) -> Tensor:
        """`x [B, in]`, the input of every member: `[N, B, out]`."""
        select = selection(frozen, members)
        return self.head(self.features(x.expand(self.count(members), -1, -1), select), select)

    def features(self, x: Tensor, select: Select) -> Tensor:
        """The input of the head, from `x [N, B, in]`."""
        raise NotImplementedError

    def feature_steps(self) -> list[Step]:
        """The operations of `features` of the first member."""
        raise NotImplementedError


class SingleNetwork(EnsembleNetwork):
    """Base of a single network: an ensemble of one without its axis, `[B, in] -> [B, out]`.

    The second base of a subclass is the ensemble, whose `options` it takes.
    """

    def __init__(self, in_features: int, hidden_sizes: Sequence[int], out_features: int, **options: Any) -> None:
        super().__init__(1, in_features, hidden_sizes, out_features, **options)  # type: ignore[call-arg, arg-type]

    def forward(self, x: Tensor, frozen: bool = False, members: Members = None) -> Tensor:
        return super().forward(x, frozen, members).squeeze(0)

    def steps(self, outputs: int | None = None) -> list[Step]:
        """The operations of this network, restricted to the first `outputs` if given."""
        return [*self.feature_steps(), self.head.step().first(outputs)]


class EnsembleMLP(EnsembleNetwork):
    """N networks `in -> hidden (LayerNorm?) activation … -> out`; `norm_after_activation` exchanges the two."""

    def __init__(
        self,
        num_members: int,
        in_features: int,
        hidden_sizes: Sequence[int],
        out_features: int,
        *,
        layer_norm: bool = False,
        layer_norm_epsilon: float = 1e-6,
        norm_after_activation: bool = False,
        activation: Activation = "relu",
        init: Init = "torch",
    ) -> None:
        super().__init__(num_members, activation)
        self.norm_after_activation = norm_after_activation
        sizes = [in_features, *hidden_sizes]
        self.hidden = nn.ModuleList(
            EnsembleLinear(num_members, a, b, init=init) for a, b in itertools.pairwise(sizes)
        )
        self.norms = nn.ModuleList(
            EnsembleLayerNorm(num_members, h, layer_norm_epsilon) for h in hidden_sizes if layer_norm
        )
        self.head = EnsembleLinear(num_members, sizes[-1], out_features, init=init)

    def _layers(self) -> Iterator[tuple[nn.Module, nn.Module | None]]:
        norms = list(self.norms) if len(self.norms) else [None] * len(self.hidden)
        return zip(self.hidden, norms)

    def features(self, x: Tensor, select: Select) -> Tensor:
        for linear, norm in self._layers():
            x = linear(x, select)
            if norm is None:
                x = self.activate(x)
            else:
                x = norm(self.activate(x), select) if self.norm_after_activation else self.activate(norm(x, select))
        return x

    def feature_steps(self) -> list[Step]:
        found: list[Step] = []
        for linear, norm in self._layers():
            inner = [Step(self.activation)]
            if norm is not None:
                inner.insert(len(inner) if self.norm_after_activation else 0, norm.step())  # type: ignore[operator]
            found += [linear.step(), *inner]  # type: ignore[operator]
        return found

    def with_action_gradients(self, x: Tensor, columns: int) -> tuple[Tensor, Tensor]:
        """Outputs `[N, B, 1]` and their gradients with respect to the last `columns` inputs, `[N, B, columns]`.

        The gradient of a ReLU network is a chain of products with the masks of its forward pass. It is computed in
        forward operations, so that differentiating it needs no double backward.
        """
        if len(self.norms) or self.activation != "relu" or self.head.weight.shape[-1] != 1:
            raise ValueError("action gradients are defined for plain ReLU critics with one output (no LayerNorm)")
        select = selection(frozen=False, members=None)
        x = x.expand(self.num_members, -1, -1)
        masks: list[Tensor] = []
        for linear, _ in self._layers():
            x = linear(x, select)
            masks.append((x > 0).to(x.dtype))
            x = F.relu(x, inplace=True)
        slope = self.head.weight.transpose(1, 2) * masks[-1]  # [N, B, H]
        for linear, mask in zip(reversed(list(self.hidden)[1:]), reversed(masks[:-1])):
            slope = multiply(slope, linear.weight.mT) * mask  # type: ignore[arg-type]
        first = self.hidden[0].weight[:, -columns:, :]  # type: ignore[index]
        return self.head(x, select), torch.bmm(slope, first.transpose(1, 2))


class MLP(SingleNetwork, EnsembleMLP):
    """One network `in -> hidden … -> out`."""


def frozen_copy(module: Network) -> Network:
    """A target network: a deep copy without gradients."""
    return copy.deepcopy(module).requires_grad_(False)
