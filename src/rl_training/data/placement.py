"""Where the packed rows of a run live: on the GPU, in host memory, or in a packed file beside the data.

The first place that has the room is taken; what is drawn from the rows is the same in all of them. `MemoryBudget`
is how much room there is, `PackedFile` where the packed file of some data and settings is stored, and its identity.
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
from rl_training.platforms import user_id

# What is read of a source beside its size and time: its ends and some blocks in between.
_SAMPLES, _SAMPLE_BYTES = 64, 4096

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes that rows may take on the device that trains and in host memory; None: what is free, less a margin.

    `spare` is a folder for packed files that cannot stand beside their data.
    """

    device: torch.device
    device_memory: int | None = None
    host_memory: int | None = None
    spare: Path | None = None

    def on_device(self) -> int:
        """Room on a GPU."""
        free: int = torch.cuda.mem_get_info(self.device)[0]
        return room_on_gpu(self.device) if self.device_memory is None else min(self.device_memory, free)

    def after(self, rows: Tensor) -> MemoryBudget:
        """What is left of the budget of the device once `rows` are where they are."""
        if self.device_memory is None or rows.device.type == "cpu":
            return self
        return replace(self, device_memory=max(0, self.device_memory - rows.nbytes))

    def on_host(self) -> int:
        """Room in host memory: half of what is free, unless told otherwise."""
        free = available_memory()
        return free // 2 if self.host_memory is None else min(self.host_memory, free)

    def remarks(self, data: NDArray[np.float32], rows: Tensor) -> tuple[str, ...]:
        """One line: where rows that were loaded as `data` live now, and why there.

        None where they are in the memory of the device that trains, as anybody would expect, and no budget is set.
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
    """The packed file of some source files and settings, and the places where it may be, the best one first."""

    identity: str
    places: tuple[Path, ...]

    @classmethod
    def of(cls, sources: Sequence[Path], settings: Mapping[str, Any], spare: Path | None) -> PackedFile | None:
        """None where a source is not there, which its reader will tell better."""
        try:
            states = [_state(source) for source in sources]
            folder = sources[0].resolve().parent
        except OSError:
            return None
        identity = _hash({"sources": states, "settings": settings})
        names = [source.name for source in sources]
        more = f"+{len(names) - 1}" if len(names) > 1 else ""
        beside = f"{names[0]}{more}.{_hash([names, settings])[:10]}.rows"
        elsewhere = f"{names[0]}{more}.{_hash([names, settings, str(folder)])[:10]}.rows"
        spares = [spare] if spare is not None else []
        return cls(identity, (folder / beside, *(place / elsewhere for place in (*spares, _temporary_folder()))))

    def find(self) -> Contents | None:
        """The contents of the file, if it was made before and is whole."""
        found = (open_packed(place, self.identity) for place in self.places if _is_ours(place))
        return next((contents for contents in found if contents is not None), None)

    def make(self, shape: tuple[int, int], fill: Callable[[NDArray[np.float32]], Contents], limit: int) -> Contents:
        """Make the file in the first place that takes it; `limit` is the host memory that it does not fit into."""
        problems: list[str] = []
        for place in self.places:
            try:
                _require_ours(place)
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
            f"host_memory), and no folder takes a packed file: {'; '.join(problems)}; set TMPDIR to a larger disk "
            "or use fewer rows",
            key="host_memory",
        )


def contents_of(source: Path) -> dict[str, int]:
    """What is the same in every copy of a file: its size, and a checksum of some of its blocks."""
    with source.open("rb") as file:
        size, checksum = os.fstat(file.fileno()).st_size, 0
        for i in range(_SAMPLES):
            file.seek(max(0, size - _SAMPLE_BYTES) * i // (_SAMPLES - 1))
            checksum = zlib.crc32(file.read(_SAMPLE_BYTES), checksum)
    return {"bytes": size, "samples": checksum}


def _state(source: Path) -> dict[str, Any]:
    """What changes when a file does: its contents and the time of its modification."""
    return {"name": source.name, "modified": source.stat().st_mtime_ns, **contents_of(source)}


def _hash(value: Any) -> str:
    return hashlib.sha256(encode_json(value)).hexdigest()


def _temporary_folder() -> Path:
    """A folder of this user's in the system's temporary one."""
    return Path(tempfile.gettempdir()) / f"rl-training-{user_id()}"


def _is_ours(place: Path) -> bool:
    """Whether a place is beside the data, or in a folder that others cannot have put something into."""
    folder = place.parent
    if folder != _temporary_folder():
        return True
    try:
        stat = folder.lstat()
    except OSError:
        return False
    return folder.is_dir() and not folder.is_symlink() and stat.st_uid == user_id() and not stat.st_mode & 0o022


def _require_ours(place: Path) -> None:
    folder = place.parent
    if folder == _temporary_folder():
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise UnusableFolder(f"{folder}: {error.strerror or error}") from None
        if not _is_ours(place):
            raise UnusableFolder(f"{folder}: belongs to somebody else")
