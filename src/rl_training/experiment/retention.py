"""Listing checkpoints, finding the newest valid one, and deleting old ones."""

from __future__ import annotations

import re
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from rl_training.errors import CheckpointError
from rl_training.experiment import files
from rl_training.experiment.gallery import published
from rl_training.experiment.manifest import MANIFEST, is_valid, verify_checkpoint

# `.old` marks a checkpoint that is being replaced by a new one of the same step; it is valid until it is deleted.
_STEP = re.compile(r"step_([0-9]{1,18})(\.old)?")
# Folder of a run with numbered folders: best checkpoints in earlier environments, or of steps that were repeated.
EARLIER_BEST = "earlier_best"
# In a copied checkpoint: the run.json of its run.
ORIGIN = "origin.json"


def list_checkpoints(parent: Path) -> list[Path]:
    """The committed checkpoint folders inside `parent`, oldest step first; damaged ones are listed too."""
    found = []
    for path in parent.iterdir() if parent.is_dir() else ():
        match = _STEP.fullmatch(path.name)
        if match and path.is_dir():
            found.append(((int(match[1]), match[2] is None), path))
    return [path for _, path in sorted(found)]


def latest_valid(parent: Path) -> tuple[Path, list[str]]:
    """The newest valid checkpoint, and one warning for each newer, damaged one."""
    damaged: list[str] = []
    for path in reversed(list_checkpoints(parent)):
        try:
            verify_checkpoint(path)
        except CheckpointError as error:
            damaged.append(f"skipped a damaged checkpoint: {error}")
        else:
            return path, damaged
    reason = f" ({damaged[0]})" if damaged else ""
    best = parent.with_name("best")
    hint = f"; its best policy is in {best}" if best != parent and list_checkpoints(best) else ""
    raise CheckpointError(f"{parent}: no valid checkpoint{reason}{hint}")


def find_checkpoint(path: Path, warn: Callable[[str], None] = warnings.warn) -> Path:
    """The checkpoint in a checkpoint folder, a run folder, or a folder of checkpoints such as `best`.

    `gallery/<name>` is the published policy of that name, unless such a folder exists. A checkpoint folder itself
    is returned unverified; of several checkpoints the newest valid one, and `warn` is called for each damaged one.
    `earlier_best` means its last numbered folder.
    """
    path = published(path) or path
    if path.name == EARLIER_BEST and (last := _last_number(path)):
        path /= str(last)
    if not path.is_dir():
        raise CheckpointError(f"{path}: {_no_folder(path)}")
    if (path / MANIFEST).exists() or _STEP.fullmatch(path.name):
        return path
    parent = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    if parent == path and path.name != "best" and not list_checkpoints(path):
        packed = [path / name for name in ("last", "best") if list_checkpoints(path / name)]
        where = f"; its policy is in {packed[0]}" if packed else ""
        raise CheckpointError(
            f"{path}: neither a checkpoint nor a run folder (no {MANIFEST}, no checkpoints/){where}"
        )
    found, damaged = latest_valid(parent)
    for text in damaged:
        warn(text)
    return found


def find_origin(init_from: str, seed: int | None) -> Path:
    """The checkpoint from which a run with this seed starts."""
    return find_checkpoint(origin_path(init_from, seed))


def origin_path(init_from: str, seed: int | None) -> Path:
    """The path `init_from`, in which `{seed}` is replaced by `seed`."""
    return Path(init_from.replace("{seed}", str(seed)))


def _no_folder(path: Path) -> str:
    """Why a path that is not a folder is not a checkpoint."""
    if not path.exists():
        return "no such checkpoint"
    hints = dict.fromkeys((".npz", ".onnx", ".json"), "; of an exported policy use the run folder")
    hints[".zip"] = "; files of Stable-Baselines3 cannot be loaded"
    return f"a file, not a checkpoint folder written by this package{hints.get(path.suffix, '')}"


def step_of(checkpoint: Path) -> int:
    """The step in the folder name of a checkpoint."""
    match = _STEP.fullmatch(checkpoint.name)
    assert match is not None, checkpoint
    return int(match[1])


def folder_of(checkpoint: Path) -> Path:
    """The folder of the run or published policy that a checkpoint belongs to; a copy is its own folder."""
    if not _STEP.fullmatch(checkpoint.name):
        return checkpoint
    folder = checkpoint.parent
    if folder.parent.name == EARLIER_BEST:
        return folder.parent.parent
    return folder.parent if folder.name in ("checkpoints", "best") else folder


def prune(parent: Path, keep: int, *, spare: int | None = None) -> list[Path]:
    """Delete all but the newest `keep` checkpoints and the one of step `spare`; returns the deleted ones.

    If none of these is valid, the newest valid one is kept too; if no checkpoint is valid, nothing is deleted.
    """
    if keep < 1:
        raise ValueError(f"keep must be >= 1, got {keep}")
    newest_first = list_checkpoints(parent)[::-1]
    kept, old = newest_first[:keep], [path for path in newest_first[keep:] if step_of(path) != spare]
    if old and not any(is_valid(path, trust_shared=True) for path in kept):
        valid = next((path for path in old if is_valid(path, trust_shared=True)), None)
        old = [path for path in old if path != valid] if valid else []
    for path in old:
        discard(path)
    return old


def discard(folder: Path) -> None:
    """Delete a checkpoint; a crash meanwhile leaves no folder that looks like one."""
    if folder.exists():
        trash = folder.with_name(f".tmp-trash-{folder.name}")
        shutil.rmtree(trash, ignore_errors=True)
        files.rename(folder, trash)
        shutil.rmtree(trash, ignore_errors=True)


def copy_checkpoint(source: Path, target: Path) -> Path:
    """Copy a checkpoint and its run.json to the new folder `target`, whole or not at all."""
    with files.os_errors(f"{target}: cannot be written", CheckpointError):
        if target.exists():
            raise CheckpointError(f"{target}: already exists and is not overwritten; choose another name")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=target.parent) as staging:
            copy = Path(shutil.copytree(source, Path(staging) / target.name))
            if (record := folder_of(source) / "run.json").is_file():
                shutil.copyfile(record, copy / ORIGIN)
            files.rename(copy, target)
    return target


def set_aside(folder: Path, parent: Path) -> Path:
    """Move a checkpoint into a new numbered folder in `parent`, which is returned."""
    target = parent / str(_last_number(parent) + 1)
    target.mkdir(parents=True)
    files.rename(folder, target / folder.name)
    return target


def _last_number(parent: Path) -> int:
    """The largest number of a numbered folder in `parent`, or 0."""
    return max((int(path.name) for path in parent.glob("*") if path.name.isdecimal()), default=0)


def discard_after(parent: Path, step: int) -> None:
    """Delete the checkpoints of later steps, newest first."""
    for path in reversed(list_checkpoints(parent)):
        if step_of(path) > step:
            discard(path)


def sweep(parent: Path) -> None:
    """Remove the leftovers of interrupted writes and deletions."""
    for leftover in parent.glob(".tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)
