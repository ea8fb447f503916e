"""A study as one file: settings, logs, results and policies, without replay buffers and optimisers.

The file is a zip archive whose bytes depend on the contents alone: members in order of their names, no times, no
owners. Unpacking takes nothing that packing would not have written: plain files of known names, of the trials of
the plan, within the sizes they declare; the folder appears whole or not at all, and nothing is overwritten.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment import files
from rl_training.experiment.retention import list_checkpoints
from rl_training.memory import human_bytes
from rl_training.study.plan import PLAN, RUNS, STUDY, TUNING, parse_plan, read_plan
from rl_training.study.trials import FAILURES

_OF_A_RUN = (
    "command.txt",
    "config.resolved.yaml",
    "config.yaml",
    "divergence.json",
    "metrics.csv",
    "run.json",
)
_MEMBER = re.compile(
    r"study\.yaml|plan\.json|tuning\.json|failures/(?P<failed>[A-Za-z0-9_][A-Za-z0-9._-]*)\.json"
    r"|runs/(?P<trial>[A-Za-z0-9_][A-Za-z0-9._-]*)/"
    rf"(?:{'|'.join(re.escape(name) for name in _OF_A_RUN)}"
    r"|(?:best|last)/step_[0-9]{1,18}/[A-Za-z0-9_][A-Za-z0-9_-]*\.(?:json|safetensors))"
)
Policies = Literal["best", "last", "none"]
"""of each run: its best policy, that of its newest checkpoint, or neither"""
LAST = "last"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest a zip archive knows
_MODE = (stat.S_IFREG | 0o644) << 16
_MOST_MEMBERS = 1_000_000
_LARGEST_MEMBER = 2**31
_CHUNK = 2**20
# A study may always unpack to this many bytes, or to this multiple of the size of its file.
_USUAL_SIZE, _USUAL_RATIO = 256 * 2**20, 100


def pack(folder: Path, target: Path, *, policies: Policies = "best") -> None:
    """Write everything a report needs of the study in `folder` to the new file `target`."""
    plan = read_plan(folder)
    if target.exists():
        raise ConfigError(f"{target}: exists; nothing is overwritten")
    staging = target.with_name(f".tmp-{target.name}-{secrets.token_hex(4)}")
    try:
        with zipfile.ZipFile(staging, "x", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            for name, data in _contents(folder, [trial.name for trial in plan.trials], policies):
                info = zipfile.ZipInfo(name, _EPOCH)
                info.compress_type, info.external_attr, info.create_system = zipfile.ZIP_DEFLATED, _MODE, 3
                archive.writestr(info, data)
        files.rename(staging, target)
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written: {error.strerror or error}") from None
    finally:
        staging.unlink(missing_ok=True)


def _contents(folder: Path, trials: list[str], policies: Policies) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of what is packed, in order; what a worker deletes meanwhile is left out."""
    names = [STUDY, PLAN, TUNING]
    for trial in trials:
        names.append(f"{FAILURES}/{trial}.json")
        names += [f"{RUNS}/{trial}/{name}" for name in _OF_A_RUN]
        if policies == LAST and list_checkpoints(folder / RUNS / trial / "checkpoints"):
            names.append(f"{RUNS}/{trial}/{LAST}/")
            continue
        for kept in list_checkpoints(folder / RUNS / trial / policies):
            names += [f"{RUNS}/{trial}/{policies}/{kept.name}/{file.name}" for file in kept.iterdir()]
    for name in sorted(names):
        if name.endswith("/"):
            yield from _last(folder, name)
        elif _MEMBER.fullmatch(name) and (data := _read(folder, name)) is not None:
            yield name, data


def _last(folder: Path, place: str) -> Iterator[tuple[str, bytes]]:
    """The policy of a run's newest checkpoint, as a checkpoint that holds nothing else, named below `place`."""
    from rl_training.experiment.checkpointing import find_checkpoint, read_checkpoint, write_checkpoint

    checkpoint = read_checkpoint(find_checkpoint((folder / place).parent))
    records = {name: record for name, record in checkpoint.records.items() if name != "judged"}
    with tempfile.TemporaryDirectory() as made:
        tensors = {"networks": checkpoint.tensors["networks"]}
        written = write_checkpoint(Path(made), checkpoint.step, tensors=tensors, records=records).path
        for file in sorted(written.iterdir()):
            yield f"{place}{written.name}/{file.name}", file.read_bytes()


def _read(folder: Path, name: str) -> bytes | None:
    """A plain file inside the folder; None where there is none. Links could lead anywhere, and are refused."""
    path = folder / name
    for place in (path, *list(path.parents)[: name.count("/")]):
        if place.is_symlink():
            raise ConfigError(f"{place}: a link, which is not packed; remove it")
    return path.read_bytes() if path.is_file() else None


def unpack(file: Path, target: Path | None = None, *, max_size: int | None = None) -> Path:
    """Unpack a study into the new folder `target` (`studies/NAME` if it is None), and return that.

    More than `max_size` bytes are refused; if it is None, more than 256 MiB that are also a hundred times the file.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            packed = Packed(archive, file)
            target = target or Path("studies") / packed.plan.name
            _require_size(packed.members, file, max_size)
            _extract(archive, packed.members, target, file)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise CheckpointError(f"{file}: not a packed study, or damaged: {error}") from None
    except OSError as error:
        raise ConfigError(f"{error.filename or target or file}: {error.strerror or error}") from None
    return target


class Packed:
    """A packed study, read where it is: its plan, and any of its files by name."""

    def __init__(self, archive: zipfile.ZipFile, file: Path) -> None:
        self._archive, self._file = archive, file
        self.members = _checked(archive, file)
        self.plan = parse_plan(_bytes(archive, self.members[PLAN], file), f"{file}: {PLAN}")
        trials = {trial.name for trial in self.plan.trials}
        for name in self.members:
            found = _MEMBER.fullmatch(name)
            if found and (found["trial"] or found["failed"] or self.plan.name) not in trials | {self.plan.name}:
                raise CheckpointError(f"{file}: {name!r} belongs to no trial of the plan")

    def read(self, name: str) -> bytes | None:
        """The bytes of a file; None where the study has none of that name."""
        return _bytes(self._archive, self.members[name], self._file) if name in self.members else None


@contextlib.contextmanager
def open_packed(file: Path) -> Iterator[Packed]:
    """Read a packed study without unpacking it; what is wrong with it is a `CheckpointError`."""
    try:
        with zipfile.ZipFile(file) as archive:
            yield Packed(archive, file)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise CheckpointError(f"{file}: not a packed study, or damaged: {error}") from None


def _checked(archive: zipfile.ZipFile, file: Path) -> dict[str, zipfile.ZipInfo]:
    """The members by name, each of a kind, name and size that packing writes."""
    infos = archive.infolist()
    if len(infos) > _MOST_MEMBERS:
        raise CheckpointError(f"{file}: {len(infos):,} members, at most {_MOST_MEMBERS:,} are read")
    members: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name, mode = info.filename, info.external_attr >> 16
        if not _MEMBER.fullmatch(name) or info.orig_filename != name:
            raise CheckpointError(f"{file}: {name[:200]!r} is no file of a packed study")
        if name in members:
            raise CheckpointError(f"{file}: {name!r} is in it twice")
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG) or info.flag_bits & 1:
            raise CheckpointError(f"{file}: {name!r} is not a plain file")
        if info.file_size > _LARGEST_MEMBER:
            raise CheckpointError(f"{file}: {name!r} declares {human_bytes(info.file_size)}")
        members[name] = info
    for name in (STUDY, PLAN):
        if name not in members:
            raise CheckpointError(f"{file}: not a packed study (it has no {name})")
    if members[PLAN].file_size > files.MAX_JSON_BYTES:
        raise CheckpointError(f"{file}: {PLAN} declares {human_bytes(members[PLAN].file_size)}")
    return members


def _bytes(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: Path) -> bytes:
    with archive.open(info) as source:
        data = source.read(info.file_size + 1)
    if len(data) != info.file_size:
        raise CheckpointError(f"{file}: {info.filename!r} is not of the size it declares")
    return data


def _require_size(members: dict[str, zipfile.ZipInfo], file: Path, limit: int | None) -> None:
    """Refuse a small file that declares far more than any study is compressed by."""
    needed, packed = sum(info.file_size for info in members.values()), file.stat().st_size
    if needed > (max(_USUAL_SIZE, _USUAL_RATIO * packed) if limit is None else limit):
        raise ConfigError(
            f"{file}: its {human_bytes(packed)} unpack to {human_bytes(needed)}; if you trust it, allow that with "
            f"--max-size {needed}"
        )


def _extract(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], target: Path, file: Path) -> None:
    if target.exists() or target.is_symlink():
        raise ConfigError(f"{target}: exists; nothing is overwritten (choose another folder with -o)")
    target.parent.mkdir(parents=True, exist_ok=True)
    needed = sum(info.file_size for info in members.values())
    if needed > (free := shutil.disk_usage(target.parent).free):
        raise ConfigError(f"{target}: needs {human_bytes(needed)} and {human_bytes(free)} are free")
    staging = target.with_name(f".tmp-{target.name}-{secrets.token_hex(4)}")
    staging.mkdir()
    try:
        for name, info in members.items():
            _extract_one(archive, info, staging / name, file)
        (staging / RUNS).mkdir(exist_ok=True)
        if target.exists():  # made meanwhile; an empty folder would be replaced by the rename
            raise ConfigError(f"{target}: exists; nothing is overwritten")
        files.rename(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _extract_one(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, file: Path) -> None:
    """Write one member, never more of it than it declares; its checksum is compared at its end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    left = info.file_size
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with archive.open(info) as source, os.fdopen(handle, "wb") as out:
        while chunk := source.read(_CHUNK):
            left -= len(chunk)
            if left < 0:
                break
            out.write(chunk)
    if left:
        raise CheckpointError(f"{file}: {info.filename!r} is not of the size it declares")
