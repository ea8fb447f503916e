"""Checkpoints: folders without pickle that are either complete or absent.

    step_000010000/
        networks.safetensors … one file per group of tensors
        trainer.json …         one file per record
        replay/shard_00000.safetensors …
        manifest.json          format, versions, and the size and SHA-256 of every file above
        origin.json            in a copy (`model.save`): the run.json of its run

A folder is staged as `.tmp-…`, each file is flushed to the disk, the manifest is written last, and one rename
commits it. Neither safetensors nor file systems detect a flipped bit, so every hash is verified before any data is
used. Unchanged replay shards are hard links, so several checkpoints share one copy on the disk.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from rl_training.errors import CheckpointError, ConfigError, DiskFullError, NotPlainDataError
from rl_training.experiment import files
from rl_training.experiment.manifest import (
    FORMAT,
    MANIFEST,
    FileEntry,
    Manifest,
    check_hash,
    check_size,
    read_manifest,
    read_verified,
    verify_checkpoint,
)
from rl_training.experiment.retention import discard, find_checkpoint, latest_valid, list_checkpoints, prune, sweep
from rl_training.experiment.shards import RowsInfo, RowsToSave

__all__ = [
    "FORMAT",
    "Checkpoint",
    "RowsInfo",
    "RowsToSave",
    "Saved",
    "checkpoint_errors",
    "find_checkpoint",
    "latest_valid",
    "list_checkpoints",
    "prune",
    "read_checkpoint",
    "verify_checkpoint",
    "write_checkpoint",
]

_GROUP = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_LONGEST_REASON = 300


@dataclass
class Saved:
    """The contents of a checkpoint: groups of tensors, plain records, replay rows."""

    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    records: dict[str, Any] = field(default_factory=dict)
    rows: RowsToSave | None = None


@dataclass(frozen=True)
class _File:
    """One file to write: a function that returns its bytes; if unchanged, the previous folder and entry to link."""

    name: str
    estimate: int
    encode: Callable[[], bytes]
    unchanged: tuple[Path, FileEntry] | None = None


def write_checkpoint(
    parent: Path,
    step: int,
    *,
    tensors: Mapping[str, Mapping[str, Tensor]],
    records: Mapping[str, Any],
    rows: RowsToSave | None = None,
    previous: Path | None = None,
    fence: files.Fence = files.unfenced,
) -> Path:
    """Write `parent/step_<step>` durably and return it; an existing checkpoint of that step is replaced.

    `tensors["networks"]` is written to networks.safetensors, `records["trainer"]` to trainer.json. `previous` must
    be the last checkpoint of the same rows that this run has written or loaded: its unchanged shards are linked.
    The caller must hold the run's lock, because leftovers of an interrupted write are removed. `fence` is called at
    the start and before the rename that commits.
    """
    fence()
    final = parent / f"step_{step:09d}"
    staging = parent / f".tmp-{final.name}-{os.getpid()}"
    plan = [*_plan_groups(tensors, records), *_plan_rows(rows, previous)]
    try:
        parent.mkdir(parents=True, exist_ok=True)
        sweep(parent)
        staging.mkdir()
        manifest = Manifest(step, _write_files(staging, plan), None if rows is None else rows.info)
        files.write_durably(staging / MANIFEST, manifest.encode())
        files.sync_folder(staging)
        fence()
        _commit(staging, final)
    except Exception as error:
        shutil.rmtree(staging, ignore_errors=True)
        if isinstance(error, OSError):
            kind = DiskFullError if error.errno in files.NO_ROOM else CheckpointError
            raise kind(_write_problem(final, error, plan)) from error
        raise
    return final


def _encode_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Encode contiguous CPU copies, because safetensors rejects views and shared storage."""
    copies = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    return safetensors.torch.save(copies)


def _plan_groups(tensors: Mapping[str, Mapping[str, Tensor]], records: Mapping[str, Any]) -> Iterator[_File]:
    for name in (*tensors, *records):
        if not _GROUP.fullmatch(name) or name == "manifest":
            raise ValueError(f"{name!r} cannot name a part of a checkpoint: use letters, digits, - and _")
    for name, group in tensors.items():
        size = sum(tensor.numel() * tensor.element_size() for tensor in group.values())
        yield _File(f"{name}.safetensors", size, functools.partial(_encode_tensors, group))
    for name, record in records.items():
        try:
            data = files.encode_json(record)
        except ValueError as error:
            raise NotPlainDataError(f"{name}.json: {error}") from None
        yield _File(f"{name}.json", len(data), functools.partial(bytes, data))


def _plan_rows(rows: RowsToSave | None, previous: Path | None) -> Iterator[_File]:
    if rows is None:
        return
    info, unchanged = rows.info, dict[str, tuple[Path, FileEntry]]()
    if previous is not None:
        with suppress(CheckpointError):
            old = read_manifest(previous)
            names = info.unchanged_since(old.rows, rows.amended)
            unchanged = {name: (previous, old.files[name]) for name in names}
    for name, start, end in info.shards():
        encode = functools.partial(_encode_tensors, {"rows": rows.rows[start:end]})
        size = (end - start) * info.width * rows.rows.element_size()
        yield _File(name, size, encode, unchanged.get(name))


def _write_files(staging: Path, plan: list[_File]) -> dict[str, FileEntry]:
    entries: dict[str, FileEntry] = {}
    replay = staging / "replay"
    if any(file.name.startswith("replay/") for file in plan):
        replay.mkdir()
    for file in plan:
        if file.unchanged is not None and _link(*file.unchanged, staging, file.name):
            entries[file.name] = file.unchanged[1]
            continue
        data = file.encode()
        files.write_durably(staging / file.name, data)
        entries[file.name] = FileEntry.of(data)
    if replay.is_dir():
        files.sync_folder(replay)
    return entries


# Link a symbolic link itself, not its target. Not supported on Windows, where creating symbolic links needs rights.
_NO_FOLLOW = {"follow_symlinks": False} if os.link in os.supports_follow_symlinks else {}


def _link(source: Path, entry: FileEntry, target: Path, name: str) -> bool:
    """Hard-link a shard; False if it is damaged or links are not supported, so that it must be written."""
    try:
        os.link(check_size(source, name, entry), target / name, **_NO_FOLLOW)
    except (OSError, CheckpointError):
        return False
    files.failpoint(f"after link {target.name}/{name}")
    return True


def _commit(staging: Path, final: Path) -> None:
    displaced = final.with_name(f"{final.name}.old")
    if final.exists():
        discard(displaced)
        files.rename(final, displaced)
    files.rename(staging, final)
    files.sync_folder(final.parent)
    discard(displaced)


def _write_problem(final: Path, error: OSError, plan: list[_File]) -> str:
    if error.errno not in files.NO_ROOM:
        return f"{final}: cannot be written: {error.strerror or error}"
    needed = sum(file.estimate for file in plan if file.unchanged is None)
    try:
        free = str(shutil.disk_usage(final.parent).free)
    except OSError:
        free = "unknown"
    return (
        f"{final}: cannot be written: {error.strerror}: needs about {needed} bytes, {free} free;"
        " free some space or lower keep_checkpoints"
    )


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint; tensors are on the CPU, replay rows stay on the disk."""

    path: Path
    step: int
    tensors: Mapping[str, dict[str, Tensor]]
    records: Mapping[str, Any]
    rows: RowsInfo | None
    manifest: Manifest

    def read_rows(self, out: Tensor) -> None:
        """Copy the filled rows into the first slots of `out` `[>= filled, W]`, on any device."""
        info = self.rows
        if info is None:
            raise CheckpointError(f"{self.path}: holds no replay rows")
        dtype = str(out.dtype).removeprefix("torch.")
        if out.ndim != 2 or out.shape[0] < info.filled or (out.shape[1], dtype) != (info.width, info.dtype):
            raise CheckpointError(
                f"{self.path}: holds {info.filled} replay rows of {info.width} {info.dtype},"
                f" which do not fit {list(out.shape)} {dtype}"
            )
        for name, start, end in info.shards():
            out[start:end].copy_(self._shard(name, [end - start, info.width]))

    def some_rows(self, count: int, shards: int = 4) -> Tensor:
        """At most `count` filled rows `[n, W]` from at most `shards` shards."""
        if self.rows is None or not self.rows.filled:
            raise CheckpointError(f"{self.path}: holds no replay rows")
        places = list(self.rows.shards())
        chosen = places[:: -(-len(places) // shards)]
        parts = []
        for name, start, end in chosen:
            rows = self._shard(name, [end - start, self.rows.width])
            parts.append(rows[:: -(-len(chosen) * len(rows) // count)])
        return torch.cat(parts)

    def _shard(self, name: str, shape: list[int]) -> Tensor:
        data = read_verified(self.path, name, self.manifest.files[name])
        shard = _decode_tensors(self.path / name, data).get("rows")
        if shard is None or list(shard.shape) != shape:
            raise CheckpointError(f"{self.path / name}: expected rows {shape}")
        return shard


def _decode_tensors(path: Path, data: bytes) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(data)
    except SafetensorError as error:
        raise CheckpointError(f"{path}: not a safetensors file: {error}") from None


def _decode_record(path: Path, data: bytes) -> Any:
    try:
        return files.decode_json(data)
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from None


def read_checkpoint(path: Path) -> Checkpoint:
    """Verify a checkpoint folder and load everything but its replay rows; see `Checkpoint.read_rows`."""
    manifest = read_manifest(path)
    contents: dict[str, bytes] = {}
    for name, entry in manifest.files.items():
        if name.startswith("replay/"):
            check_hash(path, name, entry)
        else:
            contents[name] = read_verified(path, name, entry)
    tensors: dict[str, dict[str, Tensor]] = {}
    records: dict[str, Any] = {}
    for name, data in contents.items():
        group, _, kind = name.rpartition(".")
        if kind == "safetensors":
            tensors[group] = _decode_tensors(path / name, data)
        else:
            records[group] = _decode_record(path / name, data)
    return Checkpoint(path, manifest.step, tensors, records, manifest.rows, manifest)


@contextmanager
def checkpoint_errors(checkpoint: Checkpoint, part: str = "contents") -> Iterator[None]:
    """Raise a `CheckpointError` if intact files hold what this run cannot use."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        raise CheckpointError(
            f"{checkpoint.path}: its {part} do not fit this configuration: {type(error).__name__}: {reason}"
        ) from error
