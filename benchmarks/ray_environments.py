"""Environments as Ray actors on two nodes beside processes on one, and a run that loses a node.

    python -m benchmarks.ray_environments [--environments 16] [--sleep 0.02] [--seconds 10]

Both nodes are on this machine, so that the numbers are of Ray's messages and not of a network. An environment
sleeps at each step: the most that all of them together can do is their number divided by that time. The second part
trains TD3 twice, with and without losing a node (`kill -9` to everything on it) in the middle of an episode, and
compares all files of the last checkpoint but the configuration.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.environments.pool import EnvPool
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.manager import ExperimentManager
from rl_training.experiment.manifest import read_manifest
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session
from rl_training.runs.spec import RunOptions

NODE: dict[str, Any] = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
TRAINED = 4  # environments of the run that loses a node
STEPS = 160


def config_of(where: str, number: int, sleep: float, **fields: Any) -> TrainConfig:
    return TrainConfig(
        algo="td3",
        env_id="benchmarks.sleeper:Sleeper",
        env_kwargs={"sleep": sleep},
        allow_import=True,
        environments=where,
        num_envs=number,
        **{"total_timesteps": 1, **fields},
    )


def steps_per_second(where: str, number: int, sleep: float, seconds: float) -> tuple[float, float]:
    """Steps of all environments together, and the seconds until all had been reset for the first time."""
    began = time.monotonic()
    pool = EnvPool(config_of(where, number, sleep))
    try:
        for index in range(number):
            pool.reset(index)
        ready = time.monotonic()
        actions, count = np.zeros((number, 1), np.float32), 0
        while (now := time.monotonic()) < ready + seconds:
            pool.step(actions)
            count += number
        return count / (now - ready), ready - began
    finally:
        pool.close()


class LoseAt(Callback):
    """Kills everything on a node right after a step; None watches only."""

    def __init__(self, cluster: Any = None, node: Any = None, step: int = 0) -> None:
        self.cluster, self.node, self.step = cluster, node, step
        self.killed = 0

    def on_step(self, session: Session) -> None:
        if self.node is None or session.clock.ticks < self.step:
            return
        victims = children(self.node.all_processes["raylet"][0].process.pid)
        self.cluster.remove_node(self.node, allow_graceful=False)
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.node, self.killed = None, len(victims)


def children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text(errors="replace").rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def trained(folder: Path, where: str, sleep: float, losing: LoseAt) -> tuple[dict[str, str], float]:
    """The hashes of a short run's last checkpoint, but for its configuration, and the seconds it took."""
    kwargs = {"learning_starts": 40, "batch_size": 32, "hidden_sizes": [32, 32], "buffer_capacity": 1000}
    fields = {"total_timesteps": STEPS, "eval_episodes": 0, "device": "cpu", "output_dir": str(folder)}
    config = config_of(where, TRAINED, sleep, algo_kwargs=kwargs, **fields)
    began = time.monotonic()
    result = ExperimentManager().train(config, callbacks=[losing], options=RunOptions(quiet=True))
    seconds = time.monotonic() - began
    files = read_manifest(result.checkpoint_path).files
    return {name: entry.sha256 for name, entry in files.items() if name != "config.json"}, seconds


@contextlib.contextmanager
def two_nodes(cpus: int) -> Iterator[tuple[Any, Any]]:
    """A cluster on this machine, named by RAY_ADDRESS, and its second node."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus, **NODE})
    try:
        node = cluster.add_node(num_cpus=cpus, **NODE)
        cluster.wait_for_nodes()
        os.environ["RAY_ADDRESS"] = cluster.address
        yield cluster, node
    finally:
        ray.shutdown()
        cluster.shutdown()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=int, default=16)
    parser.add_argument("--sleep", type=float, default=0.02)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    number, sleep = options.environments, options.sleep
    print(f"{number} environments of {1000 * sleep:g} ms a step: at most {number / sleep:.0f} steps/s")
    with two_nodes(number // 2) as (cluster, node), tempfile.TemporaryDirectory() as folder:
        for where in ("local", "processes", "ray"):
            rate, start = steps_per_second(where, number, sleep, options.seconds)
            print(f"{where:>10} {rate:6.0f} steps/s, ready after {start:.1f} s")
        losing = LoseAt(cluster, node, STEPS // 2)
        disturbed, seconds = trained(Path(folder) / "lost", "ray", sleep, losing)
        undisturbed, usual = trained(Path(folder) / "local", "local", sleep, LoseAt())
    equal = disturbed == undisturbed
    print(f"a node lost at step {STEPS // 2} of {STEPS}, {losing.killed} processes killed: {seconds:.1f} s")
    print(f"the same run in one process: {usual:.1f} s; checkpoints equal to the bit: {equal}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
