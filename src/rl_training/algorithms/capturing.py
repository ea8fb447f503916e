"""What every capture of a CUDA graph shares: streams, no garbage collection, own workspaces, no known warnings."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
from torch.torch_version import TorchVersion

# Streams in addition to the main one: IQL, the widest update, runs five networks in parallel.
_BRANCHES = 4


@contextmanager
def gc_paused() -> Iterator[None]:
    """Collect garbage before capturing a graph, and disable collection during the capture.

    Freeing a tensor in pinned memory queries the GPU, which breaks a capture and ends the process.
    """
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Streams(NamedTuple):
    main: torch.cuda.Stream  # a capture begins and ends here
    side: torch.cuda.Stream  # draws minibatches
    branches: tuple[torch.cuda.Stream, ...]


@cache
def streams(device: torch.device) -> Streams:
    """The streams of this process, shared by all learners.

    torch has a pool of 32 streams and reuses them in turn. If every learner requested its own, the branches of the
    eighth one would be on the stream that it captures on, and run one after the other.
    """
    main, side, *branches = (torch.cuda.Stream(device) for _ in range(2 + _BRANCHES))  # type: ignore[no-untyped-call]
    return Streams(main, side, tuple(branches))


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, device: torch.device) -> Iterator[None]:
    """Capture `graph` on the main stream."""
    with gc_paused(), _own_workspaces(), torch.cuda.graph(graph, stream=streams(device).main):
        yield


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """Let a graph allocate the workspaces of cuBLAS in its own memory, so that it shares none with other graphs.

    After version 2.11 torch frees the workspaces of a stream if a graph that was captured on it is destroyed. All
    graphs are captured on the same stream, so the others would write to freed memory (pytorch/pytorch#193402).
    """
    if TorchVersion(torch.__version__) < "2.12":
        yield
        return
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


@contextmanager
def known_warnings_ignored() -> Iterator[None]:
    """Ignore torch's warnings during compilation and capture about intended behaviour."""
    with warnings.catch_warnings():
        # torch recommends TF32 when it compiles; here it is a setting.
        warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
        # Gradients are returned by autograd.grad and never accumulated, so that stream is never used.
        warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream does not match")
        yield
