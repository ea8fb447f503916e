"""Environment steps per second without policy or updates, for every way to step N environments.

    python -m benchmarks.speed.stepping [--task NAME …] [--environments 1 16 128 1024] [--threads 1 4 16]
        [--way NAME …] [--seconds 1.5] [--rounds 5] [--json FILE]
        MuJoCo: batched environments (`environments: batched`) with each number of threads, sequential ones
        (`local`), separate processes, and Gymnasium's `SyncVectorEnv` and `AsyncVectorEnv`. Processes are used
        only if every environment can have a core; `SyncVectorEnv` and `local` have at most 128 environments.
    python -m benchmarks.speed.stepping --tensor torch/Pendulum-v1 [--environments 4096] [--device D] …
        A tensor environment on a device.

Actions are random and generated beforehand. Environments are reset when an episode ends, and resets are timed.
Vector environments of Gymnasium reset within the step, so that each of their steps is a simulation step. The rate
is the median over `--rounds` blocks of each way; the ways alternate, and the blocks of a way take about `--seconds`
in total.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import cycle
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch

from benchmarks import report
from benchmarks.report import Entry, Results, Sections, number, table
from benchmarks.speed.timing import alternate
from rl_training.environments.pool import make_pool
from rl_training.environments.user_environments import tensor_maker
from rl_training.experiment.config import TrainConfig
from rl_training.memory import available_cores
from rl_training.runs.building import choose_device

_WITHOUT_FORCES = {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.0}
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "HalfCheetah-v5": ("HalfCheetah-v5", {}),
    "Hopper-v5": ("Hopper-v5", {}),
    "Humanoid-v5": ("Humanoid-v5", {}),
    "Humanoid-v5 without contact forces": ("Humanoid-v5", _WITHOUT_FORCES),
}
WAYS = ("batched", "local", "processes", "SyncVectorEnv", "AsyncVectorEnv")
# Largest number of sequential environments; their rate hardly depends on the number.
_IN_TURN = 128
_ACTIONS = 32  # vector steps until the actions repeat


def arguments() -> argparse.Namespace:
    parser = report.arguments(__doc__)
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS), metavar="NAME")
    parser.add_argument("--way", nargs="+", choices=WAYS, default=list(WAYS), metavar="NAME")
    parser.add_argument(
        "--environments", nargs="+", type=int, metavar="N", help="default: 1 16 128 1024; 4096 with --tensor"
    )
    parser.add_argument(
        "--threads", nargs="+", type=int, default=[1, 4, 16], metavar="N", help="threads of batched environments"
    )
    parser.add_argument("--tensor", metavar="ID", help="measure this tensor environment instead")
    parser.add_argument("--device", default="auto", help="device of a tensor environment")
    parser.add_argument("--seconds", type=float, default=1.5, help="seconds of each way in each case")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    options.environments = options.environments or ([4096] if options.tensor else [1, 16, 128, 1024])
    return options


class Stepper(Protocol):
    """N environments; `run` steps all of them `count` times."""

    def run(self, count: int) -> None: ...
    def close(self) -> None: ...


class Pooled:
    """The environments of a run, without its policy."""

    def __init__(self, config: TrainConfig) -> None:
        self.pool = make_pool(config)
        self.pool.reset_all(range(config.num_envs))
        with closing(gym.make(config.env_id or "", **config.env_kwargs)) as env:
            self.actions = random_actions(env.action_space, config.num_envs)

    def run(self, count: int) -> None:
        for _ in range(count):
            steps = self.pool.step(next(self.actions))
            ended = (steps.terminated | steps.truncated).nonzero()[0].tolist()
            if ended:
                self.pool.reset_all(ended)

    def close(self) -> None:
        self.pool.close()


class Vector:
    """A vector environment of Gymnasium."""

    def __init__(self, kind: Any, env_id: str, env_kwargs: Mapping[str, Any], count: int) -> None:
        makers = [lambda: gym.make(env_id, **env_kwargs)] * count
        self.envs = kind(makers, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
        self.envs.reset(seed=0)
        self.actions = random_actions(self.envs.single_action_space, count)

    def run(self, count: int) -> None:
        for _ in range(count):
            self.envs.step(next(self.actions))

    def close(self) -> None:
        self.envs.close()


class Tensors:
    """A tensor environment."""

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        maker = tensor_maker(config)
        if maker is None:
            raise SystemExit(f"{config.env_id} is not a tensor environment")
        self.env = maker(config.num_envs, device, config.env_kwargs)
        self.env.reset(0)
        drawn = random_actions(self.env.single_action_space, config.num_envs)
        self.actions = cycle([torch.from_numpy(next(drawn)).to(device) for _ in range(_ACTIONS)])

    def run(self, count: int) -> None:
        for _ in range(count):
            self.env.step(next(self.actions))

    def close(self) -> None:
        self.env.close()


def random_actions(space: gym.Space[Any], count: int) -> Iterator[Any]:
    """Infinite iterator over arrays of `count` actions."""
    space.seed(0)
    return cycle([np.stack([space.sample() for _ in range(count)]) for _ in range(_ACTIONS)])


def ways(task: str, count: int, options: argparse.Namespace) -> dict[str, Callable[[], Stepper]]:
    """Constructors of `count` environments, for each way that this machine has enough cores for."""
    (env_id, env_kwargs), cores = TASKS.get(task, (task, {})), available_cores()
    config = TrainConfig(
        algo="sac", env_id=env_id, env_kwargs=env_kwargs, num_envs=count, seed=0, total_timesteps=10**9
    )
    if options.tensor:
        return {"tensor": lambda: Tensors(config, choose_device(options.device))}
    threads = sorted({min(threads, count) for threads in options.threads if threads <= cores})
    found: dict[str, Callable[[], Stepper]] = {
        f"batched, {one} thread{'s' * (one > 1)}": partial(
            Pooled, config.replace(environments="batched", env_threads=one)
        )
        for one in threads
    }
    if count <= _IN_TURN:
        found["local"] = lambda: Pooled(config.replace(environments="local"))
        found["SyncVectorEnv"] = lambda: Vector(gym.vector.SyncVectorEnv, env_id, env_kwargs, count)
    if count <= cores:
        found["processes"] = lambda: Pooled(config.replace(environments="processes"))
        found["AsyncVectorEnv"] = lambda: Vector(gym.vector.AsyncVectorEnv, env_id, env_kwargs, count)
    return {name: make for name, make in found.items() if name.partition(",")[0] in options.way}


def measure(
    makers: Mapping[str, Callable[[], Stepper]], count: int, options: argparse.Namespace
) -> Iterator[tuple[str, Entry]]:
    """Environment steps per second of each way."""
    with ExitStack() as stack:
        steppers = {name: stack.enter_context(closing(make())) for name, make in makers.items()}
        found = alternate(dict(steppers), seconds=options.seconds, blocks=options.rounds, period=1)
    for name, rates in found.items():
        blocks = [count * rate for rate in rates.blocks]
        yield name, {"way": name, "environments": count, "rate": count * rates.median, "blocks": blocks}


# Tables.


def order_of(way: str) -> tuple[int, int]:
    """Sort key of a way: its position in `WAYS`, then its number of threads."""
    name, _, threads = way.partition(", ")
    return WAYS.index(name), int(threads.split()[0]) if threads else 0


def sections(entries: dict[str, Entry]) -> Sections:
    simulated = [entry for entry in entries.values() if entry["kind"] == "mujoco"]
    tensors = [entry for entry in entries.values() if entry["kind"] == "tensor"]
    parts = [
        "## Stepping environments",
        "Measured by `python -m benchmarks.speed.stepping`: environment steps per second with random actions, "
        "including resets, without policy and updates. Each rate is the median over interleaved blocks. "
        "[Step many environments at once](../guides/many-environments.md) explains the settings.",
    ]
    if simulated:
        parts += [_simulated(simulated)]
    if tensors:
        order = sorted(tensors, key=lambda e: (e["task"], e["machine"], e["environments"]))
        rows = [[e["task"], e["machine"], f"{e['environments']:,}", number(e["rate"])] for e in order]
        parts += [table(["tensor environment", "machine", "environments", "steps/s"], rows)]
    parts += [report.origins([*simulated, *tensors])]
    found: Sections = {("performance/stepping", "stepping"): "\n\n".join(parts)} if entries else {}
    return found | ({("guides/many-environments", "stepping-summary"): summary(simulated)} if simulated else {})


def summary(entries: Sequence[Entry]) -> str:
    """The table of the guide."""
    said = "Environment steps per second without policy and updates, and in brackets the number of environments"
    return f"{said}; from [Performance](../performance.md):\n\n{best_of(entries)}"


def best_of(entries: Sequence[Entry]) -> str:
    """The largest rate of each way, by task and machine."""
    best: dict[tuple[str, str], dict[str, Entry]] = {}
    for e in entries:
        found, way = best.setdefault((e["machine"], e["task"]), {}), e["way"].partition(",")[0]
        if way not in found or e["rate"] > found[way]["rate"]:
            found[way] = e

    def cell(e: Entry | None) -> str:
        return "–" if e is None else f"{number(e['rate'])} ({e['environments']:,})"

    rows = [[*case, *(cell(found.get(way)) for way in WAYS)] for case, found in sorted(best.items())]
    return table(["machine", "task", *WAYS], rows)


def _simulated(entries: Sequence[Entry]) -> str:
    """A row for each task and number of environments, a column for each way."""
    columns = sorted({e["way"] for e in entries}, key=order_of)
    cases: dict[tuple[str, str, int], dict[str, str]] = {
        (e["machine"], e["task"], e["environments"]): {} for e in entries
    }
    for e in entries:
        cases[e["machine"], e["task"], e["environments"]][e["way"]] = number(e["rate"])
    rows = [[where, task, f"{n:,}", *(found.get(way, "–") for way in columns)] for (where, task, n), found in
            sorted(cases.items())]  # fmt: skip
    return table(["machine", "task", "environments", *columns], rows)


def main() -> None:
    options = arguments()
    results = Results("stepping", options.json)
    device = str(choose_device(options.device)) if options.tensor else "cpu"
    stamp = report.stamp(device)
    # Processes are forked, which needs as much free memory as this process uses, so small numbers come first.
    for count in sorted(options.environments):
        for task in [options.tensor] if options.tensor else options.task:
            for way, entry in measure(ways(task, count, options), count, options):
                about = {"kind": "tensor" if options.tensor else "mujoco", "task": task}
                results.add({f"{stamp['machine']}/{task}/{count}/{way}": stamp | about | entry})
                print(f"{task}, {count} environments, {way}: {entry['rate']:,.0f} steps/s", flush=True)
    results.show(sections)


if __name__ == "__main__":
    main()
