"""Success rates on OGBench's tasks with OGBench's protocol: 50 episodes of each of the last checkpoints of a run.

    python -m benchmarks.evidence run benchmarks/studies/ogbench.yaml --data DIR --output-dir studies --device cuda
    python -m benchmarks.evidence.success studies/ogbench [--last 3] [--episodes 50] [--processes N] [--json FILE]

The study is a folder or a packed file, which has one policy per run. Unfinished runs are evaluated at their last
checkpoint, and the table shows the number of updates they have made.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

import rl_training
from benchmarks import report
from benchmarks.report import Entry, Results, Sections, table
from rl_training.experiment.checkpointing import list_checkpoints
from rl_training.experiment.retention import step_of
from rl_training.memory import available_cores
from rl_training.study.packing import LAST as PACKED
from rl_training.study.packing import unpack_study
from rl_training.study.trials import record_of

LAST = 3  # number of checkpoints evaluated per run
# Published success in percent after one million updates on the official data (FQL's paper, eight seeds).
PUBLISHED = {
    "cube-single": {"bc": "3", "iql": "85 ± 8", "rebrac": "92 ± 4", "fql": "97 ± 2"},
    "scene": {"bc": "1", "iql": "12", "rebrac": "50 ± 13", "fql": "76 ± 9"},
    "puzzle-3x3": {"bc": "5", "iql": "33", "rebrac": "97", "fql": "90"},
}


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = report.arguments(__doc__)
    parser.add_argument("study", type=Path, help="folder or packed file of a study")
    parser.add_argument("--last", type=int, default=LAST, help="number of checkpoints to evaluate per run")
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--processes", type=int, default=available_cores())
    return parser.parse_args(given)


def evaluate(checkpoint: Path, episodes: int) -> float:
    torch.set_num_threads(1)
    return float(rl_training.load(checkpoint).evaluate(num_episodes=episodes)["eval_success_rate"])


def last_checkpoints(study: Path, last: int) -> list[Path]:
    """The `last` checkpoints of every run; a run of a packed study has one policy."""
    homes = sorted((study / "runs").iterdir())
    found = [list_checkpoints(home / "checkpoints") or list_checkpoints(home / PACKED) for home in homes]
    return [place for places in found for place in places[-last:]]


def measure(study: Path, options: argparse.Namespace) -> Iterable[tuple[str, Entry]]:
    places = last_checkpoints(study, options.last)
    look = partial(evaluate, episodes=options.episodes)
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        for place, success in zip(places, pool.map(look, places)):
            record, newest = record_of(place.parents[1]), list_checkpoints(place.parent)[-1]
            entry = {"env": record["env_id"], "algo": record["algo"], "seed": record["seed"], "success": success,
                     "updates": step_of(place), "last": step_of(newest), "episodes": options.episodes}  # fmt: skip
            key = "/".join(str(entry[name]) for name in ("env", "algo", "updates", "seed"))
            yield key, report.stamp("cpu") | entry


def _newest(entries: Iterable[Entry]) -> list[Entry]:
    """The entries of the newest measurement of each run; earlier ones were made before it trained further."""
    runs: dict[tuple[Any, ...], list[Entry]] = {}
    for one in entries:
        runs.setdefault((one["env"], one["algo"], one["seed"]), []).append(one)
    found = []
    for of_run in runs.values():
        newest = max(of_run, key=lambda one: one["updates"])
        found += [one for one in of_run if one.get("last") == newest.get("last")]
    return found


def sections(entries: dict[str, Entry]) -> Sections:
    groups: dict[tuple[str, str], dict[int, dict[int, float]]] = {}
    for one in _newest(entries.values()):
        task = one["env"].removeprefix("ogbench/").partition("-play")[0]
        groups.setdefault((task, one["algo"]), {}).setdefault(one["seed"], {})[one["updates"]] = one["success"]
    rows = []
    for task, algo in ((task, algo) for task, published in PUBLISHED.items() for algo in published):
        if not (seeds := groups.get((task, algo))):
            rows.append([task, algo, "–", 0, "–", "–", PUBLISHED[task][algo]])
            continue
        values = [
            100 * statistics.fmean(found[n] for n in sorted(found)[-LAST:]) for _, found in sorted(seeds.items())
        ]
        steps = [max(found) for found in seeds.values()]
        rows.append([task, algo, f"{min(steps):,}", len(seeds), report.spread(values), report.returns(values),
                     PUBLISHED[task][algo]])  # fmt: skip
    header = ["task", "algorithm", "updates", "seeds", "success, %", "each seed", "published, a million updates"]
    head = (
        "# OGBench\n\nWritten by `python -m benchmarks.evidence.success`: play data generated with seed 0 by "
        "`benchmarks.ogbench_data`, the packaged configurations with TF32, mean and standard deviation over seeds, "
        f"{' or '.join(str(n) for n in sorted({e['episodes'] for e in entries.values()}))} episodes a checkpoint. "
        "The last column is from FQL's paper (official data, last three of ten evaluations)."
    )
    text = "\n\n".join([head, table(header, rows), report.origins(entries.values())])
    return {("results/ogbench", "success"): text}


def main(given: list[str] | None = None) -> None:
    options = arguments(given)
    results = Results("success", options.json)
    with tempfile.TemporaryDirectory() as made:
        study = options.study if options.study.is_dir() else unpack_study(options.study, Path(made) / "study")
        for key, entry in measure(study, options):
            results.add({key: entry})
            print(key, entry["success"], flush=True)
    results.show(sections)


if __name__ == "__main__":
    main()
