"""Updates per second of a population, S members of one algorithm trained together, and of a single run.

    python -m benchmarks.speed.population [--algo iql sac …] [--sizes 1 8 32] [--device cuda|cpu] [--tf32] [--bf16]
                                    [--acceleration MODE] [--seconds 4] [--blocks 5] [--batch 256] [--json FILE]
    … --profile    print the kernels of an update of all members instead, by name

Observations have 17 dimensions and actions 6; computation is in float32, all members share one data set on the
device, and networks are those of `benchmarks.speed.updates`. A seed-update is one update of one member: n updates
of S members are S · n seed-updates. Size 1 is an ordinary single run; the gain is the number of seed-updates per
second relative to it. Memory per member is, on a GPU, the peak memory of the process without the data, divided by
S; on a CPU, the bytes of networks, gradients and moments.
"""

from __future__ import annotations

import argparse
import gc
from itertools import chain

import torch

from benchmarks import report
from benchmarks.report import Entry, Results, Sections, number, table
from benchmarks.speed import cases, depth, setup
from benchmarks.speed.cases import Case
from benchmarks.speed.timing import alternate
from rl_training.algorithms.base import Learner
from rl_training.data.sources import TensorSource
from rl_training.updates import updater as running
from rl_training.updates.stack import Stack
from rl_training.updates.stacked import StackedUpdater
from rl_training.updates.updater import Acceleration, Updater

# One algorithm of each kind: separate value function, soft actor, deterministic actor, ensemble.
_USUAL = ["iql", "sac", "td3_bc", "redq"]


def arguments() -> argparse.Namespace:
    parser = setup.arguments(__doc__, seconds=4.0)
    parser.add_argument("--bf16", action="store_true", help="bfloat16 for wide layers, TF32 for the others")
    parser.add_argument("--algo", nargs="+", default=_USUAL, help="names of algorithms or cases")
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 8, 32], metavar="S")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    if min(options.sizes) < 1:
        parser.error("--sizes must be at least 1")
    return options


def population(case: Case, rows: torch.Tensor, members: int, acceleration: Acceleration, batch: int) -> Updater:
    """Updater of this many members on the same rows; for one member, that of a single run."""
    learners = [cases.build(case, rows.device, seed=seed) for seed in range(members)]
    updaters = []
    for learner in learners:
        running.accelerate(learner, acceleration)
        updaters.append(Updater(learner, TensorSource(rows, case.layout, learner.generator), batch))
    return updaters[0] if members == 1 else StackedUpdater(Stack(learners), updaters)


def _bytes_of(learner: Learner) -> int:
    """Bytes of networks, gradients and moments of one member."""
    optimizers = learner.optimizers.values()
    networks = chain.from_iterable(chain(m.parameters(), m.buffers()) for m in learner.modules().values())
    moments = [moment for o in optimizers for moment in (*o.exp_avg, *o.exp_avg_sq)]
    gradients = [parameter for o in optimizers for parameter in o.parameters]
    return sum(tensor.nbytes for tensor in (*networks, *moments, *gradients))


def _taken_on(device: torch.device) -> int:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_reserved(device)


def prepared(case: Case, members: int, options: argparse.Namespace, rows: torch.Tensor) -> Updater:
    """A population whose updates are compiled and captured."""
    updater = population(case, rows, members, options.acceleration, options.batch)
    updater.run((2 * max(updater.blocks) if rows.is_cuda else 1) * case.period)
    return updater


def measure(case: Case, members: int, options: argparse.Namespace, device: torch.device) -> Entry:
    """Seed-updates per second and memory for one size."""
    on_gpu = device.type == "cuda"
    rows = cases.random_rows(case.layout).to(device)
    before = _taken_on(device) if on_gpu else 0
    updater = prepared(case, members, options, rows)
    found = alternate({"ours": updater}, seconds=options.seconds, blocks=options.blocks, period=case.period)
    taken = torch.cuda.max_memory_reserved(device) - before if on_gpu else members * _bytes_of(updater.learner)
    return {
        "kind": "population",
        "case": case.name,
        "members": members,
        "hidden": list(case.hidden),
        "batch": options.batch,
        "mode": updater.learner.execution.acceleration,
        "tf32": options.tf32,
        "bf16": options.bf16,
        "rate": members * found["ours"].median,
        "blocks": [members * rate for rate in found["ours"].blocks],
        "bytes_per_member": taken / members,
    }


def _group(entry: Entry) -> tuple[str, ...]:
    """Fields within which sizes are compared: machine, case, mode, precision and batch size."""
    place = (entry["machine"], f"{entry['threads']} threads" if entry["device"] == "cpu" else "")
    return (*place, entry["case"], f"{entry['mode']}, {setup.precision_of(entry)}", str(entry["batch"]))


def _memory(taken: float | None) -> str:
    """Memory per member; unknown if several sizes ran in one process, because memory of one counts for the next."""
    return "–" if taken is None else f"{taken / 2**20:.1f} MiB"


def _place(entry: Entry) -> str:
    """Machine, number of CPU threads, and mode."""
    machine, threads, _, mode, _ = _group(entry)
    return ", ".join(part for part in (machine.split(",")[0], threads, mode.partition(",")[0]) if part)


def rows_of(entries: list[Entry]) -> list[list[str]]:
    singles = {_group(entry): entry["rate"] for entry in entries if entry["members"] == 1}
    rows = []
    for entry in sorted(entries, key=lambda e: (_group(e), e["members"])):
        single = singles.get(_group(entry))
        batch = "" if entry["batch"] == 256 else f" (batch {entry['batch']})"
        rows.append(
            [
                entry["case"] + batch + ("" if (used := setup.precision_of(entry)) == "float32" else f", {used}"),
                str(entry["members"]),
                number(entry["rate"]),
                number(entry["rate"] / entry["members"]),
                "–" if single is None else f"{entry['rate'] / single:.1f}×",
                _memory(entry["bytes_per_member"]),
            ]
        )
    return rows


def text_of(entries: list[Entry]) -> str:
    header = [
        "algorithm",
        "members",
        "updates/s of all members",
        "updates/s of each",
        "gain over one",
        "memory per member",
    ]
    parts = []
    for place in dict.fromkeys(map(_place, entries)):
        rows = rows_of([entry for entry in entries if _place(entry) == place])
        parts += [f"**{place}**", table(header, rows)]
    return "\n\n".join([*parts, report.origins(entries)])


def sections(entries: dict[str, Entry]) -> Sections:
    """All measurements as one table."""
    found = list(entries.values())
    if not found:
        return {}
    origin = (
        "Measured by `python -m benchmarks.speed.population`; see [Many seeds and studies](../guides/seeds.md)."
    )
    return {
        (
            "performance/population",
            "population",
        ): f"## Updates per second of a population\n\n{origin}\n\n{text_of(found)}"
    }


def main() -> None:
    options = arguments()
    results = Results("population", options.json)
    device, stamp, place = setup.prepare(options)
    measured = []
    for case in cases.find(options.algo):
        for members in sorted({*options.sizes}):
            if options.profile:
                updater = prepared(case, members, options, cases.random_rows(case.layout).to(device))
                print(f"{case.name}, {members}: {depth.described(depth.kernels_of(updater, device))}", flush=True)
                continue
            entry = stamp | measure(case, members, options, device)
            size = f"{members}/{options.batch}" if options.batch != 256 else str(members)
            results.add({f"{place}/{case.name}/{size}": entry})
            measured.append(entry)
            print(f"{case.name}, {members}: {number(entry['rate'])} seed-updates/s", flush=True)
    if measured:
        print(f"\n{text_of(measured)}")
        results.render(sections)


if __name__ == "__main__":
    main()
