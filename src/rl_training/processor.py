"""The CPU: its maker, and the library that computes large float32 matrix products on it.

torch's x86 builds use MKL, which has no AVX-512 kernels for AMD processors. oneDNN, which torch also contains, has
them and takes half as long. The two round differently, so a run records which of them it uses.
"""

from __future__ import annotations

import contextlib
import functools
import platform
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

Library = Literal["blas", "onednn"]
BLAS: Library = "blas"  # torch's choice


def maker() -> str:
    """The maker of the processor by its own name, such as `AuthenticAMD`; empty if the system does not tell."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith("vendor_id")).partition(":")[2].strip()
    _, comma, name = platform.processor().rpartition(", ")  # Windows: "AMD64 Family 25 Model 33, AuthenticAMD"
    return name if comma else ""


@functools.cache
def product_library() -> Library:
    """The library of large float32 products on this CPU."""
    if maker() != "AuthenticAMD" or not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        return BLAS
    mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return "onednn" if mkl and _has_onednn() else BLAS


def onednn_product(x: Tensor, transposed: Tensor) -> Tensor:
    """`x [B, in]` times `transposed [out, in]`, by what torch's compiler calls for a linear layer.

    torch has no public function that uses oneDNN for float32.
    """
    found: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, transposed, None, "none", [], "")
    return found


def _has_onednn() -> bool:
    one = torch.ones(2, 2, dtype=torch.float32, device="cpu")
    try:
        onednn_product(one, one)
    except (AttributeError, RuntimeError):
        return False
    return True
