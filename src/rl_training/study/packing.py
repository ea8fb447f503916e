"""A study as one file: settings, logs, results and policies, without replay buffers and optimisers.

The file is a zip archive whose bytes depend only on the contents: members are sorted by name and have no times and
no owners. Unpacking accepts only what packing writes: plain files of known names, of trials of the plan, of the
sizes they declare. The folder appears as a whole or not at all, and nothing is overwritten.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment import files
from rl_training.experiment.retention import list_checkpoints
from rl_training.memory import human_bytes
from rl_training.platforms import flags
from rl_training.study.plan import PLAN, RUNS, STUDY, TUNING, parse_plan, read_plan
from rl_training.study.trials import FAILURES

_OF_A_RUN = ("command.txt", "config.resolved.yaml", "config.yaml", "divergence.json", "metrics.csv", "run.json")
_MEMBER = re.compile(
    r"study\.yaml|plan\.json|tuning\.json|failures/(?P<failed>[A-Za-z0-9_][A-Za-z0-9._-]*)\.json"
    r"|runs/(?P<trial>[A-Za-z0-9_][A-Za-z0-9._-]*)/"
    rf"(?:{'|'.join(re.escape(name) for name in _OF_A_RUN)}"
    r"|(?:best|last)/step_[0-9]{1,18}/[A-Za-z0-9_][A-Za-z0-9_-]*\.(?:json|safetensors))"
)
Policies = Literal["best", "last", "none"]
"""which policy of each run is packed: the best one, that of the newest checkpoint, or none"""
LAST = "last"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time of a zip archive
_MODE = (stat.S_IFREG | 0o644) << 16
_MOST_MEMBERS = 1_000_000
_LARGEST_MEMBER = 2**31
_CHUNK = 2**20
_WRONG_SIZE = "{file}: {name!r} is not of the size it declares"
# A study may always unpack to this many bytes, or to this multiple of the size of its file.
_USUAL_SIZE, _USUAL_RATIO = 256 * 2**20, 100


def pack_study(folder: Path, target: Path, *, policies: Policies = "best") -> None:
    """Write everything a report needs of the study in `folder` to the new file `target`."""
    plan = read_plan(folder)
    with (
        files.os_errors(f"{target}: cannot be written"),
        _staged(target) as staging,
        zipfile.ZipFile(staging, "x", zipfile.ZIP_DEFLATED, compresslevel=6) as archive,
    ):
        for name, data in _contents(folder, [trial.name for trial in plan.trials], policies):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type, info.external_attr, info.create_system = zipfile.ZIP_DEFLATED, _MODE, 3
            archive.writestr(info, data)


@contextlib.contextmanager
def _staged(target: Path) -> Iterator[Path]:
    """A temporary path, renamed to `target` at the end, which must not exist; removed if the block raises."""
    _require_new(target)
    staging = target.with_name(f".tmp-{target.name}-{secrets.token_hex(4)}")
    try:
        yield staging
        _require_new(target)  # it may exist by now, and the rename would replace it
        files.rename(staging, target)
    finally:
        if staging.is_dir():
            shutil.rmtree(staging, ignore_errors=True)
        else:
            staging.unlink(missing_ok=True)


def _require_new(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise ConfigError(f"{target}: exists; nothing is overwritten (choose another name with -o)")


def _contents(folder: Path, trials: list[str], policies: Policies) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of the files to pack, sorted; files that a worker deletes meanwhile are left out."""
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
    """The policy of a run's newest valid checkpoint, as a checkpoint without anything else, named below `place`."""
    from rl_training.experiment.checkpointing import find_checkpoint, read_checkpoint, write_checkpoint

    run = (folder / place).parent

    def warn(text: str) -> None:
        warnings.warn(f"{run.name}: {text}", stacklevel=2)

    try:
        checkpoint = read_checkpoint(find_checkpoint(run, warn))
    except CheckpointError as error:
        warn(f"packed without a policy: {error}")
        return
    records = {name: record for name, record in checkpoint.records.items() if name != "judged"}
    with tempfile.TemporaryDirectory() as made:
        tensors = {"networks": checkpoint.tensors["networks"]}
        written = write_checkpoint(Path(made), checkpoint.step, tensors=tensors, records=records)
        for file in sorted(written.iterdir()):
            yield f"{place}{written.name}/{file.name}", file.read_bytes()


def _read(folder: Path, name: str) -> bytes | None:
    """The bytes of a plain file inside the folder; None if there is none. Links raise: they may lead anywhere."""
    path = folder / name
    for place in (path, *list(path.parents)[: name.count("/")]):
        if place.is_symlink():
            raise ConfigError(f"{place}: a link, which is not packed; remove it")
    return path.read_bytes() if path.is_file() else None


def unpack_study(file: Path, target: Path | None = None, *, max_size: int | None = None) -> Path:
    """Unpack a study into the new folder `target`, by default `studies/NAME`, and return that.

    More than `max_size` bytes raise; by default more than 256 MiB that are also more than a hundred times the file.
    """
    try:
        with open_packed_study(file) as packed:
            target = target or Path("studies") / packed.plan.name
            small = file.stat().st_size
            if packed.size > (max(_USUAL_SIZE, _USUAL_RATIO * small) if max_size is None else max_size):
                raise ConfigError(
                    f"{file}: its {human_bytes(small)} unpack to {human_bytes(packed.size)}; if you trust it, "
                    f"allow that with --max-size {packed.size}"
                )
            packed.extract(target)
    except OSError as error:
        raise ConfigError(f"{error.filename or target or file}: {error.strerror or error}") from None
    return target


class PackedStudy:
    """A packed study, read without unpacking it."""

    def __init__(self, archive: zipfile.ZipFile, file: Path) -> None:
        self._archive, self._file = archive, file
        self._members = _checked(archive, file)
        self.size = sum(info.file_size for info in self._members.values())
        self.plan = parse_plan(self.read(PLAN) or b"", f"{file}: {PLAN}")
        trials = {trial.name for trial in self.plan.trials}
        for name in self._members:
            found = _MEMBER.fullmatch(name)
            if found and (found["trial"] or found["failed"] or self.plan.name) not in trials | {self.plan.name}:
                raise CheckpointError(f"{file}: {name!r} belongs to no trial of the plan")

    def read(self, name: str) -> bytes | None:
        """The bytes of a file; None if the study has no file of that name."""
        if (info := self._members.get(name)) is None:
            return None
        with self._archive.open(info) as source:
            data = source.read(info.file_size + 1)
        if len(data) != info.file_size:
            raise CheckpointError(_WRONG_SIZE.format(file=self._file, name=name))
        return data

    def extract(self, target: Path) -> None:
        """Write all files to the new folder `target`."""
        with _staged(target) as staging:
            target.parent.mkdir(parents=True, exist_ok=True)
            if self.size > (free := shutil.disk_usage(target.parent).free):
                raise ConfigError(f"{target}: needs {human_bytes(self.size)} and {human_bytes(free)} are free")
            (staging / RUNS).mkdir(parents=True)
            for name, info in self._members.items():
                self._extract_one(info, staging / name)

    def _extract_one(self, info: zipfile.ZipInfo, path: Path) -> None:
        """Write a file, at most the size it declares; `zipfile` compares its checksum at the end."""
        path.parent.mkdir(parents=True, exist_ok=True)
        left = info.file_size
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags("O_NOFOLLOW"), 0o644)
        with self._archive.open(info) as source, os.fdopen(handle, "wb") as out:
            while chunk := source.read(_CHUNK):
                left -= len(chunk)
                if left < 0:
                    break
                out.write(chunk)
        if left:
            raise CheckpointError(_WRONG_SIZE.format(file=self._file, name=info.filename))


@contextlib.contextmanager
def open_packed_study(file: Path) -> Iterator[PackedStudy]:
    """Open a packed study for reading; `CheckpointError` if it is damaged or something else."""
    try:
        with zipfile.ZipFile(file) as archive:
            yield PackedStudy(archive, file)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise CheckpointError(f"{file}: not a packed study, or damaged: {error}") from None


def _checked(archive: zipfile.ZipFile, file: Path) -> dict[str, zipfile.ZipInfo]:
    """The members by name, after checking that packing would have written them."""
    infos = archive.infolist()
    if len(infos) > _MOST_MEMBERS:
        raise CheckpointError(f"{file}: {len(infos):,} members, at most {_MOST_MEMBERS:,} are read")
    members: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name, mode = info.filename, info.external_attr >> 16
        if not _MEMBER.fullmatch(name) or info.orig_filename != name:
            raise CheckpointError(f"{file}: {name[:200]!r} is not a file of a packed study")
        if name in members:
            raise CheckpointError(f"{file}: it contains {name!r} twice")
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
