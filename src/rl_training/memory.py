"""What this process may still take, inside containers too: memory and cores; keeping freed memory for reuse."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# What a version 1 hierarchy reports when nobody set a limit is close to 2**63; no machine has that much.
_NO_LIMIT = 1 << 60
# glibc's parameters of `mallopt`, and the sizes up to which freed blocks stay with the process.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BLOCK, _KEPT_IN_ALL = 32 << 20, 512 << 20


def available_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can be allocated without swapping or being killed.

    The smallest of what the kernel calls available and what each control group (version 1 or 2) above this
    process still allows; file cache that the kernel would give back counts as free.
    """
    return max(0, min(_machine(proc), *_rooms(proc, cgroups), _NO_LIMIT))


def available_cores(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores that this process may use: those it may run on, or as many as its CPU quota is worth.

    The quota is that of the tightest control group (version 1 or 2) above this process, rounded to whole cores.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *(int(quota + 0.5) for quota in _quotas(proc, cgroups))]))


def out_of_memory_kills(proc: Path = Path("/proc")) -> int:
    """The number of processes that the kernel's out-of-memory killer has ended since the machine started; 0 if it
    is not known."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (proc / "vmstat").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
    return 0


def room_on_gpu(device: torch.device) -> int:
    """Bytes that rows may take on a GPU: a fifth of what is free is left to networks and graphs."""
    import torch  # here, so that what reads folders need not wait for it

    return int(0.8 * torch.cuda.mem_get_info(device)[0])


def keep_freed_memory() -> None:
    """Let the C library keep freed blocks for the next update instead of returning them to the system.

    Activations of a few megabytes would otherwise be mapped, zeroed page by page and unmapped again within every
    update. Only glibc has the knob; elsewhere nothing happens.
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
    """The control groups of this process that may limit what `controller` controls: version and folder."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            version, root = 2, cgroups
        elif controller in controllers.split(","):
            together = cgroups / controllers  # `cpu,cpuacct`, to which `cpu` is a link on most systems
            version, root = 1, together if together.is_dir() else cgroups / controller
        else:
            continue
        # A limit holds for everything below it. A container often sees its own group as the root, where the
        # path of the host does not exist, so the root is always looked at.
        group = root / path.lstrip("/")
        for folder in (group, *(p for p in group.parents if p == root or root in p.parents)):
            yield version, folder


def _quotas(proc: Path, cgroups: Path) -> Iterator[float]:
    """CPU time per time on the wall that each control group allows, where it has a limit."""
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
    """Bytes that each control group still allows, where it has a limit."""
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
