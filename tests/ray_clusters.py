"""A Ray cluster of several nodes on this machine, which can be killed."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[1]
_NODE: dict[str, Any] = {"object_store_memory": 80 * 2**20, "include_dashboard": False}


class Nodes:
    """A head node and further nodes that can be added and removed. `RAY_ADDRESS` is set while it exists."""

    def __init__(self, cpus: int = 2) -> None:
        from ray.cluster_utils import Cluster

        self._cpus = cpus
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus, **_NODE})
        self.address: str = self._cluster.address

    def add(self, variables: Mapping[str, str] | None = None, **options: Any) -> Any:
        """Add a node; `variables` are set in its processes only."""
        options = {"num_cpus": self._cpus, **_NODE, **options}
        node = self._cluster.add_node(env_vars=dict(variables or {}), **options)
        self._cluster.wait_for_nodes()
        return node

    def lose(self, node: Any) -> None:
        """Kill a node as if its machine had been switched off."""
        victims = _below(node.all_processes["raylet"][0].process.pid)
        self._cluster.remove_node(node, allow_graceful=False)
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def freeze(self, node: Any) -> list[int]:
        """Stop all processes of a node, as if its cable had been pulled; returns the processes."""
        raylet = node.all_processes["raylet"][0].process.pid
        frozen = [raylet, *_below(raylet)]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        return frozen

    def close(self) -> None:
        import ray

        ray.shutdown()
        self._cluster.shutdown()


def _below(pid: int) -> list[int]:
    """The descendants of a process."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


@contextlib.contextmanager
def nodes(patch: pytest.MonkeyPatch, cpus: int = 2) -> Iterator[Nodes]:
    """A cluster of one node whose processes import this source."""
    patch.setenv("PYTHONPATH", f"{SOURCE / 'src'}{os.pathsep}{SOURCE}")
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.delenv("RAY_ADDRESS", raising=False)
    found = Nodes(cpus)
    try:
        patch.setenv("RAY_ADDRESS", found.address)
        yield found
    finally:
        found.close()
