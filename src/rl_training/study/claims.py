"""Claims: which worker a group of trials belongs to, on one machine or on any that share the disk.

A claim is a file `claims/GROUP/N.json`, made by exclusive creation; the highest number N, the generation, is the
owner's. Nobody ever deletes or renames one: taking over means creating N + 1, which exactly one of many can do. The
owner touches its own file every sixth of `claim_timeout`. A claim may be taken over when its owner

- has released it (the trials ended, or a signal ended the worker),
- is a process of this machine that is gone, at once, or
- has given no sign of life for `claim_timeout` seconds, by the clock of the disk, or has not moved for that long as
  this process saw it: a file that is dated in the future, because a clock was wrong, would otherwise hold its group
  until then.

The last may be a process that only stalled (a suspended laptop, SIGSTOP, a disk that hung) and wakes up. Therefore
`Claim.check` is the fence of its runs: asked before each rename that commits a checkpoint, run.json or metrics.csv,
it raises `ClaimLost` as soon as a later generation exists. What remains is the moment between that question and the
rename. A checkpoint that slips through it is whole, and to the bit what the new owner writes at that step; run.json
is written again by the new owner, at the latest when the run ends; rows appended to metrics.csv go to a file that
the new owner has replaced.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import secrets
import threading
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from rl_training.errors import ClaimLost, ConfigError
from rl_training.experiment import files
from rl_training.memory import out_of_memory_kills

CLAIMS = "claims"
_BEATS_PER_TIMEOUT = 6
# Seconds after which the disk is asked for its time again.
_CLOCK_HOLDS = 10.0
# Seconds between two looks at a claim that is dated in the future.
WATCH_INTERVAL = 0.2


@dataclass(frozen=True)
class Owner:
    """A worker; `machine` tells boots and process namespaces apart, `started` processes of one id."""

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
        """Whether this is a process of this machine that has ended."""
        if self.machine != _machine():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return self.started != _started(self.pid)


@cache
def _machine() -> str:
    """This machine since its last start, and the space in which process numbers mean the same."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
    with contextlib.suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def _started(pid: int) -> str:
    """When a process started, in the kernel's ticks; empty where that cannot be known, `dead` for a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "dead" if fields[0] in "ZX" else fields[19]


@dataclass(frozen=True)
class ClaimRecord:
    """A claim as it stands on the disk. `owner` is None while the file is still empty, or damaged."""

    generation: int
    owner: Owner | None
    released: bool
    deaths: int  # owners in a row that died without getting any further
    progress: int  # what the group had reached when it was claimed
    touched: float  # Unix seconds, by the disk's clock
    by_memory: int = 0  # of `deaths`, those during which the kernel ended a process for want of memory
    kills: int = 0  # how many it had ended on the owner's machine when the group was claimed

    def is_free(self, now: float, timeout: float) -> bool:
        """Whether another worker may take over."""
        return self.released or (self.owner is not None and self.owner.is_gone) or now - self.touched > timeout

    def is_ahead(self, now: float, timeout: float) -> bool:
        """Whether it is dated in the future."""
        return self.touched - now > timeout

    def deaths_now(self, me: Owner, progress: int) -> tuple[int, int]:
        """`deaths` and `by_memory` of the next claim."""
        if self.released or progress > self.progress:
            return 0, 0
        here = self.owner is not None and self.owner.machine == me.machine
        return self.deaths + 1, self.by_memory + (here and out_of_memory_kills() > self.kills)


def read_claim(study: Path, group: str) -> ClaimRecord | None:
    """The newest claim of a group; None where there never was one."""
    folder = study / CLAIMS / group
    generation = _newest(folder)
    if generation == 0:
        return None
    with (folder / f"{generation}.json").open("rb") as file:
        touched = os.fstat(file.fileno()).st_mtime  # of an open file: a shared disk may remember an older time
        data = file.read()
    try:
        record = files.decode_json(data)
        owner = Owner(**record["owner"])
        counts = (int(record.get(name, 0)) for name in ("by_memory", "kills"))  # version 0.2 wrote neither
        return ClaimRecord(
            generation, owner, record["released"], int(record["deaths"]), int(record["progress"]), touched, *counts
        )
    except (ValueError, TypeError, KeyError):
        return ClaimRecord(generation, None, False, 0, -1, touched)


def _newest(folder: Path) -> int:
    """The highest generation there is. The folder is listed, because a shared disk may remember that a name was not
    there, but not what a folder held."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names are all that is needed, and this is asked at each write
    except FileNotFoundError:
        return 0
    return max((int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdecimal()), default=0)


class Claim:
    """A group held by this worker until `release`; also a context manager."""

    def __init__(self, path: Path, generation: int, handle: int, record: ClaimRecord, timeout: float) -> None:
        self.record = record
        self._folder, self._generation, self._handle = path.parent, generation, handle
        self._end = threading.Event()
        self._interval = timeout / _BEATS_PER_TIMEOUT
        self._thread = threading.Thread(target=self._beat, name=f"claim {path.parent.name}", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        # The handle, not the path: it stays this claim's own file, whatever else has happened.
        while not self._end.wait(self._interval):
            with contextlib.suppress(OSError):
                os.utime(self._handle)

    def check(self) -> None:
        """Raise `ClaimLost` if the group belongs to another worker now."""
        if (newest := _newest(self._folder)) != self._generation:
            raise ClaimLost(
                f"{self._folder.name} was given to another worker (claim {newest}, this is {self._generation}): "
                "this one showed no sign of life for too long"
            )

    def release(self) -> None:
        """Let others have the group, or what remains of it, at once."""
        if self._end.is_set():
            return
        self._end.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            _write(self._handle, ClaimRecord(**{**vars(self.record), "released": True}))
        os.close(self._handle)

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class DiskClock:
    """The time of day by the disk: machines that share one need not agree on it.

    Looked up by touching a file, and again after a while; this machine's own time if the disk cannot be written to.
    It also remembers since when each claim has not moved.
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
        """Whether another worker may take the group over, by its date or because its claim has not moved."""
        state, now = (claim.generation, claim.touched), time.monotonic()
        before, since = self._seen.get(group, (state, now))
        self._seen[group] = state, since if before == state else now
        return claim.is_free(self.now(), timeout) or now - self._seen[group][1] > timeout


def take(
    study: Path, group: str, me: Owner, timeout: float, *, progress: int = 0, clock: DiskClock | None = None
) -> Claim | None:
    """Claim a group that is free; None where somebody has it, or was quicker.

    `progress` is any number that grows while the group gets on: by it a claim knows how many owners in a row died
    without effect.
    """
    _require_no_link(study, group)
    old = read_claim(study, group)
    if old is not None and not (clock or DiskClock(study)).is_free(group, old, timeout):
        return None
    deaths, by_memory = (0, 0) if old is None else old.deaths_now(me, progress)
    generation = 1 if old is None else old.generation + 1
    path = study / CLAIMS / group / f"{generation}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return None
    record = ClaimRecord(generation, me, False, deaths, progress, 0.0, by_memory, out_of_memory_kills())
    try:
        _write(handle, record)
        os.fsync(handle)
    except OSError:  # a full disk: the empty claim counts until it is old
        os.close(handle)
        raise
    return Claim(path, generation, handle, record, timeout)


def _require_no_link(study: Path, group: str) -> None:
    """A link in a folder from elsewhere could lead to any folder of ours."""
    for place in (study / CLAIMS, study / CLAIMS / group):
        if place.is_symlink():
            raise ConfigError(f"{place}: a link, in which nothing is claimed; remove it if you trust this folder")


def held_claim(study: Path, group: str, timeout: float, clock: DiskClock) -> ClaimRecord | None:
    """The claim by which a worker holds a group now; None if the group is free or its claim is dated in the
    future."""
    claim, now = read_claim(study, group), clock.now()
    return None if claim is None or claim.is_free(now, timeout) or claim.is_ahead(now, timeout) else claim


def is_ahead(study: Path, group: str, timeout: float, clock: DiskClock) -> bool:
    """Whether the claim of a group is dated in the future; an owner that still touches it soon corrects that."""
    claim = read_claim(study, group)
    return claim is not None and claim.is_ahead(clock.now(), timeout)


def _write(handle: int, record: ClaimRecord) -> None:
    fields = {name: value for name, value in asdict(record).items() if name not in ("generation", "touched")}
    data = files.encode_json(fields)
    os.pwrite(handle, data.ljust(os.fstat(handle).st_size), 0)  # padded: a reader never sees two records mixed


def previous_owner(study: Path, group: str, generation: int) -> Owner | None:
    """Who had the group before."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        return Owner(**files.decode_json((study / CLAIMS / group / f"{generation - 1}.json").read_bytes())["owner"])
    return None
