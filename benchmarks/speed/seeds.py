"""Training time of many seeds: as a population, as single runs, with one process per seed, and with
Stable-Baselines3.

    python -m benchmarks.speed.seeds --env HalfCheetah-v5 --seeds 10 --steps 100000 [--singles 2]
                               [--peer-steps 20000] [--json FILE]
    python -m benchmarks.speed.seeds --env Pendulum-v1 --seeds 4 --steps 3000 --processes 1 2 [--json FILE]

Trains SAC with its packaged configuration for the environment, without evaluation. Seconds are those of the whole
call: set-up, compilation, training and the last checkpoint. Two measurements are extrapolated and marked as such:
`--singles` of the seeds are trained one after another, and Stable-Baselines3 trains one seed for `--peer-steps`
steps. `--processes` additionally trains each seed in its own process, all concurrently, with each of these numbers
of CPU threads per process. All other measurements use torch's default number of threads.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import report
from benchmarks.report import Entry, Results, Sections, table
from benchmarks.runs import configure, seconds_of_run
from benchmarks.speed.training import theirs
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.strict_yaml import dump_yaml
from rl_training.runs.building import choose_device
from rl_training.runs.spec import RunOptions
from rl_training.runtime.populations import members_of, train_population

POPULATION = "one population"


def arguments() -> argparse.Namespace:
    parser = report.arguments(__doc__)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--config", help="path or sac/<name>; default: that of the environment")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--population", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--singles", type=int, default=2, help="seeds trained one after the other")
    parser.add_argument(
        "--processes",
        nargs="+",
        type=int,
        default=[],
        metavar="THREADS",
        help="also train all seeds concurrently, with one process each",
    )
    parser.add_argument("--peer-steps", type=int, default=0, help="steps of Stable-Baselines3; 0: not measured")
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def together(config: TrainConfig, seeds: int) -> float:
    """Seconds of a population."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        members = members_of(config.replace(output_dir=folder, seeds=list(range(seeds))))
        train_population(members, options=RunOptions(quiet=True))
        return time.perf_counter() - started


def one_by_one(config: TrainConfig, seeds: int) -> list[float]:
    """Seconds of each single run in this process."""
    return [seconds_of_run(config.replace(seed=seed)) for seed in range(seeds)]


def extrapolated(alone: list[float], seeds: int) -> float:
    """Seconds of this many single runs in one process; only the first one compiles."""
    first, *others = alone
    return first + (seeds - 1) * (sum(others) / len(others) if others else first)


def processes(config: TrainConfig, seeds: int, threads: int) -> float:
    """Seconds until one process per seed has ended; all start together, and imports are included."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(dump_yaml(config.replace(output_dir=folder).to_dict()), encoding="utf-8")
        command = [sys.executable, "-m", "rl_training", "--quiet", "train", "--config", str(file), "--seed"]
        started = time.perf_counter()
        running = [subprocess.Popen([*command, str(seed)], env=environment) for seed in range(seeds)]
        if max(process.wait() for process in running) > 0:
            raise SystemExit("a process failed")
        return time.perf_counter() - started


def measure(config: TrainConfig, options: argparse.Namespace) -> Iterator[tuple[str, float, str]]:
    """Seconds of every way, and how they were obtained. The population comes first, so that it includes one-time
    costs of the process."""
    seeds, singles = options.seeds, options.singles
    if options.population:
        yield POPULATION, together(config, seeds), "measured"
    if singles:
        alone = one_by_one(config, singles)
        each = " and ".join(f"{seconds:.1f}" for seconds in alone)
        how = "measured" if singles == seeds else f"extrapolated from {singles} seeds: {each} s"
        yield "single runs, one after the other", extrapolated(alone, seeds), how
    for threads in options.processes:
        way = f"a process for each, {threads} thread{'s' * (threads > 1)}"
        yield way, processes(config, seeds, threads), "measured"
    if options.peer_steps:
        steady, _ = theirs(config.replace(total_timesteps=options.peer_steps, seed=0))
        how = f"extrapolated from {steady:.0f} steps/s over {options.peer_steps:,} steps of one seed"
        yield "Stable-Baselines3, one after the other", seeds * config.total_timesteps / steady, how


def task(entry: Entry) -> str:
    return f"SAC {entry['env']}, {entry['seeds']} seeds × {entry['steps']:,} steps"


def sections(entries: dict[str, Entry]) -> Sections:
    if not entries:
        return {}
    found = list(entries.values())
    base = {(task(e), e["machine"]): e["seconds"] for e in found if e["way"] == POPULATION}
    rows = []
    for entry in sorted(found, key=lambda e: (task(e), e["machine"], e["seconds"])):
        whole = base.get((task(entry), entry["machine"]))
        ratio = "–" if whole is None else f"{entry['seconds'] / whole:.1f}×"
        minutes = f"{entry['seconds'] / 60:.1f}"
        rows.append([task(entry), entry["machine"], entry["way"], minutes, ratio, entry["how"]])
    header = ["", "machine", "method", "minutes", "compared with the population", "how"]
    origin = "Measured by `python -m benchmarks.speed.seeds`; see [Many seeds and studies](../guides/seeds.md)."
    text = f"## Minutes for many seeds\n\n{origin}\n\n{table(header, rows)}\n\n{report.origins(found)}"
    return {("performance/population", "seeds"): text}


def main() -> None:
    options = arguments()
    source = options.config or f"sac/{options.env.rpartition('-')[0].lower()}"
    config = configure(
        source,
        "sac",
        options.set,
        env_id=options.env,
        total_timesteps=options.steps,
        device=options.device,
        eval_episodes=0,
        algo_kwargs={"eval_interval": None, "early_stopping": None},
    )
    results, stamp = Results("seeds", options.json), report.stamp(str(choose_device(config.device)))
    about = {"env": options.env, "config": source, "overrides": options.set, "seeds": options.seeds}
    for way, seconds, how in measure(config, options):
        entry = stamp | about | {"steps": options.steps, "way": way, "seconds": seconds, "how": how}
        results.add({f"{stamp['machine']}/{options.env}/{options.seeds} x {options.steps}/{way}": entry})
        print(f"{way}: {seconds:.1f} s ({how})", flush=True)
    results.show(sections)


if __name__ == "__main__":
    main()
