"""Unifloral (github.com/EmptyJackson/unifloral): algorithms in JAX, timed inside their own scripts.

Run by `benchmarks.peers.loops` in a Python with jax, flax and optax; `small_distrax` replaces distrax if it is not
installed.

    {"checkout", "file", "settings", "data", "batch", "device", "threads", "tf32"}

The whole script runs unchanged. After each scan of updates it evaluates, on an environment whose episodes have no
steps; this is where it is paused.
"""

import dataclasses
import importlib.metadata
import importlib.util
import os
import runpy
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.peers.protocol import Ended, Order, Turns, environment

_SCAN = {"cuda": 2500, "cpu": 25}
_UPDATES = 10**9


def prepare(order: Order) -> None:
    """Limit the resources of jax; must be called before jax is imported."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.3")  # our side also has its data on the device
    os.environ["JAX_PLATFORMS"] = "cpu" if order["device"] == "cpu" else "cuda"
    if order["device"] == "cpu" and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: order["threads"]])


class Held:
    """Replacements for `tyro.cli`, the environment and the data set of a script."""

    def __init__(self, turns: Turns, rows: dict[str, Any]) -> None:
        self.turns, self.rows = turns, rows
        self.updates = 0
        spaces = environment(rows["observations"].shape[1], rows["actions"].shape[1])
        unending = SimpleNamespace(spec=SimpleNamespace(max_episode_steps=0))
        self.env = SimpleNamespace(
            single_observation_space=spaces.observation_space,
            single_action_space=spaces.action_space,
            env_fns=[lambda: unending],
            reset=self.evaluate,
        )

    def arguments(self, kind: Any) -> Any:
        """Arguments of the script, overridden by those of the order."""
        order = self.turns.order
        scan = _SCAN[order["device"].partition(":")[0]]
        given = {"batch_size": order["batch"], "eval_interval": scan, "num_updates": _UPDATES, **order["settings"]}
        unknown = set(given) - {field.name for field in dataclasses.fields(kind)}
        if unknown:
            raise SystemExit(f"{order['file']} of that checkout has no setting {', '.join(sorted(unknown))}")
        arguments = kind(**given)
        self.updates = scan * getattr(arguments, "num_critic_updates_per_step", 1)
        reply = {"versions": versions("jax", "flax", "optax", "distrax"), "period": self.updates}
        self.turns.begin(reply, wait, before=self.updates, recorder=recorder)
        return arguments

    def evaluate(self) -> Any:
        """End a scan; return the observations of an evaluation without steps."""
        self.turns.made(self.updates)
        return self.rows["observations"][:8]

    def modules(self) -> dict[str, Any]:
        vector = SimpleNamespace(make=lambda *_, **__: self.env)
        found = {
            "tyro": SimpleNamespace(cli=self.arguments),
            "gym": SimpleNamespace(vector=vector, make=lambda _: None),
            "d4rl": SimpleNamespace(
                qlearning_dataset=lambda _: self.rows, get_normalized_score=lambda _, returns: returns
            ),
            "wandb": SimpleNamespace(),
        }
        return found | distrax_or_stand_in()


def distrax_or_stand_in() -> dict[str, Any]:
    """Import `small_distrax` as distrax if distrax is not installed."""
    if importlib.util.find_spec("distrax") is not None:
        return {}
    from benchmarks.peers import small_distrax

    return {"distrax": small_distrax}


def wait() -> None:
    import jax

    jax.block_until_ready(jax.live_arrays())


def recorder() -> Callable[[], list[Any]]:
    """Start recording the kernels of the GPU; see `benchmarks.peers.protocol.Recorder`."""
    import jax

    folder = tempfile.TemporaryDirectory()
    jax.profiler.start_trace(folder.name)

    def recorded() -> list[Any]:
        jax.profiler.stop_trace()
        times: dict[str, list[float]] = defaultdict(list)
        for file in Path(folder.name).rglob("*.xplane.pb"):
            for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
                for line in plane.lines if plane.name.startswith("/device:GPU") else ():
                    for event in line.events if line.name.startswith("Stream") else ():
                        times[event.name].append(event.duration_ns / 1e3)
        folder.cleanup()
        return [[name, len(each), sum(each)] for name, each in times.items()]

    return recorded


def versions(*names: str) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "replaced by a stand-in"
    return found


def main() -> None:
    turns = Turns()
    order = turns.order
    prepare(order)
    import jax

    if not order["tf32"]:
        jax.config.update("jax_default_matmul_precision", "highest")
    warnings.filterwarnings("ignore", message="Maximum steps reached")
    path = Path(order["checkout"]) / "algorithms" / f"{order['file']}.py"
    if not path.is_file():
        raise SystemExit(f"no {path}: is {order['checkout']} a checkout of Unifloral?")
    with np.load(order["data"]) as data:
        held = Held(turns, {name: data[name] for name in data.files})
    with patch.dict(sys.modules, held.modules()):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except Ended:
            return


if __name__ == "__main__":
    main()
