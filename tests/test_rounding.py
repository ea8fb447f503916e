"""Rounding: which operations return the same bits in a stack of learners as alone, under every instruction set.

torch chooses its CPU kernels by `ATEN_CPU_CAPABILITY` when it is imported: each set needs a new interpreter.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.rounding import activation, differing


def test_operations_of_losses_do_not_depend_on_the_size_of_a_tensor() -> None:
    """Products aside: how a library rounds these for one shape and for another is up to it."""
    assert differing() == []


VECTORS = ("AVX2", "AVX512")


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() not in VECTORS, reason="needs a vector instruction set")
def test_the_sweep_finds_an_operation_that_does() -> None:
    """With vectors the last elements of a tensor are computed one by one, here by another formula."""
    found = {"softplus": lambda x: F.softplus(-2.0 * x)} | {name: activation(name) for name in ("elu", "silu")}
    assert differing(found) == sorted(found)
