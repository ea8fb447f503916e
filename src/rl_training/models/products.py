"""Batched matrix products; large ones in float32 by the library that is fastest on this CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_training.processor import BLAS, onednn_product, product_library

# Multiplications of one network per thread. Below this number, oneDNN's longer calls take more time than it saves
# (measured with 1 and 2 threads on an AMD Zen 5).
_LEAST = 1 << 22


def _computed(x: Tensor, weight: Tensor) -> Tensor:
    products = [onednn_product(*factors) for factors in zip(x, weight.mT, strict=True)]
    if len(products) > 1:
        return torch.stack(products)
    # Not a view, because activations change it in place, which autograd forbids for a view of a Function.
    return torch.ops.aten._unsafe_view(products[0], [1, *products[0].shape])


class _Product(torch.autograd.Function):
    """`x [N, B, in]` times `weight [N, in, out]` by oneDNN. The gradients are products of the same size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _computed(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x, of_weight = ctx.needs_input_grad
        return _product(gradient, weight.mT) if of_x else None, _product(x.mT, gradient) if of_weight else None


class _StackedProduct(_Product):
    """The same for the members of a population, whose networks are more networks. A call takes 20 µs longer."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:  # type: ignore[override]
        return _computed(x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *factors: Tensor) -> tuple[Tensor, int]:
        size = info.batch_size
        x, weight = (
            factor.expand(size, *factor.shape) if dim is None else factor.movedim(dim, 0)
            for factor, dim in zip(factors, in_dims)
        )
        return _product(x.flatten(0, 1), weight.flatten(0, 1)).reshape(*x.shape[:-1], -1), 0


def _product(x: Tensor, weight: Tensor) -> Tensor:
    stacked = torch._C._are_functorch_transforms_active()
    if not stacked and not (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)):
        return _computed(x, weight)
    found: Tensor = (_StackedProduct if stacked else _Product).apply(x, weight)  # type: ignore[no-untyped-call]
    return found


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """`x [N, B, in]` times `weight [N, in, out]`."""
    usual = x.is_cuda or x.dtype != torch.float32 or torch.compiler.is_compiling() or product_library() == BLAS
    if usual or x.shape[-2] * weight.shape[-2] * weight.shape[-1] < _LEAST * torch.get_num_threads():
        return torch.bmm(x, weight)
    return _product(x, weight)
