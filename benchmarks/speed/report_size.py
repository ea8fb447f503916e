"""Time and memory needed to read and report thousands of runs.

    python -m benchmarks.speed.report_size [--runs 2000] [--folder DIR] [--json FILE]

The package writes one run folder. It is copied for every seed, setting and task with different evaluations (100
evaluations among 200 rows of training metrics). Reading the runs and writing the page are measured in separate
processes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import SCHEMA, encode_json
from rl_training.experiment.registry import resolve
from rl_training.experiment.runs import RECORD, RESOLVED, RunDirectory, read_run_record
from rl_training.experiment.strict_yaml import dump_yaml

SEEDS = 10
TASKS = ("HalfCheetah-v5", "Hopper-v5")
EVALUATIONS = 100
COLUMNS = [
    *("step", "time", "schema", "train/actor_loss", "train/critic_loss", "train/entropy_term", "train/ent_coef"),
    *("train/target_q_mean", "train/learning_rate", "train/n_updates", "time/fps", "time/total_timesteps"),
    *("rollout/ep_rew_mean", "rollout/ep_len_mean", "eval/mean_reward", "eval/std_reward", "eval/min_reward"),
    *("eval/max_reward", "eval/mean_ep_length", "eval/episodes"),
]
PROGRAM = """
import json, pathlib, sys, time
started = time.perf_counter()
{work}
peak = pathlib.Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
print(json.dumps({{"seconds": round(time.perf_counter() - started, 2), "CPU seconds": round(time.process_time(), 2),
    "MiB": int(peak) // 1024, "runs": runs, "torch": "torch" in sys.modules}}))
"""
WORK = {
    "reading": "from rl_training.report.reading import read_runs; runs = len(read_runs(sys.argv[1]).runs)",
    "page": "from rl_training import report; found = report.read(sys.argv[1]); found.save(sys.argv[2]); "
    "runs = len(found.summary.reading.runs)",
}


def write_runs(folder: Path, runs: int) -> None:
    """Write run folders: several settings with ten seeds each, on two tasks."""
    rng = np.random.default_rng(0)
    record: dict[str, Any] | None = None
    for number in range(runs):
        task, seed = TASKS[number % len(TASKS)], number // len(TASKS) % SEEDS
        rate = 1e-4 * (1 + number // (len(TASKS) * SEEDS))
        kwargs = {"learning_rate": rate}
        config = TrainConfig(algo="sac", env_id=task, seed=seed, total_timesteps=1_000_000, algo_kwargs=kwargs)
        settings = {**config.to_dict(), "algo_kwargs": resolve(config).to_dict()}
        if record is None:
            with RunDirectory.create(config.replace(output_dir=str(folder / "first")), settings) as made:
                made.update(status="finished", seconds=3600.0)
            record = read_run_record(made.path)
        home = folder / f"{task}__sac__{number:05d}"
        home.mkdir()
        metrics = {"eval_return_mean": 1.0, "eval_return_std": 10.0, "update_count": 1_000_000}
        (home / RECORD).write_bytes(encode_json({**record, "env_id": task, "seed": seed, "metrics": metrics}))
        (home / RESOLVED).write_text(dump_yaml(settings), encoding="utf-8")
        (home / "metrics.csv").write_text(_log(rng, rate), encoding="utf-8")


def _log(rng: np.random.Generator, rate: float) -> str:
    lines = [",".join(COLUMNS)]
    numbers = rng.standard_normal((3 * EVALUATIONS, len(COLUMNS)))
    returns = np.cumsum(rng.normal(30 + 1e4 * rate, 60, EVALUATIONS))
    for row, values in enumerate(numbers):
        is_evaluation = row % 3 == 2
        cells = [str((row + 1) * 3_333), f"{1.8e9 + row * 12:.3f}", str(SCHEMA)]
        for name, value in zip(COLUMNS[3:], values[3:].tolist()):
            cells.append(repr(value) if name.startswith("eval/") == is_evaluation else "")
        if is_evaluation:
            cells[COLUMNS.index("eval/mean_reward")] = repr(float(returns[row // 3]))
        else:
            cells[COLUMNS.index("train/n_updates")] = repr(float((row + 1) * 3_333))
        lines.append(",".join(cells))
    return "\n".join(lines) + "\n"


def measure(folder: Path, page: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, work in WORK.items():
        command = [sys.executable, "-c", PROGRAM.format(work=work), str(folder), str(page)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[name] = json.loads(done.stdout)
    found["page"]["page_bytes"] = page.stat().st_size
    found["page"]["json_bytes"] = page.with_suffix(".json").stat().st_size
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2_000)
    parser.add_argument("--folder", type=Path, help="folder in which the runs and the page are kept")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        home = args.folder or Path(scratch)
        runs = home / "runs"
        if not runs.is_dir():
            runs.mkdir(parents=True)
            write_runs(runs, args.runs)
        found = measure(runs, home / "report.html")
    print(json.dumps(found, indent=1))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
