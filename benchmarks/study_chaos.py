"""Kill workers of a study at random and compare it, to the bit, with one that was left in peace.

    python -m benchmarks.study_chaos --trials 200 --workers 4 --kills 20 --folder /tmp/chaos

Two studies of the same short trials (DQN on CartPole, one thread). One runs undisturbed, trial by trial. The
other may train several as one (`--population`); `kill -9` meets workers that hold a trial, now and then the sweep
itself, which is then started again, and now and then a worker is only stopped for longer than its claim lasts, and
wakes up afterwards. In the end every trial must be
done, and equal in all its checkpoints' bytes, its log and its metrics.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rl_training.experiment.manifest import read_manifest
from rl_training.experiment.retention import list_checkpoints
from rl_training.experiment.runs import read_run_record
from rl_training.experiment.strict_yaml import dump_yaml
from rl_training.study.claims import read_claim
from rl_training.study.plan import read_plan
from rl_training.study.status import read_status

CLAIM_TIMEOUT = 5.0


def description(trials: int, steps: int, population: str) -> dict[str, Any]:
    """A study of that many short trials: two discounts, half of the seeds each."""
    settings = {
        "total_timesteps": steps,
        "device": "cpu",
        "eval_episodes": 1,
        "eval_interval": steps // 3,
        "log_interval": steps // 5,
        "checkpoint_interval": steps // 8,
        "learning_starts": 20,
        "train_frequency": 2,
        "gradient_updates_per_step": 1,
        "hidden_sizes": [16, 16],
        "batch_size": 16,
        "buffer_capacity": 1000,
    }
    seeds = list(range(max(1, trials // 2)))
    grid = {"gamma": [0.9, 0.99]}
    return {
        "name": "chaos",
        "base": "dqn/cartpole",
        "set": settings,
        "seeds": seeds,
        "grid": grid,
        "threads": 1,
        "claim_timeout": CLAIM_TIMEOUT,
        "population": int(population) if population.isdecimal() else population,
    }


def start(file: Path, output: Path, workers: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "rl_training", "--quiet", "sweep", str(file), "--workers", str(workers)]
    with (output / "sweep.log").open("ab") as log:
        return subprocess.Popen([*command, "--output-dir", str(output)], stdout=log, stderr=log)


def holders(folder: Path) -> list[int]:
    """The processes that hold a group now."""
    if not (folder / "plan.json").exists():
        return []
    claims = [read_claim(folder, group.name) for group in read_plan(folder).groups]
    owners = [claim.owner for claim in claims if claim is not None and claim.owner and not claim.released]
    return [owner.pid for owner in owners if not owner.is_gone]


def disturb(file: Path, output: Path, workers: int, kills: int, generator: random.Random) -> dict[str, int]:
    """Run the study to its end while workers, or the sweep itself, are killed or stopped; returns how often.

    The blows fall at random moments, but spread over the study.
    """
    done = {"workers killed": 0, "sweeps killed": 0, "workers stopped": 0}
    stopped: dict[int, float] = {}
    sweep = start(file, output, workers)
    while sweep.poll() is None or not read_status(output / "chaos").is_over:
        if sweep.poll() is not None:
            sweep = start(file, output, workers)
        time.sleep(generator.uniform(0.05, 1.0))
        for pid in [pid for pid, wake in stopped.items() if wake < time.monotonic()]:
            del stopped[pid]
            _send(pid, signal.SIGCONT)
        found = [pid for pid in holders(output / "chaos") if pid not in stopped]
        if found and sum(done.values()) < kills * _share_done(output / "chaos"):
            how = generator.choices(list(done), [0.7, 0.1, 0.2])[0]
            pid = sweep.pid if how == "sweeps killed" else generator.choice(found)
            _send(pid, signal.SIGSTOP if how == "workers stopped" else signal.SIGKILL)
            if how == "workers stopped":
                stopped[pid] = time.monotonic() + 2 * CLAIM_TIMEOUT
            done[how] += 1
    return done


def _share_done(folder: Path) -> float:
    """How much of a study is done, a little more than the truth, so that the last blow falls before its end."""
    status = read_status(folder)
    return min(1.0, (1 + status.counts["done"]) / (0.9 * len(status.trials)))


def _send(pid: int, signum: int) -> None:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return


def results(folder: Path) -> dict[str, Any]:
    """By trial: the hashes of its checkpoints' files, its log without times, its status and final metrics."""
    found: dict[str, Any] = {}
    for trial in read_plan(folder).trials:
        home = folder / "runs" / trial.name
        record = read_run_record(home)
        hashes = {
            f"{path.parent.name}/{path.name}/{name}": entry.sha256
            for parent in (home / "checkpoints", home / "best")
            for path in list_checkpoints(parent)
            for name, entry in read_manifest(path).files.items()
            if name != "config.json"  # it has the study's folder in it
        }
        with (home / "metrics.csv").open(newline="") as file:
            rows = [
                {key: value for key, value in row.items() if key not in ("time", "time/fps") and value}
                for row in csv.DictReader(file)
            ]
        found[trial.name] = (hashes, rows, record["status"], record["metrics"], record["exact_resume"])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--population", default="off", help="trials trained as one in the disturbed study")
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    peace, chaos = options.folder / "peace", options.folder / "chaos"
    for folder in (peace, chaos):
        folder.mkdir(parents=True)
    alone, grouped = options.folder / "alone.yaml", options.folder / "grouped.yaml"
    alone.write_text(dump_yaml(description(options.trials, options.steps, "off")))
    grouped.write_text(dump_yaml(description(options.trials, options.steps, options.population)))
    began = time.monotonic()
    start(alone, peace, options.workers).wait()
    middle = time.monotonic()
    done = disturb(grouped, chaos, options.workers, options.kills, random.Random(options.seed))
    end = time.monotonic()
    undisturbed, disturbed = results(peace / "chaos"), results(chaos / "chaos")
    differing = [name for name in undisturbed if undisturbed[name] != disturbed.get(name)]
    counts = read_status(chaos / "chaos").counts
    claims = [read_claim(chaos / "chaos", group.name) for group in read_plan(chaos / "chaos").groups]
    times = f"{middle - began:.0f} s in peace, {end - middle:.0f} s in chaos"
    print(f"{len(undisturbed)} trials, {options.workers} workers: {times}")
    print(", ".join(f"{count} {name}" for name, count in done.items()))
    print(f"in the end {counts}; {sum(c.generation - 1 for c in claims if c)} claims after the first")
    print(f"{len(differing)} differ {differing[:5]}")
    return 1 if differing or counts["done"] != len(undisturbed) else 0


if __name__ == "__main__":
    sys.exit(main())
