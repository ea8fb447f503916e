"""Claims: which worker owns a group of trials, on one machine or on several that share a disk.

A claim is a file `claims/GROUP/N.json`, made by exclusive creation. N is its generation; the file with the highest
one belongs to the owner. Claims are never deleted or renamed: a worker takes over by creating N + 1, which only one
worker can do. The owner touches its file six times per `claim_timeout`. A worker may take over a claim if

- the owner has released it (the trials ended, or a signal ended the worker),
- the owner is a process of this machine that has exited, or
- the file was not touched for `claim_timeout` seconds, by the clock of the disk or as seen by this process. The
  latter is for files that are dated in the future because a clock was wrong: they would hold a group until then.

In the last case the owner may only be stalled (a suspended laptop, SIGSTOP, a disk that hung) and wake up.
Therefore `Claim.check` is the fence of its runs. It is called before each rename that commits a checkpoint,
run.json or metrics.csv, and raises `ClaimLost` if a later generation exists. A new owner may still appear between
that call and the rename, which is harmless. The checkpoint is complete, and bit for bit what the new owner writes
at that step. The new owner writes run.json again, at the latest when the run ends. Rows appended to metrics.csv go
to a file that the new owner has replaced.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import secrets
import threading
import time
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from rl_training.errors import ClaimLost, ConfigError
from rl_training.experiment import files
from rl_training.memory import out_of_memory_kills
from rl_training.platforms import process_exists

CLAIMS = "claims"
_BEATS_PER_TIMEOUT = 6
# Seconds after which the time of the disk is read again.
_CLOCK_HOLDS = 10.0
# Seconds between two looks at a claim that is dated in the future.
WATCH_INTERVAL = 0.2


@dataclass(frozen=True)
class Owner:
    """A worker. `machine` identifies boot and process namespace; `started` distinguishes processes of one id."""

    host: str
    machine: str
    pid: int
    started: str
    token: str

    @classmethod
    def me(cls) -> Owner:
        pid = os.getpid()
        return cls(platform.node(), _machine(), pid, _started(pid), secrets.token_hex(8))

    @property
    def is_gone(self) -> bool:
        """Whether this is a process of this machine that has exited."""
        return self.machine == _machine() and not (process_exists(self.pid) and self.is_process(self.pid))

    def is_process(self, pid: int) -> bool:
        """Whether this is the process of this machine that now has the id `pid`."""
        return (self.machine, self.pid, self.started) == (_machine(), pid, _started(pid))


@cache
def _machine() -> str:
    """The host, its boot and its process namespace."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
    with contextlib.suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def _started(pid: int) -> str:
    """The start time of a process, in ticks of the kernel; empty if unknown, `dead` for a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "dead" if fields[0] in "ZX" else fields[19]


@dataclass(frozen=True)
class ClaimRecord:
    """A claim as stored on the disk. `owner` is None if the file is still empty, or damaged."""

    generation: int
    owner: Owner | None
    released: bool
    deaths: int  # owners in a row that died without progress
    progress: int  # of the group when it was claimed
    touched: float  # Unix seconds, by the disk's clock
    by_memory: int = 0  # of `deaths`, those during which the kernel killed a process for lack of memory
    kills: int = 0  # processes it had killed on the owner's machine when the group was claimed
    device_errors: int = 0  # owners in a row that lost their GPU without progress

    def is_free(self, now: float, timeout: float) -> bool:
        """Whether another worker may take over."""
        return self.released or (self.owner is not None and self.owner.is_gone) or now - self.touched > timeout

    def is_ahead(self, now: float, timeout: float) -> bool:
        """Whether it is dated in the future."""
        return self.touched - now > timeout

    def counts_now(self, me: Owner, progress: int) -> dict[str, int]:
        """`deaths`, `by_memory` and `device_errors` of the next claim."""
        if progress > self.progress:
            return {}
        if self.released:
            return {"device_errors": self.device_errors}
        here = self.owner is not None and self.owner.machine == me.machine
        by_memory = self.by_memory + (here and out_of_memory_kills() > self.kills)
        return {"deaths": self.deaths + 1, "by_memory": by_memory, "device_errors": self.device_errors}


def read_claim(study: Path, group: str, generation: int | None = None) -> ClaimRecord | None:
    """The newest claim of a group, or that of a `generation`; None if there is none."""
    folder = study / CLAIMS / group
    generation = _newest(folder) if generation is None else generation
    path = folder / f"{generation}.json"
    if generation == 0 or not path.exists():
        return None
    with path.open("rb") as file:
        touched = os.fstat(file.fileno()).st_mtime  # of the open file: a shared disk may cache an older time
        data = file.read()
    try:
        record = files.decode_json(data)
        owner = Owner(**record["owner"])
        later = ("by_memory", "kills", "device_errors")  # version 0.2 did not write them
        counts = (int(record.get(name, 0)) for name in later)
        return ClaimRecord(
            generation, owner, record["released"], int(record["deaths"]), int(record["progress"]), touched, *counts
        )
    except (ValueError, TypeError, KeyError):
        return ClaimRecord(generation, None, False, 0, -1, touched)


def _newest(folder: Path) -> int:
    """The highest generation. Lists the folder: a shared disk may cache missing names, but not listings."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - only names are needed, and this is called at each write
    except FileNotFoundError:
        return 0
    return max((int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdecimal()), default=0)


class Claim:
    """A group held by this worker until `release`; also a context manager."""

    def __init__(self, folder: Path, handle: int, record: ClaimRecord, timeout: float) -> None:
        self.record = record
        self._folder, self._handle = folder, handle
        self._end = threading.Event()
        self._interval = timeout / _BEATS_PER_TIMEOUT
        self._thread = threading.Thread(target=self._beat, name=f"claim {folder.name}", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        # The handle, unlike the path, always refers to this claim's own file.
        while not self._end.wait(self._interval):
            with contextlib.suppress(OSError):
                os.utime(self._handle)

    def check(self) -> None:
        """Raise `ClaimLost` if the group belongs to another worker now."""
        if (newest := _newest(self._folder)) != (own := self.record.generation):
            raise ClaimLost(
                f"{self._folder.name} was given to another worker (claim {newest}, this is {own}): this one showed "
                "no sign of life for too long"
            )

    def note_device_errors(self, count: int) -> None:
        """Set the number of owners in a row that lost their GPU; `release` writes it."""
        self.record = replace(self.record, device_errors=count)

    def release(self) -> None:
        """Release the claim."""
        if self._end.is_set():
            return
        self._end.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            _write(self._handle, replace(self.record, released=True))
        os.close(self._handle)

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class DiskClock:
    """The time of day by the clock of the disk, as machines that share a disk may disagree on it.

    It is read by touching a file, and again after a while; if the disk cannot be written to, it is this machine's
    time. The clock also remembers since when each claim has not moved.
    """

    def __init__(self, study: Path) -> None:
        self._probe = study / CLAIMS / f".clock-{secrets.token_hex(8)}"
        self._ahead, self._until = 0.0, -math.inf  # of the monotonic clock
        self._seen: dict[str, tuple[tuple[int, float], float]] = {}

    def now(self) -> float:
        if time.monotonic() > self._until:
            self._ahead = time.time() - time.monotonic()
            if not self._probe.parent.is_symlink():
                with contextlib.suppress(OSError):
                    self._probe.touch()
                    self._ahead = self._probe.stat().st_mtime - time.monotonic()
                    self._probe.unlink()
            self._until = time.monotonic() + _CLOCK_HOLDS
        return time.monotonic() + self._ahead

    def is_free(self, group: str, claim: ClaimRecord, timeout: float) -> bool:
        """Whether another worker may take over, by the claim's date or because it has not moved."""
        state, now = (claim.generation, claim.touched), time.monotonic()
        before, since = self._seen.get(group, (state, now))
        self._seen[group] = state, since if before == state else now
        return claim.is_free(self.now(), timeout) or now - self._seen[group][1] > timeout


def take(
    study: Path, group: str, me: Owner, timeout: float, *, progress: int = 0, clock: DiskClock | None = None
) -> Claim | None:
    """Claim a group; None if another worker holds it, or claims it at the same time.

    `progress` is any number that grows with the progress of the group; it determines whether an owner that died
    counts in `deaths`.
    """
    _require_no_link(study, group)
    old = read_claim(study, group)
    if old is not None and not (clock or DiskClock(study)).is_free(group, old, timeout):
        return None
    counts = {"deaths": 0} | ({} if old is None else old.counts_now(me, progress))
    generation = 1 if old is None else old.generation + 1
    path = study / CLAIMS / group / f"{generation}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return None
    kills = out_of_memory_kills()
    record = ClaimRecord(generation, me, False, progress=progress, touched=0.0, kills=kills, **counts)
    try:
        _write(handle, record)
        os.fsync(handle)
    except OSError:  # a full disk: the empty claim holds the group until it expires
        os.close(handle)
        raise
    return Claim(path.parent, handle, record, timeout)


def _require_no_link(study: Path, group: str) -> None:
    """Raise if a folder of claims is a link: in a study from elsewhere it could lead to any folder."""
    for place in (study / CLAIMS, study / CLAIMS / group):
        if place.is_symlink():
            raise ConfigError(f"{place}: a link, in which nothing is claimed; remove it if you trust this folder")


def held_claim(study: Path, group: str, timeout: float, clock: DiskClock) -> ClaimRecord | None:
    """The claim of the worker that holds a group; None if the group is free or its claim is dated in the future."""
    claim, now = read_claim(study, group), clock.now()
    return None if claim is None or claim.is_free(now, timeout) or claim.is_ahead(now, timeout) else claim


def is_ahead(study: Path, group: str, timeout: float, clock: DiskClock) -> bool:
    """Whether the claim of a group is dated in the future; a running owner corrects that at its next touch."""
    claim = read_claim(study, group)
    return claim is not None and claim.is_ahead(clock.now(), timeout)


def _write(handle: int, record: ClaimRecord) -> None:
    fields = {name: value for name, value in asdict(record).items() if name not in ("generation", "touched")}
    data = files.encode_json(fields)
    os.pwrite(handle, data.ljust(os.fstat(handle).st_size), 0)  # padded: a reader never sees two records mixed
