"""Start-up time of commands, imports, and environments in separate processes.

    python -m benchmarks.speed.startup [--repeats 5] [--json FILE]

Every program is started anew in each round, so that other load on the machine affects all programs alike. Goals are
printed but not rendered, and assume idle cores. If a program is a single process, its CPU time is compared with the
goal, because other load affects it less. A goal with a plus is relative to another row: the import of torch, a
minimal process, or the same run with local environments.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import report
from benchmarks.report import Entry, Results, Sections, table
from rl_training.environments.pool import EnvPool
from rl_training.experiment.config import TrainConfig

ENV_ID = "Pendulum-v1"
STEPS = 400
SEVERAL = 8
ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
}

COMMAND = ("-m", "rl_training")
TRAIN = (*COMMAND, "train")
PROGRAMS = {
    "rl-training --version": (*COMMAND, "--version"),
    "rl-training --help": (*COMMAND, "--help"),
    "a misspelt command": (*COMMAND, "trian"),
    "a misspelt option": (*TRAIN, "--confg", "sac/pendulum"),
    "a misspelt configuration": (*TRAIN, "--config", "sac/pendulun"),
    "a misspelt algorithm": (*TRAIN, "--algo", "sacc", "--env", ENV_ID, "--steps", "1e3"),
    "import rl_training": ("-c", "import rl_training"),
    "import torch": ("-c", "import torch"),
    "rl_training.SAC": ("-c", "import rl_training; rl_training.SAC"),
}
BARE = f"""
import gymnasium as gym
gym.make({ENV_ID!r}, disable_env_checker=True).reset(seed=1)
print(flush=True)
input()
"""
LEARN = f"""
import sys, time
from rl_training import SAC
small = dict(hidden_sizes=[32], batch_size=32, learning_starts={STEPS - 10})  # updates are not what is measured
model = SAC({ENV_ID!r}, environments=sys.argv[1], output_dir=sys.argv[2], **small)
started = time.perf_counter()
model.learn({STEPS}, progress_bar=False)
print(time.perf_counter() - started)
"""
BARE_ENV, OWN_ENV, OWN_ENVS = "environment, bare process", "environment, our process", f"{SEVERAL} of them together"
LOCAL, PROCESSES = (f"{STEPS} steps, environments: {kind}" for kind in ("local", "processes"))
# Goals: seconds, or seconds and megabytes in addition to another row.
GOALS: dict[str, tuple[float, str | None]] = {
    **dict.fromkeys(list(PROGRAMS)[:6], (0.4, None)),
    "rl_training.SAC": (0.3, "import torch"),
    OWN_ENV: (0.3, BARE_ENV),
    PROCESSES: (3.0, LOCAL),
}
MEGABYTES = {OWN_ENV: (25.0, BARE_ENV)}

Sample = dict[str, float]


def program(words: tuple[str, ...]) -> Sample:
    """Time a program from start to exit."""
    started = time.perf_counter()
    silent = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, *words], env=ENVIRONMENT, stdout=silent, stderr=silent)
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0  # the process has already been waited for
    return {"seconds": time.perf_counter() - started, "cpu": usage.ru_utime + usage.ru_stime}


def resident(pid: int) -> float:
    """Resident memory of a process in megabytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def bare_environment() -> Sample:
    """A process that only imports Gymnasium and resets an environment."""
    started = time.perf_counter()
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", BARE], env=ENVIRONMENT, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = {"seconds": time.perf_counter() - started, "megabytes": resident(process.pid)}
        process.communicate(b"\n")
    return found


def own_environments(count: int) -> Sample:
    """The same in our environment processes, up to the first observation of the last one."""
    config = TrainConfig(algo="sac", env_id=ENV_ID, total_timesteps=1, num_envs=count, environments="processes")
    started = time.perf_counter()
    pool = EnvPool(config)
    try:
        for index in range(count):
            pool.reset(index)
        found = {"seconds": time.perf_counter() - started}
        memory = [resident(env._process.pid) for env in pool.envs]  # type: ignore[attr-defined]
        return found | {"megabytes": statistics.median(memory)}
    finally:
        pool.close()


def learning(kind: str) -> Sample:
    """A short run with five evaluation episodes; imports are not counted."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", LEARN, kind, folder]
        done = subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, text=True)
    return {"seconds": float(done.stdout)}


def measurements() -> dict[str, Callable[[], Sample]]:
    found: dict[str, Callable[[], Sample]] = {
        name: lambda words=words: program(words)  # type: ignore[misc]
        for name, words in PROGRAMS.items()
    }
    return found | {
        BARE_ENV: bare_environment,
        OWN_ENV: lambda: own_environments(1),
        OWN_ENVS: lambda: own_environments(SEVERAL),
        LOCAL: lambda: learning("local"),
        PROCESSES: lambda: learning("processes"),
    }


def measure(repeats: int) -> dict[str, Entry]:
    """All samples of every measurement; the first round, which reads files from disk, is discarded."""
    samples: dict[str, list[Sample]] = {name: [] for name in measurements()}
    for turn in range(repeats + 1):
        for name, take in measurements().items():
            sample = take()
            if turn:
                samples[name].append(sample)
        print(f"round {turn} of {repeats}, load {os.getloadavg()[0]:.1f}", flush=True)
    stamp = report.stamp("cpu") | {"load": os.getloadavg()[0]}
    return {
        name: stamp | {"name": name, "kind": "startup"} | {key: [one[key] for one in found] for key in found[0]}
        for name, found in samples.items()
    }


def rows(entries: dict[str, Entry]) -> list[list[str]]:
    """Cells of each measurement; the last cell contains the goals."""
    median: dict[tuple[str, str], float] = {
        (name, key): statistics.median(entry[key])
        for name, entry in entries.items()
        for key in ("seconds", "cpu", "megabytes")
        if key in entry
    }
    found = []
    for name in (name for name in measurements() if name in entries):
        seconds = entries[name]["seconds"]
        verdicts = []
        spent = "cpu" if "cpu" in entries[name] else "seconds"
        for unit, key, goals in (("s", spent, GOALS), ("MB", "megabytes", MEGABYTES)):
            if name in goals:
                most, beyond = goals[name]
                excess = median[name, key] - (median[beyond, key] if beyond else 0.0)
                verdict = "met" if excess <= most else "missed"
                verdicts.append(f"{'+' if beyond else ''}{most:g} {unit}: {verdict} ({excess:.2g} {unit})")
        found.append(
            [
                name,
                f"{median[name, 'seconds']:.2f} ({min(seconds):.2f} to {max(seconds):.2f})",
                *(f"{median[name, key]:.{digits}f}" if (name, key) in median else "–"
                  for key, digits in (("cpu", 2), ("megabytes", 0))),
                ", ".join(verdicts) or "–",
            ]
        )  # fmt: skip
    return found


def sections(entries: dict[str, Entry]) -> Sections:
    here = list(entries.values())
    load = ", ".join(sorted({f"{entry['load']:.1f}" for entry in here}))
    text = [
        "## Start-up",
        "",
        "Measured by `python -m benchmarks.speed.startup`.",
        "",
        table(["", "seconds (spread)", "CPU seconds", "MB"], [cells for *cells, _ in rows(entries)]),
        "",
        f"{report.origins(here)} Load of the machine at the end: {load}.",
    ]
    return {("performance/startup", "startup"): "\n".join(text)}


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    results = Results("startup", options.json)
    entries = measure(options.repeats)
    results.add(entries)
    print()
    for row in rows(entries):
        print(" | ".join(row))
    results.render(sections)


if __name__ == "__main__":
    main()
