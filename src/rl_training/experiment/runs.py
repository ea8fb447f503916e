"""Run folders: one per run, never shared, never overwritten.

{env}__{algo}__s{seed}__{time}[__suffix]/
    config.yaml             as given          config.resolved.yaml    with all defaults
    command.txt             the command line
    run.json                versions, machine, device, status, timestamps
    metrics.csv   tb/       the log           checkpoints/   best/   earlier_best/ (not comparable)
    lock                    held by the process that trains here
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import platform
import re
import shlex
import stat
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Self

from rl_training.errors import CheckpointError, ConfigError, RunInUse
from rl_training.experiment import files
from rl_training.experiment.retention import EARLIER_BEST, list_checkpoints
from rl_training.experiment.strict_yaml import dump_yaml
from rl_training.platforms import after_fork, flags, lock
from rl_training.version import __version__

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig

RECORD = "run.json"
CONFIG = "config.yaml"
RESOLVED = "config.resolved.yaml"
DONE = ("finished", "stopped")
"""the statuses of a run that has ended as it should"""
_ATTEMPTS = 1_000
# Fields that this package reads; all others are for people.
_RECORD_TYPES: dict[str, Any] = {
    "algo": str,
    "env_id": (str, NoneType),
    "seed": (int, NoneType),
    "status": str,
    "versions": dict,
    "resumed": list,
}

_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | flags("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK")

_held: set[int] = set()


def _close_inherited_locks() -> None:
    """Close the locks in a forked process, which would otherwise keep them if it outlives its parent."""
    for handle in _held:
        with contextlib.suppress(OSError):
            os.close(handle)
    _held.clear()


after_fork(_close_inherited_locks)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def task_name(env_id: str | None, algo: str) -> str:
    """Environment and algorithm as the start of a folder name."""
    return f"{_plain_name(env_id) if env_id else 'no-env'}__{_plain_name(algo)}"


def _plain_name(text: str) -> str:
    """`text` as part of a folder name; `ALE/Pong-v5` becomes `ALE-Pong-v5`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "unnamed"


@functools.cache  # reading them parses the metadata of each package
def _package_versions() -> dict[str, str]:
    versions = {}
    for package in ("torch", "numpy", "gymnasium", "mujoco"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def machine_record() -> dict[str, Any]:
    """What bit-exact results of a CPU run depend on: versions, instruction set, library of products, threads."""
    import torch  # imported late: reading run folders does not need it

    from rl_training.processor import product_library

    versions = {"python": platform.python_version(), "rl_training": __version__}
    return {
        "versions": versions | _package_versions(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "products": product_library(),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
    }


def machine_changes(record: Mapping[str, Any], device: str) -> list[str]:
    """What affects bit-exact results and differs between a run's record and this process, one phrase each."""
    kind, before_kind = (str(name).partition(":")[0] for name in (device, record.get("device", "auto")))
    now = machine_record() | {"device": kind}
    # Earlier versions did not record the library of products, and of a resumed run not the device.
    before = {"products": "blas", **record, "device": kind if before_kind == "auto" else before_kind}
    parts = ("device", "cpu_capability", "products", "threads")
    old = before.get("versions", {}) | {name: before.get(name) for name in parts}
    new = now["versions"] | {name: now[name] for name in parts}
    return [f"{name} {old.get(name)} -> {value}" for name, value in new.items() if old.get(name) != value]


class RunDirectory:
    """A run folder, locked by this process until `close`; also a context manager. Use `create` or `open`."""

    def __init__(self, path: Path, fence: files.Fence = files.unfenced) -> None:
        self.path, self.fence = path, fence
        self.checkpoints = path / "checkpoints"
        self.best = path / "best"  # has the best checkpoint: best/step_…
        self.earlier_best = path / EARLIER_BEST  # numbered folders: see `retention.EARLIER_BEST`
        self.tensorboard, self.metrics_csv = path / "tb", path / "metrics.csv"
        self.status_before: str | None = None
        self._lock: int | None = None
        self._record: dict[str, Any] = {}

    @property
    def record(self) -> dict[str, Any]:
        """A copy of run.json."""
        return dict(self._record)

    @classmethod
    def create(
        cls,
        config: TrainConfig,
        resolved: Mapping[str, Any],
        suffix: str | None = None,
        text: str | None = None,
        path: Path | None = None,
        fence: files.Fence = files.unfenced,
    ) -> Self:
        """Create a new folder, lock it and write the configuration and run.json.

        `text`: the config file as the user wrote it. `path`: the folder (default: a name with the current time).
        """
        problem = f"output_dir {config.output_dir} cannot hold a run (choose another with --output-dir)"
        kind = functools.partial(ConfigError, key="output_dir")
        with files.os_errors(problem, kind):
            fence()
            run = cls(path or _make_unique(Path(config.output_dir), _name_now(config, suffix)), fence)
            if path is not None:
                path.mkdir(parents=True)
        with files.os_errors(problem, kind), run._locking():
            run._write(CONFIG, text if text is not None else dump_yaml(config.to_dict()))
            run._write(RESOLVED, dump_yaml(dict(resolved)))
            run._write("command.txt", shlex.join(sys.argv) + "\n")
            run.checkpoints.mkdir()
            run.update(
                schema=files.SCHEMA,
                algo=config.algo,
                env_id=config.env_id,
                seed=config.seed,
                device=config.device,
                status="running",
                exact_resume=None,
                created=_now(),
                resumed=[],
                **machine_record(),
            )
        return run

    @classmethod
    def open(cls, path: Path, fence: files.Fence = files.unfenced) -> Self:
        """Lock an existing run to resume it; its status becomes `running`."""
        read_run_record(path)  # before the lock, which would create a file in a folder that is not a run
        run = cls(path, fence)
        with files.os_errors(f"{path}: the run cannot be continued"), run._locking():
            run._record = read_run_record(path)
            run.status_before = run._record["status"]
            run.update(schema=files.SCHEMA, status="running", cause=None, resumed=[*run._record["resumed"], _now()])
        return run

    @contextlib.contextmanager
    def _locking(self) -> Iterator[None]:
        """Take the lock; release it if the block raises."""
        self._lock = _acquire(self.path)
        try:
            yield
        except BaseException:
            self.close()
            raise

    def reconfigure(self, config: TrainConfig, resolved: Mapping[str, Any]) -> None:
        """Write the settings, versions and CPU settings of a resumed run."""
        with files.os_errors(f"{self.path}: the run cannot be continued"):
            self._write(RESOLVED, dump_yaml(dict(resolved)))
            self.update(env_id=config.env_id, seed=config.seed, **machine_record())

    def update(self, **fields: Any) -> None:
        """Merge fields into run.json, atomically."""
        merged = {**self._record, **fields, "pid": os.getpid(), "updated": _now()}
        files.replace_atomically(self.path / RECORD, files.encode_json(merged), self.fence)
        self._record = merged

    def _write(self, name: str, text: str) -> None:
        files.replace_atomically(self.path / name, text.encode(), self.fence)

    def close(self) -> None:
        """Release the lock; the folder stays."""
        if self._lock is not None:
            _held.discard(self._lock)
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_run_record(path: Path) -> dict[str, Any]:
    """Read run.json of a run folder without locking it."""
    if not (path / RECORD).is_file():
        raise ConfigError(f"{path}: not a run folder (it has no {RECORD})")
    with files.os_errors(f"{path / RECORD}: cannot be read"):
        data = (path / RECORD).read_bytes()
    return parse_run_record(data, str(path / RECORD))


def parse_run_record(data: bytes, place: str) -> dict[str, Any]:
    """Parse the contents of a run.json; `place` is its name in error messages."""
    try:
        record = files.decode_json(data)
    except ValueError as error:
        raise CheckpointError(f"{place}: damaged: {error}") from None
    if not isinstance(record, dict):
        raise CheckpointError(f"{place}: damaged: expected a mapping")
    for name, kinds in _RECORD_TYPES.items():
        if not isinstance(record.get(name), kinds):
            raise CheckpointError(f"{place}: damaged: {name} is {record.get(name)!r}")
    return record


@contextlib.contextmanager
def lock_run(path: Path) -> Iterator[None]:
    """Lock a run folder during the block without resuming the run."""
    handle = _acquire(path)
    try:
        yield
    finally:
        _held.discard(handle)
        os.close(handle)


def note_pruned(path: Path) -> None:
    """Record in run.json that the run's checkpoints were pruned."""
    amend_record(path, pruned=_now())


def amend_record(path: Path, **fields: Any) -> None:
    """Merge fields into run.json of a run that is not being trained."""
    files.replace_atomically(path / RECORD, files.encode_json({**read_run_record(path), **fields}))


def end_of(record: Mapping[str, Any], unknown: int) -> int | None:
    """The step at which a run ended by itself; None if it was interrupted or killed.

    `unknown` is returned for records of older versions, which do not contain the step.
    """
    if record["status"] not in (*DONE, "failed", "diverged"):
        return None
    step = record.get("ended_at")
    return step if isinstance(step, int) else unknown


def results_of(path: Path, record: Mapping[str, Any]) -> str:
    """Why a run without checkpoints still has results, in words; empty if it has none."""
    if record.get("pruned"):
        return "its checkpoints were deleted"
    if record["status"] in DONE:
        return f"it is {record['status']}"
    if list_checkpoints(path / "best"):
        return "it has a best policy"
    if record.get("saved"):
        return "its checkpoints were deleted"
    return ""


def _name_now(config: TrainConfig, suffix: str | None) -> str:
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    name = f"{task_name(config.env_id, config.algo)}__s{config.seed}__{stamp}"
    return name + (f"__{_plain_name(suffix)}" if suffix else "")


def _make_unique(parent: Path, name: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, _ATTEMPTS):
        path = parent / (name if attempt == 1 else f"{name}_{attempt}")
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
    raise FileExistsError(None, f"{name} exists {_ATTEMPTS} times")


def _strange_lock(path: Path) -> ConfigError:
    return ConfigError(f"{path / 'lock'}: not a regular file; remove it if you trust this folder")


def _acquire(path: Path) -> int:
    """Take the folder's lock, which the kernel releases when this process ends.

    A symbolic link is not followed: in a folder from elsewhere it could point to any of the user's files.
    """
    try:
        handle = os.open(path / "lock", _LOCK_FLAGS, 0o644)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise _strange_lock(path) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _strange_lock(path)
    try:
        lock(handle)
    except BlockingIOError:
        holder = os.read(handle, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(handle)
        raise RunInUse(
            f"{path}: in use by process {holder}; wait for it to end, or start a run of your own"
        ) from None
    except OSError:
        os.close(handle)
        raise
    os.ftruncate(handle, 0)
    os.write(handle, f"{os.getpid()}\n".encode())
    _held.add(handle)
    return handle
