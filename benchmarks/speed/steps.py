"""Environment steps per second of whole runs, and the time of each part of a step.

    python -m benchmarks.speed.steps [--device D] [--case NAME …] [--steps 9000] [--json FILE]
    python -m benchmarks.speed.steps --environments 1 2 4 8 16 32 64 [--device D] [--steps 9000] [--json FILE]
        Scaling: SAC with each number of environments, one process per environment, and their memory; also the same
        steps with random actions and without updates.

Each case is trained twice: once unmodified, for the rate, and once with every part of a step timed. There are no
evaluations or checkpoints during the measurement. The rate is the mean over all steps after a settling period. It
is followed by the rates of the slowest and the fastest tenth of blocks of 100 vector steps, because the speed of a
shared machine may vary between blocks.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import report
from benchmarks.report import Entry, Results, Sections, number, table
from benchmarks.runs import configure, seconds_of_run
from benchmarks.speed.timing import Stopwatch
from rl_training.environments.running import Pool
from rl_training.experience.acting import ActingPolicy
from rl_training.experience.collector import Collector
from rl_training.experiment.config import TrainConfig
from rl_training.memory import human_bytes
from rl_training.runs.building import choose_device
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session
from rl_training.updates.updater import Updater

STARTS, SETTLE, BLOCK = 1_000, 500, 100
_OVERLAP, _PROCESSES, _BATCHED = "algo_kwargs.overlap=true", "environments=processes", "environments=batched"


@dataclass(frozen=True)
class Case:
    """A packaged configuration with overrides; `goal` is for one GPU."""

    name: str
    config: str
    overrides: tuple[str, ...] = ()
    goal: int | None = None


CASES = [
    Case("SAC", "sac/halfcheetah", (), 2_300),
    Case("SAC, overlap", "sac/halfcheetah", (_OVERLAP,), 3_000),
    Case("TD3", "td3/halfcheetah", (), 2_300),
    Case("TD3, overlap", "td3/halfcheetah", (_OVERLAP,), 3_000),
    *(
        Case(f"SAC, {count} environments{said}", "sac/halfcheetah", (f"num_envs={count}", _PROCESSES, *more), goal)
        for count, goal in ((8, 5_500), (16, 6_000))
        for said, more in (("", ()), (", overlap", (_OVERLAP,)))
    ),
    *(
        Case(
            f"SAC, {count} environments in one call{said}",
            "sac/halfcheetah",
            (f"num_envs={count}", _BATCHED, *more),
        )
        for count in (8, 16)
        for said, more in (("", ()), (", overlap", (_OVERLAP,)))
    ),
    Case("REDQ-10, 20 updates a step", "redq/hopper", (), 280),
]
# The parts of a step: the timed method of each, and the other parts inside it.
PARTS: dict[str, tuple[type, str, tuple[str, ...]]] = {
    "waiting for weights": (ActingPolicy, "current", ()),
    "acting": (Collector, "act", ("waiting for weights",)),
    "environment": (Pool, "receive", ()),
    "storing": (Collector, "receive", ("environment",)),
    "launching updates": (Updater, "run", ()),
    "tick": (Session, "advance", ()),
}


def arguments() -> argparse.Namespace:
    parser = report.arguments(__doc__)
    parser.add_argument("--device", default=report.default_device())
    parser.add_argument("--case", nargs="+", choices=[case.name for case in CASES], metavar="NAME")
    parser.add_argument(
        "--environments", nargs="+", type=int, metavar="N", help="measure scaling with the number of environments"
    )
    parser.add_argument(
        "--steps", type=int, default=9_000, help="steps after the first update; a tenth of it for REDQ"
    )
    return parser.parse_args()


class Ticks(Callback):
    """Callback that records the end of each vector step; calls `at_first` after the settling period and `at_last`
    at the end."""

    def __init__(
        self,
        settled: int,
        at_first: Callable[[], object] = lambda: None,
        at_last: Callable[[], object] = lambda: None,
    ) -> None:
        self.settled, self.at_first, self.at_last = settled, at_first, at_last
        self.times: list[float] = []

    def on_step(self, session: Session) -> None:
        if session.clock.global_step >= self.settled:
            if not self.times:
                self.at_first()
            self.times.append(time.perf_counter())
        if session.clock.global_step >= session.config.total_timesteps:
            self.at_last()


def configured(case: Case, device: str, steps: int, starts: int = STARTS) -> TrainConfig:
    return configure(
        case.config,
        case.config.partition("/")[0],
        case.overrides,
        total_timesteps=STARTS + steps,
        device=device,
        seed=0,
        eval_episodes=0,
        checkpoint_interval=10**9,
        algo_kwargs={"eval_interval": None, "early_stopping": None, "learning_starts": starts},
    )


def trained(config: TrainConfig, ticks: Ticks) -> NDArray[np.float64]:
    """Seconds of every vector step after the settling period."""
    seconds_of_run(config, ticks)
    return np.diff(np.array(ticks.times))


def split(config: TrainConfig) -> dict[str, float]:
    """Mean microseconds of each part of a vector step, excluding nested parts; the rest is `between`."""
    stopwatch = Stopwatch()
    with ExitStack() as stack:
        for name, (owner, attribute, _) in PARTS.items():
            stack.enter_context(stopwatch.around(owner, attribute, name, waiting=False))
        spent = trained(config, Ticks(STARTS + SETTLE, stopwatch.clear))
        seconds = {name: stopwatch.seconds[name] / len(spent) for name in PARTS}
    own = {name: seconds[name] - sum(seconds[one] for one in inside) for name, (_, _, inside) in PARTS.items()}
    own["between"] = float(spent.mean()) - sum(own.values())
    return {name: 1e6 * value for name, value in own.items()}


def measure(case: Case, options: argparse.Namespace) -> Entry:
    steps = options.steps // 10 if case.config.startswith("redq") else options.steps
    config = configured(case, options.device, steps)
    spent = trained(config, Ticks(STARTS + SETTLE if steps > 2 * SETTLE else STARTS + SETTLE // 5))
    blocks = [block.mean() for block in np.array_split(spent, max(1, len(spent) // BLOCK))]
    slow, fast = np.quantile(blocks, [0.9, 0.1])
    return {
        "name": case.name,
        "config": case.config,
        "overrides": list(case.overrides),
        "steps": steps,
        "rate": config.num_envs / float(spent.mean()),
        "slow": config.num_envs / float(slow),
        "fast": config.num_envs / float(fast),
        "split": split(config) if steps > 2 * SETTLE else {},
    }


# Scaling with the number of environments.


def shares() -> tuple[int, int]:
    """Proportional set size (PSS) in bytes of this process and of its children."""

    def share(pid: str) -> int:
        lines = Path("/proc", pid, "smaps_rollup").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))

    own = str(os.getpid())
    children = Path("/proc", own, "task", own, "children").read_text(encoding="ascii").split()
    return share(own), sum(share(pid) for pid in children)


def grown(count: int, options: argparse.Namespace) -> Entry:
    """Rates and memory for one number of environments."""
    case = Case("", "sac/halfcheetah", (f"num_envs={count}", _PROCESSES))
    found: list[tuple[int, int]] = []
    spent = trained(
        configured(case, options.device, options.steps),
        Ticks(STARTS + SETTLE, at_last=lambda: found.append(shares())),
    )
    alone = trained(configured(case, options.device, options.steps, STARTS + options.steps), Ticks(STARTS + SETTLE))
    return {
        "kind": "environments",
        "environments": count,
        "steps": options.steps,
        "rate": count / float(spent.mean()),
        "floor": count / float(alone.mean()),
        "own_bytes": found[0][0],
        "children_bytes": found[0][1],
    }


def growth_text(entries: list[Entry]) -> str:
    order = sorted(entries, key=lambda e: (e["machine"], e["environments"]))
    rows = [
        [
            e["machine"],
            e["environments"],
            number(e["rate"]),
            number(1e6 * e["environments"] / e["rate"]),
            number(e["floor"]),
            human_bytes(e["own_bytes"]),
            human_bytes(e["children_bytes"] / e["environments"]),
        ]
        for e in order
    ]
    head = ["", "environments", "steps/s", "µs per step of all", "without updates", "memory of the run",
            "memory per environment"]  # fmt: skip
    return (
        "## Scaling with the number of environments\n\nMeasured by `python -m benchmarks.speed.steps "
        "--environments`: SAC on HalfCheetah-v5 with `environments: processes` and one update per step, so that "
        "updates per second are the bound. *Without updates* has the same steps with random actions.\n\n"
        f"{table(head, rows)}\n\n{report.origins(order)}"
    )


def sections(entries: dict[str, Entry]) -> Sections:
    growth = [entry for entry in entries.values() if entry.get("kind") == "environments"]
    steps = [entry for entry in entries.values() if entry.get("kind") != "environments"]
    found: Sections = {("performance/steps", "environments"): growth_text(growth)} if growth else {}
    return found | ({("performance/steps", "steps"): step_text(steps)} if steps else {})


def step_text(entries: list[Entry]) -> str:
    places = {case.name: place for place, case in enumerate(CASES)}
    order = sorted(entries, key=lambda e: (e["device"], places[e["name"]]))
    parts = [*PARTS, "between"]
    rows = []
    for entry in order:
        rows.append(
            [
                f"{entry['name']} ({entry['machine']})",
                f"`{entry['config']}` {' '.join(entry['overrides'])}".strip(),
                f"{number(entry['rate'])} ({number(entry['slow'])} to {number(entry['fast'])})",
                *(f"{entry['split'][name]:.0f}" if entry["split"] else "–" for name in parts),
            ]
        )
    head = ["", "settings", "steps/s (slowest and fastest tenth)", *(f"{name}, µs" for name in parts)]
    return (
        "## Parts of a step\n\nMeasured by `python -m benchmarks.speed.steps`: whole runs without evaluation, and "
        "the mean microseconds of each part of a vector step in a second run. `between` is the rest of the loop, "
        "including the timers. On a GPU, updates run while the host continues; *waiting for weights* includes the "
        "time until they have finished.\n\n"
        f"{table(head, rows)}\n\n{report.origins(order)}"
    )


def main() -> None:
    options = arguments()
    results = Results("steps", options.json)
    device = str(choose_device(options.device))
    for count in options.environments or ():
        entry = grown(count, options) | report.stamp(device)
        results.add({f"{entry['machine']} environments {count}": entry})
        print(f"{count} environments: {entry['rate']:,.0f}, without updates {entry['floor']:,.0f}", flush=True)
    for case in CASES if not options.environments else ():
        if not options.case or case.name in options.case:
            entry = measure(case, options) | report.stamp(device)
            results.add({f"{entry['machine']} {case.name}": entry})
            parts = ", ".join(f"{name} {value:.0f}" for name, value in entry["split"].items())
            goal = f" (goal {case.goal:,})" if case.goal and device.startswith("cuda") else ""
            rates = f"{entry['rate']:,.0f}{goal} ({entry['slow']:,.0f} to {entry['fast']:,.0f})"
            print(f"{case.name}: {rates}; {parts}", flush=True)
    results.render(sections)


if __name__ == "__main__":
    main()
