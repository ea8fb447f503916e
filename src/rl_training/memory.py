"""Memory and CPU cores available to this process, also inside containers; allocator settings."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Without a limit, a version 1 hierarchy reports a number close to 2**63.
_NO_LIMIT = 1 << 60
# Parameters of glibc's `mallopt`, and the sizes up to which the process keeps freed blocks.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BLOCK, _KEPT_IN_ALL = 32 << 20, 512 << 20


def available_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can be allocated without swapping or being killed.

    This is the minimum of the kernel's available memory and the remaining allowance of each control group (version
    1 or 2) that contains this process. Reclaimable file cache counts as free.
    """
    return max(0, min(_machine(proc), *_rooms(proc, cgroups), _NO_LIMIT))


def available_cores(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Number of cores that this process may use: its CPU affinity, limited by its CPU quota.

    The quota is the smallest of the control groups (version 1 or 2) that contain this process, in whole cores.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *(int(quota + 0.5) for quota in _quotas(proc, cgroups))]))


def busy_note() -> str | None:
    """A remedy for a busy machine: torch's threads spin while they wait, so shared cores slow updates down."""
    import torch  # imported late: reading run folders does not need it

    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    if (threads := torch.get_num_threads()) > 1 and load + threads > cores + 1:
        return (
            f"a load of {load:.1f} on {cores} cores: set OMP_NUM_THREADS=1; on shared cores several "
            "threads can make updates ten times slower"
        )
    return None


def out_of_memory_kills(proc: Path = Path("/proc")) -> int:
    """Number of processes that the kernel's out-of-memory killer has killed since boot; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (proc / "vmstat").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
    return 0


def room_on_gpu(device: torch.device) -> int:
    """Bytes that rows may use on a GPU: 80 % of the free memory; the rest is left to networks and graphs."""
    import torch  # imported late: reading run folders does not need it

    return int(0.8 * torch.cuda.mem_get_info(device)[0])


def keep_freed_memory() -> None:
    """Make the C library keep freed blocks for the next update instead of returning them to the system.

    Otherwise activations of a few megabytes are mapped, zeroed and unmapped in every update. Affects glibc only.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BLOCK)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_IN_ALL)


def human_bytes(count: float) -> str:
    """`1536` as `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _machine(proc: Path) -> int:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    names = getattr(os, "sysconf_names", {})
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in names else "SC_PHYS_PAGES"
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE") if pages in names else _NO_LIMIT


def _groups(proc: Path, cgroups: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """Version and folder of each control group that may limit `controller` (`cpu`, `memory`) for this process."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            version, root = 2, cgroups
        elif controller in controllers.split(","):
            joint = cgroups / controllers  # `cpu,cpuacct`; on most systems `cpu` is a link to it
            version, root = 1, joint if joint.is_dir() else cgroups / controller
        else:
            continue
        # A limit applies to all groups below it. A container often sees its own group as the root, in which the
        # host's path does not exist, so the root is always included.
        group = root / path.lstrip("/")
        for folder in (group, *(p for p in group.parents if p == root or root in p.parents)):
            yield version, folder


def _quotas(proc: Path, cgroups: Path) -> Iterator[float]:
    """CPU seconds per second that each control group with a limit allows."""
    for version, folder in _groups(proc, cgroups, "cpu"):
        try:
            if version == 2:
                quota, period = map(int, (folder / "cpu.max").read_text().split())
            else:
                quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        except (OSError, ValueError):  # no such group here, or "max": no limit
            continue
        if quota > 0 and period > 0:  # version 1 writes -1 for no limit
            yield quota / period


def _rooms(proc: Path, cgroups: Path) -> Iterator[int]:
    """Bytes that each control group with a limit still allows."""
    for version, folder in _groups(proc, cgroups, "memory"):
        if version == 2:
            room = _room(folder, "memory.max", "memory.current", "inactive_file")
        else:
            room = _room(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        if room is not None:
            yield room


def _room(folder: Path, limit: str, usage: str, cache: str) -> int | None:
    try:
        total = int((folder / limit).read_text())
        used = int((folder / usage).read_text())
        stat = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group here, or "max": no limit
        return None
    return None if total >= _NO_LIMIT else total - used + int(stat.get(cache, 0))
