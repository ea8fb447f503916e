"""Where the packed rows of a run are stored: on the GPU, in host memory, or in a packed file next to the data.

The first of these with enough room is used; minibatches are the same in all cases. `MemoryBudget` limits the
memory, `PackedFile` is the location and identity of the packed file of some data and settings.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.data.mapped import Contents, UnusableFolder, make_packed, open_packed
from rl_training.errors import MemoryLimitError
from rl_training.experiment.files import encode_json
from rl_training.memory import available_memory, human_bytes, room_on_gpu

# Blocks of a source file that are part of its identity: both ends and some in between.
_SAMPLES, _SAMPLE_BYTES = 64, 4096

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes for rows on the training device and in host memory; None: the free memory, less a margin.

    `spare` is a folder for packed files that cannot be stored next to their data.
    """

    device: torch.device
    device_memory: int | None = None
    host_memory: int | None = None
    spare: Path | None = None

    def on_device(self) -> int:
        """Bytes available on the GPU."""
        free: int = torch.cuda.mem_get_info(self.device)[0]
        return room_on_gpu(self.device) if self.device_memory is None else min(self.device_memory, free)

    def after(self, rows: Tensor) -> MemoryBudget:
        """The remaining budget once `rows` are stored."""
        if self.device_memory is None or rows.device.type == "cpu":
            return self
        return replace(self, device_memory=max(0, self.device_memory - rows.nbytes))

    def on_host(self) -> int:
        """Bytes available in host memory; by default half of the free memory."""
        free = available_memory()
        return free // 2 if self.host_memory is None else min(self.host_memory, free)

    def remarks(self, data: NDArray[np.float32], rows: Tensor) -> tuple[str, ...]:
        """One line about where the rows of `data` are stored and why.

        Empty if they are in the memory of the training device and no budget is set.
        """
        expected = rows.device.type == self.device.type and not isinstance(data, np.memmap)
        unlimited = self.device_memory is None and self.host_memory is None
        return () if expected and unlimited else (self._where(data, rows),)

    def _where(self, data: NDArray[np.float32], rows: Tensor) -> str:
        what = f"{len(data):,} rows ({human_bytes(data.nbytes)})"
        if rows.device.type != "cpu":
            return f"{what} on {rows.device}: they fit there (device_memory)"
        too_many = "" if self.device.type == "cpu" else f"; {self.device} has no room for them (device_memory)"
        if isinstance(data, np.memmap):
            place = data.filename or f"a temporary file in {tempfile.gettempdir()}"
            return f"{what} in {place}, read ahead: host memory has no room for them (host_memory){too_many}"
        ahead = ", minibatches copied ahead" if too_many else ""
        return f"{what} in host memory{ahead}: they fit there (host_memory){too_many}"


@dataclass(frozen=True)
class PackedFile:
    """The packed file of some source files and settings; `places` are its possible paths, in order."""

    identity: str
    places: tuple[Path, ...]

    @classmethod
    def of(cls, sources: Sequence[Path], settings: Mapping[str, Any], spare: Path | None) -> PackedFile | None:
        """The packed file, or None if a source is missing; reading that source raises a better error."""
        try:
            states = [_state(source) for source in sources]
            folder = sources[0].resolve().parent
        except OSError:
            return None
        identity = _hash({"sources": states, "settings": settings})
        names = [source.name for source in sources]
        more = f"+{len(names) - 1}" if len(names) > 1 else ""
        near = f"{names[0]}{more}.{_hash([names, settings])[:10]}.rows"
        elsewhere = f"{names[0]}{more}.{_hash([names, settings, str(folder)])[:10]}.rows"
        return cls(identity, (folder / near, *([] if spare is None else [spare / elsewhere])))

    def find(self) -> Contents | None:
        """The contents of the file, or None if no complete file exists."""
        found = (open_packed(place, self.identity) for place in self.places)
        return next((contents for contents in found if contents is not None), None)

    def make(self, shape: tuple[int, int], fill: Callable[[NDArray[np.float32]], Contents], limit: int) -> Contents:
        """Make the file in the first usable place; `limit` is the host memory, for the error message."""
        problems: list[str] = []
        for place in self.places:
            try:
                made = make_packed(place, self.identity, shape, fill, _log.warning)
            except UnusableFolder as problem:
                problems.append(str(problem))
                continue
            if problems:
                _log.warning("%s; packed rows are in %s", "; ".join(problems), place)
            return made
        needed = human_bytes(shape[0] * shape[1] * 4)
        raise MemoryLimitError(
            f"{shape[0]:,} rows need {needed}, more than host memory has room for ({human_bytes(limit)}, "
            f"host_memory), and no folder takes a packed file: {'; '.join(problems)}; set output_dir to a folder "
            "on a larger disk, or use fewer rows",
            key="host_memory",
        )


def contents_of(source: Path) -> dict[str, int]:
    """The identity of a file's contents: its size and a checksum of some blocks."""
    with source.open("rb") as file:
        size, checksum = os.fstat(file.fileno()).st_size, 0
        for i in range(_SAMPLES):
            file.seek(max(0, size - _SAMPLE_BYTES) * i // (_SAMPLES - 1))
            checksum = zlib.crc32(file.read(_SAMPLE_BYTES), checksum)
    return {"bytes": size, "samples": checksum}


def _state(source: Path) -> dict[str, Any]:
    """The state of a file: its contents and the time of modification."""
    return {"name": source.name, "modified": source.stat().st_mtime_ns, **contents_of(source)}


def _hash(value: Any) -> str:
    return hashlib.sha256(encode_json(value)).hexdigest()
