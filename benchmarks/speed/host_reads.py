"""`HostReads`: counts host-device synchronisation by function and by line of code."""

from __future__ import annotations

import functools
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any, Self
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.report import ROOT

# Methods that copy tensor values to the host.
_READS = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__", "nonzero")
# Functions that wait for the device explicitly.
_WAITS = ((torch.cuda, "synchronize"), (torch.cuda.Event, "synchronize"), (torch.cuda.Stream, "synchronize"))


class HostReads:
    """Context manager that counts host reads.

    `reads`: calls of methods that read a tensor on this type of device, and explicit waits for a GPU; works on any
    device. `synchronizations`: operations that CUDA reports as synchronising, None without a GPU. These include
    most of `reads`, and reads that do not originate in Python code.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.reads = 0
        self.synchronizations: int | None = 0 if device.type == "cuda" else None
        self.places: Counter[str] = Counter()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for name in _READS:
                stack.enter_context(patch.object(Tensor, name, self._counting(getattr(Tensor, name), name)))
            if self.synchronizations is not None:
                for owner, name in _WAITS:
                    stack.enter_context(patch.object(owner, name, self._counting(getattr(owner, name), name)))
                stack.enter_context(warnings.catch_warnings())
                warnings.simplefilter("always")
                warnings.showwarning = self._warned
                stack.callback(torch.set_warn_always, torch.is_warn_always_enabled())
                torch.set_warn_always(True)
                stack.callback(torch.cuda.set_sync_debug_mode, torch.cuda.get_sync_debug_mode())
                torch.cuda.set_sync_debug_mode("warn")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _counting(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def counted(*arguments: Any, **options: Any) -> Any:
            first = arguments[0] if arguments else None
            if not isinstance(first, Tensor) or first.device.type == self.device.type:
                self.reads += 1
                self.places[f"{name} at {_place()}"] += 1
            return original(*arguments, **options)

        return counted

    def _warned(self, message: Any, *_: Any, **__: Any) -> None:
        if "synchroniz" in str(message):
            assert self.synchronizations is not None
            self.synchronizations += 1
            self.places[f"synchronisation at {_place()}"] += 1


def _place() -> str:
    """The innermost line of this repository outside this module."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(str(ROOT)) and file != __file__:
            return f"{file.removeprefix(f'{ROOT}/')}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"
