"""Free memory as a container sees it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rl_training.errors import MemoryLimitError
from rl_training.experiment.config import TrainConfig
from rl_training.memory import available_cores, available_memory, human_bytes, out_of_memory_kills
from rl_training.runs import building

MIB = 2**20


def machine(tmp_path: Path, cgroup: str, files: dict[str, str]) -> dict[str, Path]:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 2048 kB\nMemAvailable: 1048576 kB\n")
    (proc / "self" / "cgroup").write_text(cgroup)
    for name, text in files.items():
        (cgroups / name).parent.mkdir(parents=True, exist_ok=True)
        (cgroups / name).write_text(text)
    return {"proc": proc, "cgroups": cgroups}


def test_without_limits_it_is_what_the_kernel_has(tmp_path):
    assert available_memory(**machine(tmp_path, "0::/\n", {"memory.max": "max\n"})) == 1024 * MIB


def test_the_tightest_group_above_the_process_counts(tmp_path):
    files = {
        "outer/memory.max": str(200 * MIB),
        "outer/memory.current": str(150 * MIB),
        "outer/memory.stat": f"anon 5\ninactive_file {10 * MIB}\n",
        "outer/inner/memory.max": "max\n",
        "outer/inner/memory.current": "1",
        "outer/inner/memory.stat": "anon 5\n",
    }
    assert available_memory(**machine(tmp_path, "0::/outer/inner\n", files)) == 60 * MIB


def test_version_one_groups_count_too_and_their_lack_of_a_limit_does_not(tmp_path):
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/memory.usage_in_bytes": "0",
        "memory/memory.stat": "cache 0\n",
        "memory/job/memory.limit_in_bytes": str(50 * MIB),
        "memory/job/memory.usage_in_bytes": str(20 * MIB),
        "memory/job/memory.stat": f"total_inactive_file {MIB}\n",
    }
    assert available_memory(**machine(tmp_path, "4:cpu,memory:/job\n0::/\n", files)) == 31 * MIB


def test_a_container_that_sees_only_its_own_root_is_limited_by_it(tmp_path):
    files = {"memory.max": str(30 * MIB), "memory.current": "0", "memory.stat": ""}
    assert available_memory(**machine(tmp_path, "0::/docker/abc\n", files)) == 30 * MIB


def test_a_group_over_its_limit_has_nothing_left(tmp_path):
    files = {"memory.max": "5", "memory.current": "9", "memory.stat": ""}
    assert available_memory(**machine(tmp_path, "0::/\n", files)) == 0


@pytest.mark.parametrize(
    ("cgroup", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, 64),
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/docker/abc\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/outer/inner\n", {"outer/cpu.max": "160000 100000\n", "outer/inner/cpu.max": "max 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "9900000 100000\n"}, 64),
        ("0::/\n", {"cpu.max": "nonsense\n"}, 64),
        ("2:cpu,cpuacct:/job\n", {"cpu/job/cpu.cfs_quota_us": "300000", "cpu/job/cpu.cfs_period_us": "100000"}, 3),
        ("2:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
        (
            "2:cpu,cpuacct:/\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "120000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            1,
        ),
        ("2:cpuset:/\n", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 64),
    ],
)
def test_cores_are_those_that_the_cpu_quota_is_worth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert available_cores(**machine(tmp_path, cgroup, files)) == cores


def test_training_uses_no_more_threads_than_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(building, "available_cores", lambda: 2)
    monkeypatch.setattr(building.torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(building.torch, "set_num_threads", used.append)
    building.prepare_process(torch.device("cpu"))
    assert used == [2]


def test_this_machine_has_some():
    assert 2**20 < available_memory() < 2**50


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (3 * 2**40, "3.0 TiB")])
def test_bytes_are_readable(count, text):
    assert human_bytes(count) == text


def page_faults(preparation: str) -> int:
    """Page faults while blocks of the size of an update are repeatedly allocated and freed."""
    program = f"""
import resource
import numpy as np
from rl_training.memory import keep_freed_memory
{preparation}
def take_and_free():
    blocks = [np.ones(1 << 20) for _ in range(8)]  # 8 MiB each
take_and_free()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    take_and_free()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the knob")
def test_freed_memory_stays_with_the_process():
    assert page_faults("keep_freed_memory()") < page_faults("") / 10


def test_environments_that_cannot_fit_are_refused_before_the_first_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def config(num_envs: int, *, processes: bool = False) -> TrainConfig:
        return TrainConfig(
            algo="sac", env_id="Pendulum-v1", total_timesteps=9, num_envs=num_envs, env_processes=processes
        )

    monkeypatch.setattr(building, "available_memory", lambda: 2**30)
    with pytest.raises(MemoryLimitError, match=r"^num_envs 1000000 is too many: .* 1\.0 GiB .*; at most 262144$"):
        building.require_room_for_environments(config(1_000_000))
    with pytest.raises(MemoryLimitError, match=r"^num_envs 100 is too many: .*; at most 25$"):
        building.require_room_for_environments(config(100, processes=True))
    monkeypatch.setattr(building.resource, "getrlimit", lambda _: (8, 8))
    with pytest.raises(MemoryLimitError, match="this user may have 8 processes"):
        building.require_room_for_environments(config(9, processes=True))
    building.require_room_for_environments(config(200_000))


def test_kills_of_the_kernel_are_counted(tmp_path: Path) -> None:
    assert out_of_memory_kills(tmp_path) == 0
    (tmp_path / "vmstat").write_text("nr_free_pages 9\noom_kill 3\noom_kill_other 7\n")
    assert out_of_memory_kills(tmp_path) == 3
