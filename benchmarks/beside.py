"""What evaluating costs a run from data: in turn with training, beside it, and not at all.

    python -m benchmarks.beside --data FILE [--algo edac] [--updates 100000] [--interval 5000] [--episodes 5]
                                [--set KEY=VALUE] [--device D] [--json FILE]

The same run once for each way in one process, after a short one that compiles: without evaluation, which is the
learner's own time; with `evaluate_beside: true`; with `evaluate_beside: false`. Seconds are those from the
beginning of training to its end, the last evaluation and the checkpoints included.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.report import Entry, Results, Sections, table
from benchmarks.runs import configure, dataset_settings
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.building import choose_device
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Launch
from rl_training.runtime.session import Session

GOAL = 1.1
CONFIGS = {algo: f"{algo}/halfcheetah-medium" for algo in ("edac", "iql", "td3_bc")}
WAYS: dict[str, dict[str, Any]] = {
    "none": {"eval_episodes": 0},
    "beside": {"evaluate_beside": True},
    "in turn": {"evaluate_beside": False},
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="npz file")
    parser.add_argument("--algo", choices=CONFIGS, default="edac")
    parser.add_argument("--updates", type=int, default=100_000)
    parser.add_argument("--interval", type=int, default=5_000)
    parser.add_argument("--episodes", type=int, default=5)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="`none` is always among them")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE")
    parser.add_argument("--device", default=report.default_device())
    parser.add_argument("--json", type=Path, help="keep results here and leave the documentation alone")
    return parser.parse_args()


class Start(Callback):
    """When training began: all is loaded and built."""

    at = 0.0

    def on_training_start(self, session: Session) -> None:
        self.at = time.perf_counter()


def seconds(config: TrainConfig) -> tuple[float, dict[str, float]]:
    """Of a run, from the beginning of training; and its metrics."""
    start = Start()
    with tempfile.TemporaryDirectory() as folder:
        run = get_algorithm_spec(config.algo).train(
            config.replace(output_dir=folder), launch=Launch(quiet=True), callbacks=[start]
        )
        return time.perf_counter() - start.at, run.metrics


def measure(options: argparse.Namespace) -> Entry:
    data = dataset_settings([options.data])

    def config(updates: int, way: str) -> TrainConfig:
        fields = {"eval_episodes": options.episodes, "checkpoint_interval": options.updates} | WAYS[way]
        return configure(
            CONFIGS[options.algo],
            options.algo,
            options.set,
            device=options.device,
            total_timesteps=updates,
            seed=0,
            algo_kwargs=data | {"eval_interval": options.interval if way != "none" else None},
            **fields,
        )

    seconds(config(200, "none"))  # compiles
    found: Entry = {}
    for way in dict.fromkeys(("none", *options.ways)):
        spent, metrics = seconds(config(options.updates, way))
        found[way] = {"seconds": spent, "return": metrics.get("eval_return_mean")}
        print(way, found[way], flush=True)
    return found


def sections(entries: dict[str, Entry]) -> Sections:
    if not entries:
        return {}
    rows = []
    for entry in entries.values():
        own = entry["ways"]["none"]["seconds"]
        ratios = {way: found["seconds"] / own for way, found in entry["ways"].items()}
        evaluations = f"{entry['updates'] // entry['interval']} × {entry['episodes']} episodes"
        verdict = "–"
        if "beside" in ratios:
            verdict = f"{GOAL}×: {'met' if ratios['beside'] <= GOAL else 'missed'}"
        rows.append(
            [
                f"{entry['algo']} ({entry['machine']})",
                f"{entry['updates']:,}",
                evaluations,
                f"{own:.1f}",
                *(
                    f"{ratio * own:.1f} ({ratio:.2f}×)" if (ratio := ratios.get(way)) else "not measured"
                    for way in WAYS
                    if way != "none"
                ),
                verdict,
            ]
        )
    head = ["", "updates", "evaluations", "without, s", "beside, s", "in turn, s", "goal"]
    text = (
        "## Evaluating beside training\n\nWritten by `python -m benchmarks.beside`: the same run from "
        "HalfCheetah's data once for each column, in one process and compiled before; seconds of training, "
        f"last evaluation and checkpoints included. On a GPU `beside` is the default without `early_stopping`; "
        f"{_baseline(entries)}\n\n{table(head, rows)}\n\n"
        f"{report.origins(list(entries.values()))}"
    )
    return {("performance", "beside"): text}


def _baseline(entries: dict[str, Entry]) -> str:
    """What can be said of the default against evaluating in turn."""
    if all("in turn" in entry["ways"] for entry in entries.values()):
        return "`in turn` is what it replaces."
    return "a row without a measurement of `in turn`, which it replaces, does not say what the default saves."


def main() -> None:
    options = arguments()
    results = Results("beside", options.json)
    entry = {
        "algo": options.algo,
        "updates": options.updates,
        "interval": options.interval,
        "episodes": options.episodes,
        "overrides": options.set,
        "ways": measure(options),
    }
    device = str(choose_device(options.device))
    results.add({f"{device} {options.algo} {options.updates}": entry | report.stamp(device)})
    results.render(sections)


if __name__ == "__main__":
    main()
