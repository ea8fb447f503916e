"""Training, checkpoints and resuming without POSIX, in a process whose POSIX modules and functions are removed.

This simulates Windows as far as another system allows: functions that this package calls are removed, those that
other libraries use are not. The lock uses Windows' interface on top of this system's lock.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rl_training.platforms import space_on_disk
from rl_training.study.packing import pack_study
from tests.bare import Bare
from tests.studies import study_in

BARE = """
import fcntl, importlib, os, select, shutil, signal, sys, types
import gymnasium, numpy, pydantic, safetensors.torch, tensorboard, torch, typer, yaml
import multiprocessing.connection, multiprocessing.spawn, subprocess, tempfile
from torch.utils.tensorboard import SummaryWriter

real = fcntl

def locking(handle, mode, count):
    assert os.lseek(handle, 0, os.SEEK_CUR) > 2**20  # beyond all bytes that are read
    try:
        real.flock(handle, real.LOCK_EX | real.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(13, "Permission denied") from None

sys.modules.update(msvcrt=types.SimpleNamespace(locking=locking, LK_NBLCK=2))
sys.modules.update(dict.fromkeys(["fcntl", "resource"]))  # None: importing it is a ModuleNotFoundError
gone = {
    os: "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK getuid killpg posix_fadvise posix_fallocate posix_spawn pread"
    " preadv pwrite register_at_fork sched_getaffinity sysconf sysconf_names",
    signal: "SIGHUP SIGKILL SIGUSR1 pthread_sigmask",
    select: "poll",
}
for module, names in gone.items():
    for name in names.split():
        delattr(module, name)
os.supports_follow_symlinks = os.supports_follow_symlinks - {os.link}
shutil._use_fd_functions = False  # as on Windows; with them, Python 3.13 needs O_NONBLOCK

from rl_training.errors import ConfigError, RunInUse
from rl_training import BC, SAC, Study, TransitionDataset, load

small = dict(hidden_sizes=[8], batch_size=8, eval_episodes=1, checkpoint_interval=30, seed=1)

def refused(call):
    try:
        call()
    except ConfigError as error:
        print(type(error).__name__, error)
    else:
        print("not refused")
"""


@pytest.fixture
def bare(loaded: Bare) -> Callable[[str, Path], list[str]]:
    def run(program: str, folder: Path) -> list[str]:
        done = loaded.run(BARE + program, cwd=folder)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_a_run_trains_saves_locks_and_goes_on_exactly(
    bare: Callable[[str, Path], list[str]], tmp_path: Path
) -> None:
    program = """
import json
from rl_training.experiment.runs import lock_run

whole = SAC("Pendulum-v1", learning_starts=20, **small).learn(total_timesteps=80)
model = SAC("Pendulum-v1", learning_starts=20, output_dir="other", **small)
run = model.learn(total_timesteps=50).run_dir
with lock_run(run):
    refused(lambda: load(run).resume(total_timesteps=80))
last = load(run).resume(total_timesteps=80)
print(*((one.checkpoint_path / "networks.safetensors").read_bytes() for one in (whole, last)), sep="\\n")
record = json.loads((run / "run.json").read_text())
print(record["exact_resume"], record["status"])
print(load(run).predict([1.0, 0.0, 0.0]).shape)
"""
    locked, whole, resumed, status, shape = bare(program, tmp_path)
    assert re.match(r"RunInUse .*: in use by process \d+;", locked)
    assert whole == resumed
    assert (status, shape) == ("True finished", "(1,)")


@pytest.mark.slow
def test_data_are_written_and_read(bare: Callable[[str, Path], list[str]], tmp_path: Path) -> None:
    program = """
import numpy as np
rng = np.random.default_rng(0)
columns = dict(observations=rng.normal(size=(60, 3)), actions=rng.uniform(-1, 1, (60, 1)))
columns |= dict(rewards=rng.normal(size=60), terminals=np.zeros(60, bool), timeouts=np.arange(1, 61) % 20 == 0)
np.savez("log.npz", **columns)
model = BC("Pendulum-v1", **small)
print(model.learn(total_timesteps=20, dataset="log.npz").metrics["global_step"])
refused(lambda: BC("Pendulum-v1", host_memory="1KB", **small).learn(total_timesteps=20, dataset="log.npz"))
"""
    steps, packed = bare(program, tmp_path)
    assert steps == "20"
    assert packed.startswith("MemoryLimitError")
    assert "packed files of rows need a POSIX system (Linux, macOS)" in packed


def test_what_needs_posix_is_refused_in_one_line(bare: Callable[[str, Path], list[str]], tmp_path: Path) -> None:
    program = """
online = dict(small, learning_starts=20, eval_interval=20)
refused(lambda: SAC("Pendulum-v1", environments="processes", **online).learn(total_timesteps=40))
refused(lambda: Study({"name": "s", "base": "sac/pendulum", "seeds": [0, 1]}).run())
"""
    processes, study = bare(program, tmp_path)
    system = "needs a POSIX system (Linux, macOS)"
    assert f"environments: processes {system}; set environments to local" in processes
    assert f"a study {system}; train its configurations one by one" in study


def test_a_packed_study_is_unpacked(bare: Callable[[str, Path], list[str]], tmp_path: Path) -> None:
    study = study_in(tmp_path)
    study.plan()
    pack_study(study.folder, tmp_path / "tiny.zip")
    program = """
from pathlib import Path
from rl_training.study.packing import unpack_study
print(*sorted(path.name for path in unpack_study(Path("tiny.zip"), Path("back")).iterdir()))
"""
    assert "plan.json" in bare(program, tmp_path)[0]


def test_space_without_blocks_is_the_size() -> None:
    stat: Any = SimpleNamespace(st_size=700)
    assert space_on_disk(stat) == 700
    stat.st_blocks = 8
    assert space_on_disk(stat) == 4096


@pytest.mark.slow
def test_every_module_can_be_imported(bare: Callable[[str, Path], list[str]], tmp_path: Path) -> None:
    """Unsupported functions raise when they are called, not when their module is imported."""
    program = """
import pathlib, pkgutil, rl_training
for found in pkgutil.walk_packages(rl_training.__path__, "rl_training."):
    try:
        importlib.import_module(found.name)
    except (ImportError, AttributeError) as error:
        print(found.name, error)
from rl_training.console.doctor import _lock
(place := pathlib.Path("lock")).touch()
_lock(place)
"""
    assert [line for line in bare(program, tmp_path) if not line.endswith("No module named 'ray'")] == []
