"""Numerical difference between members of a population and single runs, and exactness of resumed populations.

    python -m benchmarks.speed.rounding [--updates 200] [--kills 10] [--hidden 64 64] [--sets default avx2 avx512]
                                  [--json FILE]

Runs once for each CPU instruction set that both torch and the machine support (`ATEN_CPU_CAPABILITY`), in separate
processes with one thread.

Members: three members of each algorithm and three single runs on the same rows (17 observations, 6 actions,
float32). The result is the largest difference of any parameter. Resuming: three members of SAC on Pendulum-v1 with
a checkpoint every four steps are killed with SIGKILL at a random moment and resumed. Their last checkpoints must
equal those of an uninterrupted population exactly.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import report
from benchmarks.report import Entry, Results, Sections, table
from benchmarks.speed import cases
from benchmarks.speed.cases import Case
from rl_training.data.sources import TensorSource
from rl_training.experiment.checkpointing import find_checkpoint, list_checkpoints, read_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.runs.spec import RunOptions
from rl_training.runtime.populations import members_of, train_population
from rl_training.runtime.resume import resume_population
from rl_training.updates.stack import Stack
from rl_training.updates.stacked import StackedUpdater
from rl_training.updates.updater import Updater

ALGORITHMS, BATCHES, MEMBERS = ("sac", "iql", "cql", "redq"), (7, 24, 100, 256), 3
SETS = ("default", "avx2", "avx512")


def arguments() -> argparse.Namespace:
    parser = report.arguments(__doc__)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--hidden", nargs="+", type=int, default=[64, 64])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=available_sets())
    parser.add_argument("--here", action="store_true", help="measure in this process and print the entries")
    return parser.parse_args()


def available_sets() -> list[str]:
    """Instruction sets up to the one that torch selected for this process."""
    chosen = torch.backends.cpu.get_cpu_capability().lower()
    return list(SETS[: SETS.index(chosen) + 1]) if chosen in SETS else ["default"]


# Members compared with single runs.


def _updaters(case: Case, rows: torch.Tensor, batch: int) -> list[Updater]:
    learners = [cases.build(case, rows.device, seed=seed) for seed in range(MEMBERS)]
    return [Updater(one, TensorSource(rows, case.layout, one.generator), batch) for one in learners]


def distance(case: Case, rows: torch.Tensor, batch: int, updates: int) -> float:
    """The largest difference of a parameter between a member and its single run."""
    ours, theirs = _updaters(case, rows, batch), _updaters(case, rows, batch)
    StackedUpdater(Stack([one.learner for one in ours]), ours).run(updates)
    found = 0.0
    for one, other in zip(ours, theirs):
        other.run(updates)
        pairs = zip(one.learner.state_dict()["networks"].values(), other.learner.state_dict()["networks"].values())
        found = max(found, *(float((a - b).abs().max()) for a, b in pairs))
    return found


# A resumed population compared with an uninterrupted one.


def _train(folder: Path) -> None:
    train_population(members_of(_config(folder)), options=RunOptions(quiet=True))


def _config(folder: Path) -> TrainConfig:
    kwargs = {"hidden_sizes": [16, 16], "batch_size": 16, "learning_starts": 20, "buffer_capacity": 1_000}
    return TrainConfig(
        algo="sac",
        env_id="Pendulum-v1",
        total_timesteps=200,
        checkpoint_interval=4,
        keep_checkpoints=1,
        eval_episodes=0,
        device="cpu",
        seeds=tuple(range(MEMBERS)),
        output_dir=str(folder),
        algo_kwargs=kwargs,
    )


def _homes(folder: Path) -> list[Path]:
    return sorted(run for run in folder.iterdir() if (run / "run.json").is_file())


def _forked(action: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            os._exit(0)
    return pid


def _last_tensors(folder: Path) -> list[dict[str, torch.Tensor]]:
    found = [read_checkpoint(find_checkpoint(run)) for run in _homes(folder)]
    return [{f"{g}/{k}": t for g, group in one.tensors.items() for k, t in group.items()} for one in found]


def _equal(folder: Path, other: Path) -> bool:
    ours, theirs = _last_tensors(folder), _last_tensors(other)
    return len(ours) == len(theirs) and all(
        a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a) for a, b in zip(ours, theirs)
    )


def kills(count: int) -> Iterator[Entry]:
    """Kill at a random moment, resume, compare."""
    moments = random.Random(1)
    with tempfile.TemporaryDirectory() as place:
        started = time.monotonic()
        train_population(members_of(_config(Path(place) / "undisturbed")), options=RunOptions(quiet=True))
        whole = time.monotonic() - started
        made = 0
        for number in itertools.count():
            if made == count:
                return
            folder = Path(place) / str(number)
            pid = _forked(partial(_train, folder))
            while not (folder.is_dir() and len(_homes(folder)) == MEMBERS):
                time.sleep(0.001)
            time.sleep(moments.uniform(0.05, 0.6) * whole)
            os.kill(pid, signal.SIGKILL)
            if not os.WIFSIGNALED(os.waitpid(pid, 0)[1]):
                continue  # it ended before the signal
            made += 1
            steps = {
                tuple(path.name for path in list_checkpoints(run / "checkpoints")[-1:]) for run in _homes(folder)
            }
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                resume_population(_homes(folder)[0], quiet=True)
            yield {
                "apart": len(steps) > 1,
                "equal": _equal(folder, Path(place) / "undisturbed"),
            }


def measure(options: argparse.Namespace) -> dict[str, Entry]:
    """All entries for the instruction set of this process."""
    torch.set_num_threads(1)
    name = torch.backends.cpu.get_cpu_capability().lower()
    common = report.stamp("cpu") | {"set": name}
    found: dict[str, Entry] = {}
    for algo in ALGORITHMS:
        case = Case(algo.upper(), algo, hidden=tuple(options.hidden))
        rows = cases.random_rows(case.layout)
        for batch in BATCHES:
            apart = distance(case, rows, batch, options.updates)
            fields: dict[str, Any] = {"kind": "member", "case": case.name, "batch": batch, "distance": apart}
            found[f"{name} {case.name} {batch}"] = (
                common
                | fields
                | {
                    "hidden": options.hidden,
                    "updates": options.updates,
                }
            )
            print(f"{name}: {case.name}, batch {batch}: {apart:.1e}", file=sys.stderr, flush=True)
    if options.kills:
        ends = list(kills(options.kills))
        found[f"{name} resumed"] = common | {"kind": "resumed", "ends": ends}
        print(f"{name}: {sum(end['equal'] for end in ends)} of {len(ends)} equal", file=sys.stderr, flush=True)
    return found


def in_a_process(name: str, options: argparse.Namespace) -> dict[str, Entry]:
    words = ["--here", "--updates", options.updates, "--kills", options.kills, "--hidden", *options.hidden]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.speed.rounding", *map(str, words)],
        env=os.environ | {"ATEN_CPU_CAPABILITY": name, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    entries: dict[str, Entry] = json.loads(done.stdout)
    return entries


def sections(entries: dict[str, Entry]) -> Sections:
    members = [entry for entry in entries.values() if entry["kind"] == "member"]
    resumed = [entry for entry in entries.values() if entry["kind"] == "resumed"]
    sets = [name for name in SETS if any(entry["set"] == name for entry in entries.values())]
    rows = []
    for algo in dict.fromkeys(entry["case"] for entry in members):
        for batch in BATCHES:
            found = {e["set"]: e["distance"] for e in members if (e["case"], e["batch"]) == (algo, batch)}
            rows.append([algo, batch, *("–" if name not in found else f"{found[name]:.1e}" for name in sets)])
    ends = {entry["set"]: entry["ends"] for entry in resumed}
    killed = [
        [name, len(e), sum(end["apart"] for end in e), sum(end["equal"] for end in e)] for name, e in ends.items()
    ]
    shapes = sorted({(tuple(entry["hidden"]), entry["updates"]) for entry in members})
    sizes = ", ".join(f"{'×'.join(map(str, hidden))} after {updates} updates" for hidden, updates in shapes)
    text = (
        "## Rounding in populations\n\nMeasured by `python -m benchmarks.speed.rounding`. The largest difference "
        f"of a parameter between a member of a population of three and its single run (float32, networks of "
        f"{sizes}), by instruction set of the CPU:\n\n"
        f"{table(['algorithm', 'batch', *sets], rows)}\n\n"
        "Populations that were killed with SIGKILL at a random moment and resumed, compared with an undisturbed "
        f"one:\n\n{table(['instruction set', 'killed', 'members at different steps', 'bit-identical'], killed)}\n\n"
        f"{report.origins(entries.values())}"
    )
    return {("performance/population", "rounding"): text}


def main() -> None:
    options = arguments()
    if options.here:
        print(json.dumps(measure(options)))
        return
    results = Results("rounding", options.json)
    for name in options.sets:
        results.add(in_a_process(name, options))
    results.render(sections)


if __name__ == "__main__":
    main()
