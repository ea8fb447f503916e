"""The manifest of a checkpoint: its files with their sizes and hashes.

The manifest is canonical JSON that contains its own hash, so damage to any byte is detected. It lists the size and
SHA-256 of every other file. File names are restricted, so that no manifest can point outside its folder.
"""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError
from rl_training.experiment import files
from rl_training.experiment.shards import RowsInfo
from rl_training.version import __version__

FORMAT = 1
KIND = "rl_training.checkpoint"
MANIFEST = "manifest.json"

_FILE = re.compile(r"(?:replay/)?[A-Za-z0-9_][A-Za-z0-9_-]*\.(?:safetensors|json)")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHUNK = 4 * 2**20


@dataclass(frozen=True)
class FileEntry:
    size: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> FileEntry:
        return cls(len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class Manifest:
    step: int
    files: Mapping[str, FileEntry]
    rows: RowsInfo | None

    def encode(self) -> bytes:
        body: dict[str, Any] = {
            "kind": KIND,
            "format": FORMAT,
            "package_version": __version__,
            "step": self.step,
            "files": {name: asdict(entry) for name, entry in self.files.items()},
            "rows": None if self.rows is None else asdict(self.rows),
        }
        return files.encode_json({**body, "sha256": FileEntry.of(files.encode_json(body)).sha256})

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Manifest:
        """Raises KeyError, TypeError or ValueError for an invalid manifest."""
        step, entries = value["step"], {name: FileEntry(**entry) for name, entry in value["files"].items()}
        if type(step) is not int or step < 0:
            raise ValueError(f"step {step!r}")
        for name, entry in entries.items():
            if not _FILE.fullmatch(name) or name == MANIFEST:
                raise ValueError(f"file name {name!r}")
            if type(entry.size) is not int or entry.size < 0 or not _SHA256.fullmatch(entry.sha256):
                raise ValueError(f"entry of {name!r}")
        rows = None if value["rows"] is None else RowsInfo.from_json(value["rows"])
        shards = {name for name in entries if name.startswith("replay/")}
        expected = 0 if rows is None else rows.num_shards
        if len(shards) != expected or (rows and shards != {name for name, _, _ in rows.shards()}):
            raise ValueError("replay shards and replay counts disagree")
        return cls(step, entries, rows)


def read_manifest(folder: Path) -> Manifest:
    """The verified manifest of a checkpoint folder; raises `CheckpointError`."""
    path = folder / MANIFEST
    if not folder.exists():
        raise CheckpointError(f"{folder}: no such checkpoint")
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: a file, not a checkpoint folder written by this package")
    if not path.exists():
        raise CheckpointError(f"{folder}: not a checkpoint (it has no {MANIFEST})")
    _check_plain_file(folder, MANIFEST)
    with _reading(path):
        data = path.read_bytes()
    try:
        body = files.decode_json(data)
    except ValueError as error:
        raise CheckpointError(f"{path}: damaged: expected JSON, actual: {error}") from None
    if not isinstance(body, dict) or body.get("kind") != KIND:
        raise CheckpointError(f"{path}: not a checkpoint of this package (expected kind {KIND!r})")
    version = body.get("format")
    if type(version) is int and version > FORMAT:
        raise CheckpointError(
            f"{path}: checkpoint format {version} is newer than format {FORMAT} of this package;"
            f" it needs rl-training {body.get('package_version')} or later"
        )
    expected = body.pop("sha256", None)
    try:
        actual = FileEntry.of(files.encode_json(body)).sha256
        if expected != actual or data != files.encode_json({**body, "sha256": actual}):
            raise CheckpointError(f"{path}: damaged: expected sha256 {expected}, actual {actual}")
        return Manifest.from_json(body)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: damaged: its contents are not possible: {error}") from None


def _reading(path: Path) -> AbstractContextManager[None]:
    return files.os_errors(f"{path}: cannot be read", CheckpointError)


def _check_plain_file(folder: Path, name: str) -> Path:
    """Raise unless `name` is a regular file: a link could point outside the folder, a pipe would block."""
    path = folder / name
    with _reading(path):
        try:
            if path.parent != folder and not stat.S_ISDIR(path.parent.lstat().st_mode):
                raise CheckpointError(f"{path.parent}: expected a folder of the checkpoint")
            if not stat.S_ISREG(path.lstat().st_mode):
                raise CheckpointError(f"{path}: expected a plain file")
        except FileNotFoundError:
            raise CheckpointError(f"{path}: missing from the checkpoint") from None
    return path


def check_size(folder: Path, name: str, entry: FileEntry) -> Path:
    path = _check_plain_file(folder, name)
    actual = path.lstat().st_size
    if actual != entry.size:
        raise CheckpointError(f"{path}: damaged: expected {entry.size} bytes, actual {actual}")
    return path


def check_hash(folder: Path, name: str, entry: FileEntry) -> None:
    """Verify the hash of a file in chunks, without loading it into memory."""
    path, digest = check_size(folder, name, entry), hashlib.sha256()
    with _reading(path), path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    _compare(path, entry, digest.hexdigest())


def read_verified(folder: Path, name: str, entry: FileEntry) -> bytes:
    """The verified bytes of a file."""
    path = check_size(folder, name, entry)
    with _reading(path):
        data = path.read_bytes()
    _compare(path, entry, FileEntry.of(data).sha256)
    return data


def _compare(path: Path, entry: FileEntry, actual: str) -> None:
    if actual != entry.sha256:
        raise CheckpointError(f"{path}: damaged: expected sha256 {entry.sha256}, actual {actual}")


def verify_checkpoint(folder: Path, *, trust_shared: bool = False) -> Manifest:
    """Verify all files of a checkpoint; with `trust_shared`, only the sizes of files that other checkpoints share.

    A shared file is damaged in all checkpoints or in none, so it does not matter for the choice between them.
    """
    manifest = read_manifest(folder)
    for name, entry in manifest.files.items():
        path = check_size(folder, name, entry)
        if not (trust_shared and path.lstat().st_nlink > 1):
            check_hash(folder, name, entry)
    return manifest


def is_valid(folder: Path, *, trust_shared: bool = False) -> bool:
    """Whether `verify_checkpoint` finds no damage."""
    try:
        verify_checkpoint(folder, trust_shared=trust_shared)
    except CheckpointError:
        return False
    return True
