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

from rl_training.models.mlp import MLP, Activation, Members
from rl_training.models.policies import DeterministicActor, GaussianActor, Normalizer, Policy, TanhGaussianActor

Array = NDArray[Any]
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
# In-place is safe: the layer's output has no other reader. Other activations use torch.
_ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, _ZERO, out=x),
    "tanh": lambda x: np.tanh(x, out=x),
}


class ArrayMLP(MLP):
    """The forward pass of an `MLP` on the CPU, without gradients; it shares the layers of `mlp`."""

    def __init__(self, mlp: MLP) -> None:
        nn.Module.__init__(self)
        self.num_members, self.activation = mlp.num_members, mlp.activation
        self.hidden, self.norms, self.head = mlp.hidden, mlp.norms, mlp.head
        self._activate = _ACTIVATIONS[mlp.activation]
        *self._arrays, self._last = [
            # [in, out] and [1, out]; of S policies [S, in, out] and [S, 1, out]
            (layer.weight.detach().squeeze(-3).numpy(), layer.bias.detach().squeeze(-3).numpy())
            for layer in (*mlp.hidden, mlp.head)
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


class ArrayPolicy(Policy):
    """`policy` with tanh and noise in numpy; its actor's network must be an `ArrayMLP`."""

    def __init__(self, policy: Policy, net: ArrayMLP) -> None:
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
        std = np.maximum(values[..., mean.shape[-1] :], low)
        np.exp(np.minimum(std, high, out=std), out=std)
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
    """Whether the network of `policy` can be an `ArrayMLP`."""
    net = policy.actor.net
    return isinstance(net, MLP) and net.activation in _ACTIVATIONS and not len(net.norms)


def on_arrays(policy: Policy) -> Policy:
    """`policy` on numpy arrays as far as possible; the arrays share the memory of its tensors."""
    if not fits_arrays(policy):
        return policy
    policy.actor.net = own = ArrayMLP(policy.actor.net)  # type: ignore[arg-type]
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
    return type(actor) in (TanhGaussianActor, DeterministicActor) or (
        type(actor) is GaussianActor and actor.log_std is None
    )
