"""`rl-training doctor`: check that the machine has what a run needs."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import gymnasium as gym
import torch

from rl_training.environments.filming import NO_BACKEND, drawing_backend, has_display
from rl_training.environments.mujoco_batch import batch_class, supports
from rl_training.experiment.files import write_durably
from rl_training.memory import available_cores, available_memory, busy_note, human_bytes
from rl_training.ogbench import PREFIX, registered_id
from rl_training.platforms import lock
from rl_training.processor import BLAS, product_library
from rl_training.updates.updater import COMPILERS
from rl_training.version import __version__

State = Literal["ok", "note", "broken"]

_CORE = ("torch", "numpy", "gymnasium", "pydantic", "typer", "rich", "safetensors", "PyYAML", "tensorboard")
# Packages of each extra; "a|b" means that either package is enough.
_EXTRAS = {
    "mujoco": ("mujoco", "imageio"),
    "box2d": ("box2d|box2d-py", "pygame-ce|pygame"),
    "ogbench": ("ogbench", "dm-control", "mujoco", "imageio"),
    "offline": ("h5py", "minari", "pillow"),
    "video": ("imageio-ffmpeg", "pygame-ce|pygame"),
    "wandb": ("wandb",),
    "tune": ("optuna",),
    "report": ("matplotlib", "scipy", "jinja2"),
    "ray": ("ray",),
    "export": ("onnx", "onnxruntime"),
}
_LITTLE_DISK = 2**30


@dataclass(frozen=True)
class Finding:
    """Result of one check; `broken`: runs cannot work; `note`: something optional is missing."""

    state: State
    subject: str
    text: str


def examine(output_dir: Path = Path("runs")) -> list[Finding]:
    """Run all checks, the basic ones first; temporary files in `output_dir` are removed."""
    return [
        *versions(),
        *device(),
        _stepped("environments", "Pendulum-v1", "reinstall gymnasium"),
        *mujoco(),
        *box2d(),
        *ogbench(),
        rendering(),
        compiler(),
        Finding("ok", "memory", f"{human_bytes(available_memory())} available"),
        *disk(output_dir),
        *extras(),
    ]


def versions() -> Iterator[Finding]:
    """Versions of this package, Python, and the packages that every run imports."""
    yield Finding("ok", "rl_training", __version__)
    yield Finding("ok", "python", f"{platform.python_version()} ({sys.executable})")
    for package in _CORE:
        yield Finding("ok", package, metadata.version(package))


def device() -> Iterator[Finding]:
    """The processor, and the GPUs torch can use."""
    capability = torch.backends.cpu.get_cpu_capability()
    count, usable = os.cpu_count() or 1, available_cores()
    limit = f" ({usable} usable: CPU quota or affinity)" if usable < count else ""
    library = "" if product_library() == BLAS else ", products by oneDNN"
    threads = f"torch uses {torch.get_num_threads()} threads"
    yield Finding("ok", "cpu", f"{count} cores{limit}, {threads}, {capability}{library}")
    if busy := busy_note():
        yield Finding("note", "busy", busy)
    if not torch.cuda.is_available():
        build = f"CUDA {torch.version.cuda}, no device found" if torch.version.cuda else "this torch is a CPU build"
        yield Finding("ok", "cuda", f"none: device auto is the CPU ({build})")
        return
    for index in range(torch.cuda.device_count()):
        name = f"cuda:{index}"
        try:
            torch.ones(8, 8, device=name).mm(torch.ones(8, 8, device=name)).sum().item()
            free, total = torch.cuda.mem_get_info(index)
        except RuntimeError as error:
            yield Finding("broken", name, f"does not compute: {error}; check the driver, or use device: cpu")
        else:
            memory_text = f"{human_bytes(free)} of {human_bytes(total)} free"
            yield Finding(
                "ok", name, f"{torch.cuda.get_device_name(index)}, CUDA {torch.version.cuda}, {memory_text}"
            )


def mujoco() -> Iterator[Finding]:
    """Check that both distributions of MuJoCo have the same version (an upgrade can miss one), and step Hopper."""
    version, core = _version("mujoco"), _version("mujoco-core")
    if version is None:
        return
    remedy = "pip install --force-reinstall --no-deps mujoco mujoco-core"
    if core is not None and core != version:
        yield Finding("broken", "mujoco", f"{version}, but mujoco-core is {core}; {remedy}")
    elif not _missing("mujoco"):  # Gymnasium's environments need the whole extra; `extras` reports what is missing
        yield (hopper := _stepped("mujoco", "Hopper-v5", remedy))
        if hopper.state == "ok":
            yield _batched()


def _batched() -> Finding:
    """Whether several MuJoCo environments are stepped in one call."""
    if batch_class() is None:
        text = "no mujoco.batch: environments are stepped one by one; pip install 'mujoco>=3.17'"
    elif not supports("Hopper-v5", {}):
        text = f"not with gymnasium {_version('gymnasium')}: environments are stepped one by one"
    else:
        return Finding("ok", "mujoco.batch", "several environments are stepped in one call")
    return Finding("note", "mujoco.batch", text)


def box2d() -> Iterator[Finding]:
    """Step LunarLander if the extra `box2d` is installed."""
    if not _missing("box2d"):
        yield _stepped("box2d", "LunarLander-v3", "pip install 'gymnasium[box2d]'")


def ogbench() -> Iterator[Finding]:
    """Step a task of OGBench, if it is installed."""
    if _version("ogbench") is not None:
        yield _stepped("ogbench", f"{PREFIX}cube-single-singletask-task1-v0", "reinstall ogbench")


def rendering() -> Finding:
    """The backend MuJoCo renders with; only videos need it."""
    backend = drawing_backend()
    if backend is None:
        return Finding("note", "rendering", NO_BACKEND)
    if os.environ.get("MUJOCO_GL"):
        return Finding("ok", "rendering", f"MUJOCO_GL={backend}")
    if has_display():
        return Finding("ok", "rendering", "MUJOCO_GL is not set: the display is used")
    return Finding("ok", "rendering", f"no display: MuJoCo renders with {backend}")


def compiler() -> Finding:
    """torch.compile needs a C compiler."""
    found = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if found is None:
        return Finding("note", "compiler", "none: acceleration: compile runs without compiling; install gcc")
    return Finding("ok", "compiler", f"{found}, for acceleration: compile")


def disk(output_dir: Path) -> Iterator[Finding]:
    """Check durable writes, hard links and file locks, in a temporary folder."""
    absolute = output_dir.absolute()
    parent = next(folder for folder in (absolute, *absolute.parents) if folder.exists())
    try:
        folder = Path(tempfile.mkdtemp(prefix=".tmp-doctor-", dir=parent))
    except OSError as error:
        problem = f"{output_dir} cannot be written ({error.strerror}); choose another with --output-dir"
        yield Finding("broken", "output folder", problem)
        return
    try:
        free = shutil.disk_usage(parent).free
        little = "; checkpoints may not fit" if free < _LITTLE_DISK else ""
        yield Finding("note" if little else "ok", "disk", f"{human_bytes(free)} free for {output_dir}{little}")
        file = folder / "probe"
        yield _probe("durable writes", lambda: write_durably(file, b"x"), "broken", "fsync fails")
        if file.exists():
            copies = "unchanged replay data are written again at each checkpoint"
            yield _probe("hard links", lambda: (folder / "link").hardlink_to(file), "note", copies)
            yield _probe("file locks", lambda: _lock(file), "broken", "two runs could share a folder")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def extras() -> Iterator[Finding]:
    """Optional packages, and the command that installs them."""
    for extra, packages in _EXTRAS.items():
        if missing := _missing(extra):
            text = f"missing {', '.join(missing)}; pip install {' '.join(missing)}"
            yield Finding("note", f"extra {extra}", text)
        else:
            yield Finding("ok", f"extra {extra}", ", ".join(str(_installed(p)) for p in packages))


def _missing(extra: str) -> list[str]:
    return [packages.split("|")[0] for packages in _EXTRAS[extra] if _installed(packages) is None]


def _installed(packages: str) -> str | None:
    """Name and version of the first installed package of `packages`."""
    found = ((package, _version(package)) for package in packages.split("|"))
    return next((f"{package} {version}" for package, version in found if version is not None), None)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _stepped(subject: str, env_id: str, remedy: str) -> Finding:
    problem = _step(env_id)
    if problem:
        return Finding("broken", subject, f"{env_id} fails: {problem}; {remedy}")
    return Finding("ok", subject, f"{env_id} steps")


def _step(env_id: str) -> str:
    """Reset and step an environment; return the error, or an empty text."""
    try:
        env = gym.make(registered_id(env_id))
        try:
            env.reset(seed=0)
            env.step(env.action_space.sample())
        finally:
            env.close()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _probe(subject: str, attempt: Callable[[], object], otherwise: State, consequence: str) -> Finding:
    try:
        attempt()
    except OSError as error:
        return Finding(otherwise, subject, f"not supported here ({error.strerror}): {consequence}")
    return Finding("ok", subject, "supported")


def _lock(path: Path) -> None:
    with path.open("rb") as file:
        lock(file.fileno())
