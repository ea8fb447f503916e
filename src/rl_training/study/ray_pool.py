"""A study's workers as tasks of a Ray cluster.

A task starts `rl-training work FOLDER` as a child of the Ray worker that runs it, and waits for it. The child works
as on one machine: signals reach its main thread, its number of threads is set before torch is imported, its log is
in the study's folder, its exit code reports how it ended, and the next worker inherits nothing from it. Ray kills
its workers and their children if their driver exits or their node is lost; the work since the last checkpoint is
then repeated. A driver that receives a signal cancels its tasks, so that the workers save and exit.

Ray retries no task: the run folders are the state. While trials are left, a lost worker is replaced on another
node. Its trials are taken over when its claim has expired.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import rl_training
from rl_training.environments.ray_actors import connect, go_to, require_ray
from rl_training.errors import ConfigError, one_line
from rl_training.experiment import files
from rl_training.study.plan import Plan
from rl_training.study.worker_pool import POLL, WorkerHandle, WorkerPool, start_worker

OPTION = "--ray"
_INTERRUPTED = 128 + signal.SIGINT
_LOST = -getattr(signal, "SIGKILL", 9)
# Seconds within which a node must answer, and within which a file made elsewhere must appear on a shared disk.
_CHECK_SECONDS, _APPEAR_SECONDS = 60.0, 5.0


@contextlib.contextmanager
def on_ray(address: str) -> Iterator[Cluster]:
    """Connect to the cluster at `address`; a connection that existed before is left open."""
    connected = require_ray(OPTION).is_initialized()
    ray = connect(address, OPTION)
    try:
        yield Cluster(ray)
    finally:
        if not connected:
            ray.shutdown()


class Cluster:
    """A Ray cluster that runs the workers of a study."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray

    def needs(self, plan: Plan, gpus: bool) -> dict[str, int]:
        """Resources of one worker: its threads, and a GPU if the trials use one."""
        devices = {configuration.settings["device"] for configuration in plan.configurations}
        wanted = any(device.startswith("cuda") for device in devices)
        chance = "auto" in devices and self.ray.cluster_resources().get("GPU", 0) >= 1
        return {"num_cpus": plan.threads, "num_gpus": int(gpus or wanted or chance)}

    def room(self, needs: Mapping[str, int]) -> int:
        """How many workers fit at the same time; `ConfigError` if none does."""
        kinds = {"num_cpus": "CPU", "num_gpus": "GPU"}
        room = 0
        for node in self._alive():
            room += int(min(node["Resources"].get(kinds[key], 0) // need for key, need in needs.items() if need))
        if not room:
            raise ConfigError(
                f"{OPTION}: a worker needs {needs['num_cpus']} CPUs and {needs['num_gpus']} GPUs, and no node of "
                "the cluster has them; change `threads` or `device` in the study's file"
            )
        return room

    def check(self, folder: Path) -> None:
        """Raise `ConfigError` if a node does not share the study's folder or has another version of this package.

        Each node removes a marker file that was written for it.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        look = self.ray.remote(_look)
        asked = []
        for node in self._alive():
            marker = put_marker(folder)
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = look.options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(str(marker))
            asked.append((node, marker, task))
        try:
            for node, _, task in asked:
                if problem := self._problem(task):
                    name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
                    raise ConfigError(f"{folder}: node {name} {problem}")
        finally:
            for _, marker, _ in asked:
                marker.unlink(missing_ok=True)

    def _problem(self, task: Any) -> str | None:
        errors = self.ray.exceptions
        try:
            problem, version = self.ray.get(task, timeout=_CHECK_SECONDS)
        except errors.GetTimeoutError:
            return (
                f"did not answer within {_CHECK_SECONDS:g} s; remove it from the cluster, or start Ray there again"
            )
        except (errors.NodeDiedError, errors.TaskUnschedulableError):
            return None  # it has left the cluster
        except errors.RayError as error:
            return f"cannot run this package ({last_line(error)}); install it there, with ray"
        if version != rl_training.__version__:
            return f"has version {version} of this package, and this is {rl_training.__version__}; install the same"
        return None if problem is None else str(problem)

    def _alive(self) -> list[dict[str, Any]]:
        return [node for node in self.ray.nodes() if node["Alive"]]


class _Task(WorkerHandle):
    """A worker that is a task of the cluster; the counters are the requests to stop and those passed on to Ray."""

    longest_wait = 60.0

    def __init__(self, pool: RayPool, task: Any, marker: Path) -> None:
        super().__init__()
        self._pool, self._task, self._marker = pool, task, marker
        self._stop_requests = self._cancellations = 0

    def stop(self, signum: int) -> None:
        self._stop_requests += 1

    def exit_code(self) -> int | None:
        ray = self._pool.ray
        while self._cancellations < self._stop_requests:  # not in `stop`, whose signal may have interrupted Ray
            self._cancellations += 1
            ray.cancel(self._task)
        if not ray.wait([self._task], timeout=0)[0]:
            return None
        self._marker.unlink(missing_ok=True)
        try:
            code, problem = ray.get(self._task)
        except ray.exceptions.TaskCancelledError:
            return _INTERRUPTED
        except ray.exceptions.RayTaskError as error:
            raise ConfigError(f"{OPTION}: a worker cannot be started: {last_line(error)}") from None
        except ray.exceptions.RayError as error:
            self._pool.say(f"a worker was lost ({type(error).__name__}); another takes its place")
            return _LOST
        if problem is not None:
            raise ConfigError(f"{self._marker.parent}: node {problem}")
        return int(code)


class RayPool(WorkerPool):
    """Workers that are tasks of a Ray cluster, each on a node that has room for it."""

    def __init__(
        self,
        ray: Any,
        folder: Path,
        plan: Plan,
        size: int,
        needs: Mapping[str, int],
        *,
        allow_import: bool,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(folder, plan, size, allow_import=allow_import)
        self.ray, self.say = ray, say
        self._work = ray.remote(_work).options(max_retries=0, scheduling_strategy="SPREAD", **needs)

    def _start(self, index: int) -> WorkerHandle:
        marker = put_marker(self._folder)
        path = [str(Path(entry).absolute()) for entry in _python_path()]
        order = (str(marker), index, self._plan.threads, path, str(Path.cwd()), self._allow_import)
        return _Task(self, self._work.remote(*order), marker)


def put_marker(folder: Path) -> Path:
    """Write a marker file that only a machine sharing this disk can read and remove."""
    marker = folder / f".ray-{secrets.token_hex(8)}"
    with files.os_errors(f"{folder}: cannot be written to"):
        marker.write_text(marker.name, encoding="ascii")
    return marker


def take_marker(marker: Path) -> str | None:
    """Remove a marker; if this machine cannot, return the reason and the remedy."""
    remedy = "a study on Ray needs a disk that all nodes share and can write to: choose it with --output-dir"
    deadline = time.monotonic() + _APPEAR_SECONDS
    while True:
        try:
            if marker.read_text(encoding="ascii", errors="replace") != marker.name:
                return f"sees another folder under this name; {remedy}"
            marker.unlink()
            return None
        except FileNotFoundError:
            if time.monotonic() > deadline:
                return f"does not see this folder; {remedy}"
            time.sleep(POLL)
        except OSError as error:
            return f"cannot use this folder ({error.strerror or error}); {remedy}"


# The functions below run on the nodes.


def _look(marker: str) -> tuple[str | None, str]:
    return take_marker(Path(marker)), rl_training.__version__


def _work(
    marker: str, index: int, threads: int, path: list[str], folder: str, allow_import: bool
) -> tuple[int, str | None]:
    """Run a worker; returns its exit code, and what is wrong with this node if it cannot run one.

    Ray cancels a task by a simulated SIGINT, which is passed on to the worker: it saves and exits.
    """
    import ray

    if problem := take_marker(Path(marker)):
        return 0, f"{platform.node()} {problem}"
    go_to(folder)
    variables = {"PYTHONPATH": os.pathsep.join([*path, *_python_path()])}
    variables["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address  # for environments: ray
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda signum, frame: received.append(signum))
    try:
        worker = start_worker(Path(marker).parent, index, threads, variables, allow_import=allow_import)
        while (code := worker.exit_code()) is None:
            while received:
                worker.stop(received.pop())
            time.sleep(POLL)
        return code, None
    finally:
        signal.signal(signal.SIGINT, before)


def _python_path() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def last_line(error: BaseException) -> str:
    """The last line of an error of Ray, which is the error that was raised on the node."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return one_line(lines[-1] if lines else type(error).__name__)
