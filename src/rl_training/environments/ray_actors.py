"""Environments as Ray actors on the nodes of a cluster, and the connection to that cluster.

An actor works like an environment's process (`child.py`): it receives an order as bytes, creates the environment
and answers requests. Ray transports the messages and chooses the node. If the node is lost, the environment is
created on another one and the pool replays its episode there. If the actor dies while its node is alive, the
environment has failed, as in a separate process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from multiprocessing import spawn
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from rl_training.environments.child import EnvServer, is_env_process, mark_env_process
from rl_training.environments.pool import CLOSING_SECONDS, EnvLost, Transition
from rl_training.environments.processes import (
    START_SECONDS,
    EnvProcessDied,
    EnvTimeout,
    guard,
    import_path,
    preparation,
    value_of,
)
from rl_training.environments.recipe import EnvOrder
from rl_training.environments.user_environments import UserEnvironments
from rl_training.errors import ConfigError, MissingDependencyError
from rl_training.platforms import restore_handlers

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig

_log = logging.getLogger(__name__)

# Timeout in seconds of a connection to a cluster's address.
_REACH_SECONDS = 5.0
# Seconds within which a node must start a process to be considered alive.
_SILENT_SECONDS = 20.0
# Objects here are small; by default Ray's object store takes a third of the memory.
_STORE_BYTES = 200 * 2**20
# Part of Ray's message for an actor whose node died before the actor's first answer.
_NODE_DIED = "its node has died"
_REMEDY = "start one with `ray start --head`, or give `local`"


def require_ray(why: str) -> Any:
    """The module ray; `why` names the feature that needs it."""
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError(f"{why} needs Ray ({error}); pip install ray") from None
    return ray


def connect(address: str, why: str) -> Any:
    """Ray, connected to the cluster at `address`: `auto`, `local` or host:port.

    An existing connection of this process is reused. `local` starts a cluster on this machine for this process
    only. Signal handlers are preserved, and Ray's usage statistics are off.
    """
    ray = require_ray(why)
    if ray.is_initialized():
        return ray
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        options |= {"include_dashboard": False, "object_store_memory": _STORE_BYTES}
    else:
        address = _reachable(address, why)
    try:
        with _handlers_kept():
            ray.init(address=address, **options)
    except (ray.exceptions.RayError, ValueError, RuntimeError, OSError) as error:
        hint = "" if address == "local" else f"; {_REMEDY}; if it asks for a token, set RAY_AUTH_MODE=token"
        raise ConfigError(f"{why} {address}: no Ray cluster was joined: {_first_line(error)}{hint}") from None
    return ray


def _reachable(address: str, why: str) -> str:
    """`address` as host:port; `ConfigError` if no connection opens, before Ray tries for half a minute."""
    found = _resolved(address, why)
    host, colon, port = found.rpartition(":")
    if not colon or not host or not port.isdecimal() or "/" in host:
        raise ConfigError(f"{why}: write auto, local or host:port, got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = "no answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or error
        raise ConfigError(f"{why} {found}: no Ray cluster can be reached there ({reason}); {_REMEDY}") from None
    return found


def _resolved(address: str, why: str) -> str:
    """Resolve `auto` to RAY_ADDRESS or the cluster that was started on this machine."""
    if address != "auto":
        return address
    from ray._private.services import canonicalize_bootstrap_address

    try:
        found = canonicalize_bootstrap_address("auto")
    except ConnectionError:
        found = None
    if found is None:
        raise ConfigError(f"{why} auto: no Ray cluster runs on this machine; {_REMEDY}")
    return str(found)


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Restore the signal handlers afterwards: Ray replaces that of SIGTERM when it connects."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        restore_handlers(before)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def go_to(folder: str) -> None:
    """Change to the caller's working folder, if this node has it: file names may be relative."""
    if Path(folder).is_dir():
        os.chdir(folder)


class _Actor:
    """The Ray actor: an `EnvServer` in the actor's process."""

    def __init__(self, order: bytes, prepared: Mapping[str, Any], path: list[str], folder: str) -> None:
        mark_env_process()
        go_to(folder)
        sys.path += [place for place in path if place not in sys.path]
        self._server = EnvServer(order, lambda: spawn.prepare(dict(prepared)))

    def node(self) -> str:
        import ray

        return ray.get_runtime_context().get_node_id()

    def answer(self, command: str, argument: Any) -> tuple[str, Any]:
        return self._server.answer(command, argument)

    def close(self) -> None:
        self._server.close()


def _nothing() -> None:
    """Task that tests whether a node is alive."""


class RayEnv:
    """An environment in a Ray actor. The actor needs a free CPU to start, and does not reserve it."""

    def __init__(self, config: TrainConfig, given: UserEnvironments | None = None) -> None:
        if is_env_process():
            raise RuntimeError(guard("ray"))
        self._ray = _cluster()
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._affinity = NodeAffinitySchedulingStrategy
        order, imports_main = EnvOrder.of(config, given).packed()
        self._arguments = (order, preparation(imports_main), import_path(), str(Path.cwd()))
        self._timeout = config.env_timeout
        self._lost: set[str] = set()  # nodes to avoid, which Ray may still consider alive
        self._start()

    def _start(self) -> None:
        self._node: str | None = None  # known after the first answer
        actor = self._ray.remote(_Actor).options(max_restarts=0, scheduling_strategy=self._strategy())
        self._actor = actor.remote(*self._arguments)
        self._where = self._actor.node.remote()
        self._pending: Any = None
        self._closing: Any = None

    def _strategy(self) -> Any:
        """Spread the actors over the nodes; a replacement avoids lost nodes."""
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")}
        if not self._lost or not alive - self._lost:
            return "SPREAD"
        return self._affinity(secrets.choice(sorted(alive - self._lost)), soft=True)

    def reset(self, seed: int) -> NDArray[np.float32]:
        self._pending = self._actor.answer.remote("reset", seed)
        return self._answer()

    def send(self, action: Any) -> None:
        self._pending = self._actor.answer.remote("step", action)

    def receive(self) -> Transition:
        return Transition(*self._answer())

    def _answer(self) -> Any:
        errors = self._ray.exceptions
        patience = max(self._timeout, START_SECONDS) if self._node is None else self._timeout
        try:
            status, value = self._ray.get(self._pending, timeout=patience)
            self._node = self._node or self._ray.get(self._where)
        except errors.GetTimeoutError:
            if self._node is not None and not self._node_answers():
                self._replace("its node does not answer")
            self._ray.kill(self._actor)
            raise EnvTimeout(self._timeout_message(patience)) from None
        except errors.ActorUnavailableError:
            self._replace("its node cannot be reached")
        except errors.RayError as error:
            if self._node_is_gone() or _NODE_DIED in str(error):
                self._replace("its node was lost")
            raise EnvProcessDied(f"its actor died: {_reason(error)}") from None
        return value_of(status, value)

    def _node_answers(self) -> bool:
        """Whether the node runs a task; Ray itself takes a minute to declare a silent node dead."""
        there = self._affinity(self._node, soft=False)
        task = self._ray.remote(_nothing).options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote()
        try:
            self._ray.get(task, timeout=_SILENT_SECONDS)
        except self._ray.exceptions.RayError:
            return False
        return True

    def _node_is_gone(self) -> bool:
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        return self._node is not None and self._node not in alive

    def _replace(self, why: str) -> NoReturn:
        """Create the environment on another node and raise `EnvLost`."""
        self._lost |= {self._node} if self._node is not None else set()
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(self._actor)  # it may only have been unreachable
        self._start()
        raise EnvLost(why)

    def _timeout_message(self, patience: float) -> str:
        if self._node is None:
            return (
                f"its actor did not start within {patience:g} s: is a CPU of the Ray cluster free? "
                f"({self._ray.available_resources().get('CPU', 0):g} now; environments need one each to start)"
            )
        return f"its actor did not answer within {patience:g} s and was killed (env_timeout)"

    def ask_to_close(self) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
            if self._node is not None and self._ray.is_initialized():
                self._closing = self._actor.close.remote()

    def close(self, seconds: float = CLOSING_SECONDS) -> None:
        if not self._ray.is_initialized():
            return
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
            if self._closing is not None:
                self._ray.wait([self._closing], timeout=seconds)
            self._ray.kill(self._actor)


def _cluster() -> Any:
    """The connected cluster, the one in RAY_ADDRESS, or a new one on this machine."""
    ray = require_ray("environments: ray")
    address = os.environ.get("RAY_ADDRESS") or "local"
    if address == "local" and not ray.is_initialized():
        _log.warning(
            "environments: RAY_ADDRESS is not set; Ray is started on this machine and ends with this process"
        )
    return connect(address, "environments: ray" if address == "local" else "RAY_ADDRESS")


def _reason(error: BaseException) -> str:
    """The cause of an actor's death from Ray's message, without its advice."""
    text = " ".join(str(error).split())
    for pattern in (r"Worker exit detail: (.*?)\.(?: |$)", r"(\w*(?:Error|Exception): .*)$"):
        if found := re.search(pattern, text):
            return found[1]
    return text[:200]
