"""A policy on numpy arrays, five times as fast as torch for a single row, and several policies as one.

numpy computes the products of a stack one after another, so those of a policy do not depend on the others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rl_training.models.batch_norm import EPSILON
from rl_training.models.flash import RMS_EPSILON, Flash
from rl_training.models.mlp import MLP, Activation, Members
from rl_training.models.mlp_flash_sac import FlashActor
from rl_training.models.policies import DeterministicActor, GaussianActor, Normalizer, Policy, TanhGaussianActor

Array = NDArray[Any]
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
# In-place is safe: the layer's output has no other reader. Other activations use torch.
_ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, _ZERO, out=x),
    "tanh": lambda x: np.tanh(x, out=x),
}


def _array(tensor: Any) -> Array:
    """`[in, out]` of a weight and `[1, out]` of a bias; of S policies `[S, in, out]` and `[S, 1, out]`."""
    return tensor.detach().squeeze(-3).numpy()


class ArrayMLP(MLP):
    """The forward pass of an `MLP` on the CPU, without gradients; it shares the layers of `mlp`."""

    def __init__(self, mlp: MLP) -> None:
        nn.Module.__init__(self)
        self.num_members, self.activation = mlp.num_members, mlp.activation
        self.hidden, self.norms, self.head = mlp.hidden, mlp.norms, mlp.head
        self._activate = _ACTIVATIONS[mlp.activation]
        *self._arrays, self._last = [
            (_array(layer.weight), _array(layer.bias)) for layer in (*mlp.hidden, mlp.head)
        ]

    def forward(self, x: Tensor, frozen: bool = False, members: Members = None) -> Tensor:
        return torch.from_numpy(self.values(x.numpy()))

    def values(self, x: Array) -> Array:
        for weight, bias in self._arrays:
            x = x @ weight
            x += bias
            x = self._activate(x)
        weight, bias = self._last
        x = x @ weight
        x += bias
        return x


class ArrayFlash(Flash):
    """The same for a `Flash`."""

    def __init__(self, net: Flash) -> None:
        nn.Module.__init__(self)
        self.num_members, self.activation = net.num_members, net.activation
        self.linears, self.norms, self.norm, self.head = net.linears, net.norms, net.norm, net.head
        self._activate = _ACTIVATIONS[net.activation]
        self._layers = [
            (_array(linear.weight), [_array(t) for t in (norm.weight, norm.bias, norm.mean, norm.variance)])
            for linear, norm in zip(net.linears, net.norms)
        ]
        self._last = [_array(tensor) for tensor in (net.norm.weight, net.head.weight, net.head.bias)]

    def forward(self, x: Tensor, frozen: bool = False, members: Members = None) -> Tensor:
        return torch.from_numpy(self.values(x.numpy()))

    def values(self, x: Array) -> Array:
        (weight, norm), *layers = self._layers
        x = _normal(x, *norm) @ weight
        for i in range(0, len(layers), 2):
            inner = x
            for weight, norm in layers[i : i + 2]:
                inner = self._activate(_normal(inner @ weight, *norm))
            x = x + inner
        gain, weight, bias = self._last
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(RMS_EPSILON)) * gain
        return x @ weight + bias


def _normal(x: Array, gain: Array, shift: Array, mean: Array, variance: Array) -> Array:
    scale = gain / np.sqrt(variance + np.float32(EPSILON))
    return x * scale + (shift - mean * scale)


class ArrayPolicy(Policy):
    """`policy` with tanh and noise in numpy; its actor's network must be an `ArrayMLP` or `ArrayFlash`."""

    def __init__(self, policy: Policy, net: ArrayMLP | ArrayFlash) -> None:
        super().__init__(policy.normalizer, policy.actor)
        self._values = net.values
        self._see = _array_map(policy.normalizer)
        bounds = getattr(policy.actor, "log_std_bounds", None)
        self._bounds = None if bounds is None else np.array(bounds, dtype=np.float32)

    @property
    def stochastic(self) -> bool:
        return self._bounds is not None

    def _mean(self, values: Array) -> Array:
        return values if self._bounds is None else values[..., : values.shape[-1] // 2]

    def mode(self, obs: Tensor) -> Tensor:
        return torch.from_numpy(np.tanh(self._mean(self._values(self._see(obs.numpy())))))

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        assert self._bounds is not None, "a deterministic policy has no samples"
        values = self._values(self._see(obs.numpy()))
        mean, (low, high) = self._mean(values), self._bounds
        std = values[..., mean.shape[-1] :]
        if isinstance(self.actor, FlashActor):
            std = low + np.float32(0.5) * (high - low) * (_ONE + np.tanh(std))
        else:
            std = np.minimum(np.maximum(std, low), high)
        np.exp(std, out=std)
        std *= noise.numpy()
        if isinstance(self.actor, GaussianActor):
            std += np.tanh(mean)
            return torch.from_numpy(np.minimum(np.maximum(std, -_ONE, out=std), _ONE, out=std))
        std += mean
        return torch.from_numpy(np.tanh(std, out=std))


def _array_map(normalizer: Normalizer) -> Callable[[Array], Array]:
    """`normalizer` on arrays that share the memory of its tensors."""
    if not normalizer.enabled:
        return lambda obs: obs
    shift, scale = normalizer.shift.numpy(), normalizer.scale.numpy()
    if normalizer.limit is None:
        return lambda obs: (obs - shift) * scale
    limit = normalizer.limit.numpy()
    return lambda obs: np.minimum(np.maximum((obs - shift) * scale, -limit), limit)


def copy_bound_to(policy: Policy, flat: Tensor) -> Policy:
    """A copy of `policy` on the CPU whose parameters and buffers are consecutive slices of `flat [N]`.

    With `flat [S, N]` they are those of S policies, which take observations `[S, n, O]`.
    """
    bound, members, offset = copy.deepcopy(policy).to("cpu").requires_grad_(False), flat.shape[:-1], 0
    for tensor in (*bound.parameters(), *bound.buffers()):
        between = [1] * (2 - tensor.dim()) if members else []  # the axis n, and that of a scalar
        end = offset + tensor.numel()
        tensor.data, offset = flat[..., offset:end].view([*members, *between, *tensor.shape]), end
    return bound


def fits_arrays(policy: Policy) -> bool:
    """Whether the network of `policy` can be an `ArrayMLP` or `ArrayFlash`."""
    net = policy.actor.net
    known = isinstance(net, Flash) or (isinstance(net, MLP) and not len(net.norms))
    return known and net.activation in _ACTIVATIONS  # type: ignore[union-attr, operator]


def on_arrays(policy: Policy) -> Policy:
    """`policy` on numpy arrays as far as possible; the arrays share the memory of its tensors."""
    if not fits_arrays(policy):
        return policy
    net = policy.actor.net
    policy.actor.net = own = ArrayFlash(net) if isinstance(net, Flash) else ArrayMLP(net)  # type: ignore[arg-type]
    return ArrayPolicy(policy, own) if _is_known(policy.actor) else policy


class JointPolicy(Policy):
    """Several policies of one shape as one, for which `fits_arrays` is true: one product per layer for all.

    Rows of observations, noise and actions are `[S · n, …]`, those of one policy after those of another.
    """

    def __init__(self, policy: Policy, flat: Tensor, rows: Sequence[int]) -> None:
        """`policy`: one of them. Their tensors are the `rows` of `flat [M, N]`, as in `copy_bound_to`."""
        stacked = on_arrays(copy_bound_to(policy, flat))
        super().__init__(stacked.normalizer, stacked.actor)
        self._stacked, self._rows, self._size = stacked, list(rows), len(flat)
        self._complete = self._rows == list(range(self._size))

    def _split(self, rows: Tensor) -> Tensor:
        """`[S · n, F]` as `[M, n, F]`, with zeros for policies that are not among the rows."""
        own = rows.view(len(self._rows), -1, rows.shape[-1])
        if self._complete:
            return own
        found = own.new_zeros((self._size, *own.shape[1:]))
        found[self._rows] = own
        return found

    def _join(self, found: Tensor) -> Tensor:
        return (found if self._complete else found[self._rows]).flatten(0, 1)

    def scores(self, obs: Tensor) -> Tensor:
        return self._join(self._stacked.scores(self._split(obs)))

    def mode(self, obs: Tensor) -> Tensor:
        return self._join(self._stacked.mode(self._split(obs)))

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        return self._join(self._stacked.sample(self._split(obs), self._split(noise)))


def _is_known(actor: nn.Module) -> bool:
    """Whether `ArrayPolicy` implements this actor; one std for all states is not implemented."""
    return type(actor) in (TanhGaussianActor, DeterministicActor, FlashActor) or (
        type(actor) is GaussianActor and actor.log_std is None
    )
