"""What classes learn with nothing set, `SAC("Pendulum-v1", seed=0).learn(10_000)`, and what a changed default did.

Called by `python -m benchmarks.learning --defaults` and `--halfcheetah`. `BARE` is the only home of the budgets
that the README tells, and of the returns that count as having learned: set before anything was measured, and asked
of every seed.

- Pendulum-v1, -200: swung up and held; random actions get -1,200, the best possible is about -140.
- CartPole-v1, 450 of 500.
- Behaviour cloning copies good and bad episodes alike: it has to reach the mean return of its data, no more, less
  the standard error that as many episodes of the data would have as it is judged by.
- The other offline algorithms, and RLPD, have data (`--data`) from which -200 can be learned: a replay buffer of an
  agent that did, from its first random episodes on.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rl_training
from benchmarks import report
from benchmarks.report import ROOT, Entry, Results, name_of, table
from benchmarks.runs import Watch, data_returns, perform_all
from rl_training import ManagedAlgorithm, TrainConfig
from rl_training.environments.making import spaces_of
from rl_training.experiment.compat import with_defaults_of
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs
from rl_training.runs.building import choose_device

EPISODES = {"defaults": 20, "before-after": 10}
PENDULUM, CARTPOLE, HALFCHEETAH = "Pendulum-v1", "CartPole-v1", "HalfCheetah-v5"


@dataclass(frozen=True)
class Bare:
    """Where a bare class is tried, its budget (steps; offline, updates) and the return it must reach."""

    env: str
    budget: int
    line: float | None  # None: what the data's own episodes return


BARE: Mapping[str, Bare] = {
    "dqn": Bare(CARTPOLE, 50_000, 450.0),
    "ddpg": Bare(PENDULUM, 15_000, -200.0),
    "td3": Bare(PENDULUM, 15_000, -200.0),
    "sac": Bare(PENDULUM, 10_000, -200.0),
    "tqc": Bare(PENDULUM, 15_000, -200.0),
    "redq": Bare(PENDULUM, 5_000, -200.0),
    "bc": Bare(PENDULUM, 10_000, None),
    "td3_bc": Bare(PENDULUM, 10_000, -200.0),
    "iql": Bare(PENDULUM, 50_000, -200.0),
    "cql": Bare(PENDULUM, 30_000, -200.0),
    "awac": Bare(PENDULUM, 30_000, -200.0),
    "crr": Bare(PENDULUM, 10_000, -200.0),
    "edac": Bare(PENDULUM, 10_000, -200.0),
    "rlpd": Bare(PENDULUM, 10_000, -200.0),
    "rebrac": Bare(PENDULUM, 10_000, -200.0),
}
# Seconds of a thousand ticks on one core, roughly: the longest runs are started first.
_COST = {"redq": 360, "cql": 205, "edac": 120, "tqc": 33, "rebrac": 20, "crr": 18}
BEFORE_AFTER = ("tqc", "sac", "td3")
CHEETAH_STEPS = 30_000


@dataclass(frozen=True)
class Trial:
    """One run of a managed class in a folder of its own; `before` asks for the defaults of version 0.1."""

    key: str
    kind: str
    algo: str
    env: str
    seed: int
    budget: int
    device: str
    data: Path | None = None
    before: bool = False
    acceleration: str = "auto"
    deadline: float | None = None
    labels: dict[str, Any] = field(default_factory=dict)

    def done(self, entry: Entry | None) -> bool:
        """Whether an entry is this run, brought to its end."""
        return entry is not None and entry["total_timesteps"] == self.budget == entry["steps"]


def class_of(algo: str) -> type[ManagedAlgorithm]:
    """The exported class that trains an algorithm."""
    exported = (getattr(rl_training, name) for name in rl_training.__all__)
    found: type[ManagedAlgorithm] = next(one for one in exported if getattr(one, "algo", None) == algo)
    return found


def make(trial: Trial) -> ManagedAlgorithm:
    """The class with nothing set but seed, device and how updates run, or with the defaults of 0.1 spelt out."""
    managed = class_of(trial.algo)
    if not trial.before:
        return managed(trial.env, seed=trial.seed, device=trial.device, acceleration=trial.acceleration)
    now = TrainConfig(
        algo=trial.algo,
        env_id=trial.env,
        seed=trial.seed,
        device=trial.device,
        total_timesteps=trial.budget,
        acceleration=trial.acceleration,
    )
    return managed(with_defaults_of(None, now))


def perform(trial: Trial) -> Entry:
    """Train and judge one class; its runs are written where nothing is kept."""
    if trial.deadline is not None and time.time() > trial.deadline:
        raise TimeoutError("no time was left for it")
    watch = Watch(trial.deadline)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        model = make(trial)
        result = model.learn(trial.budget, callbacks=[watch], progress_bar=False, dataset=trial.data)
        seconds = time.perf_counter() - watch.started
        final = model.evaluate(EPISODES[trial.kind])
    about = {
        "kind": trial.kind,
        "algo": trial.algo,
        "env": trial.env,
        "seed": trial.seed,
        "total_timesteps": trial.budget,
        "episodes": EPISODES[trial.kind],
        "defaults": "0.1" if trial.before else "today's",
        "steps": int(result.metrics["global_step"]),
        "updates": int(result.metrics["update_count"]),
        "seconds": seconds,
        "curve": watch.curve,
        "final": final,
    }
    return report.stamp(str(choose_device(trial.device))) | about | trial.labels


def line_of(data: Path) -> float:
    """The mean return of a file's episodes, less the standard error of so many as a bare class is judged by."""
    spaces = spaces_of(TrainConfig(algo="bc", env_id=BARE["bc"].env, total_timesteps=1))
    returns = data_returns([data], spaces)
    return statistics.fmean(returns) - statistics.pstdev(returns) / EPISODES["defaults"] ** 0.5


def needs_data(algo: str) -> bool:
    return get_algorithm_spec(algo).regime != "online"


def chosen(options: argparse.Namespace, known: Iterable[str]) -> list[str]:
    known = list(known)
    for algo in options.algo or []:
        if algo not in known:
            raise SystemExit(f"--algo {algo}: one of {', '.join(known)}")
    return [algo for algo in known if not options.algo or algo in options.algo]


def device_for(algo: str, options: argparse.Namespace) -> str:
    device: str = "cuda" if algo in options.gpu else options.device
    return device


def deadline_of(options: argparse.Namespace) -> float | None:
    return time.time() + 60 * options.minutes if options.minutes else None


def bare_trials(options: argparse.Namespace) -> list[Trial]:
    """Every bare class on its task."""
    algorithms = chosen(options, (spec.name for spec in list_algorithm_specs()))
    if any(needs_data(algo) for algo in algorithms) and (options.data is None or not options.data.is_file()):
        raise SystemExit("offline algorithms and RLPD learn from --data FILE.npz, a replay of Pendulum-v1")
    checkout, deadline, own, found = options.checkout or name_of(ROOT), deadline_of(options), None, []
    for algo in algorithms:
        bare, data, labels = BARE[algo], None, {"checkout": checkout, "budget": BARE[algo].budget}
        if needs_data(algo):
            data = options.data.resolve()
            own = own or line_of(data)
            labels["file"] = data.stem
        labels["line"] = own if bare.line is None else bare.line
        for seed in options.seeds:
            found.append(
                Trial(
                    key=f"defaults/{bare.env}/{algo}/{seed}",
                    kind="defaults",
                    algo=algo,
                    env=bare.env,
                    seed=seed,
                    budget=options.steps or bare.budget,
                    device=device_for(algo, options),
                    data=data,
                    deadline=deadline,
                    acceleration=options.acceleration,
                    labels=labels,
                )
            )
    return sorted(found, key=lambda trial: -trial.budget * _COST.get(trial.algo, 10))


def before_after_trials(options: argparse.Namespace) -> Iterator[Trial]:
    """HalfCheetah-v5 with today's class defaults and with those of 0.1."""
    checkout, deadline = options.checkout or name_of(ROOT), deadline_of(options)
    for algo in chosen(options, BEFORE_AFTER):
        for seed in options.seeds:
            for before in (False, True):
                yield Trial(
                    key=f"before-after/{HALFCHEETAH}/{algo} {'0.1' if before else 'today'}/{seed}",
                    kind="before-after",
                    algo=algo,
                    env=HALFCHEETAH,
                    seed=seed,
                    budget=options.steps or CHEETAH_STEPS,
                    device=device_for(algo, options),
                    before=before,
                    deadline=deadline,
                    acceleration=options.acceleration,
                    labels={"checkout": checkout},
                )


def measure(options: argparse.Namespace, results: Results) -> None:
    """Make the runs that the results do not hold yet, and keep each as it ends."""
    trials = bare_trials(options) if options.defaults else list(before_after_trials(options))
    there = results.load()
    missing = [trial for trial in trials if not trial.done(there.get(trial.key))]
    if len(missing) < len(trials):
        print(f"{len(trials) - len(missing)} of {len(trials)} runs are in {results.path} already", flush=True)
    for trial, entry in perform_all(missing, options.workers, options.threads or 1, perform):
        results.add({trial.key: entry})


def by_seed(entries: Iterable[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: entry["seed"])


def learned(runs: list[Entry]) -> str:
    """Every one of three seeds must reach the line with the whole budget; less proves nothing either way."""
    budget, reached = runs[0]["budget"], [returned(run) >= run["line"] for run in runs]
    if len(runs) < 3 or any(run["steps"] != budget for run in runs):
        return "not judged: needs 3 seeds and the whole budget"
    return "yes" if all(reached) else f"NO: {sum(reached)} of {len(runs)} seeds"


def returned(run: Entry) -> float:
    mean: float = run["final"]["eval_return_mean"]
    return mean


def budgets() -> str:
    """The table of budgets in the README."""
    found: dict[tuple[str, ...], list[str]] = {}
    for algo, bare in BARE.items():
        unit = "updates" if get_algorithm_spec(algo).regime == "offline" else "steps"
        line = "what its data return" if bare.line is None else f"{bare.line:g}"
        found.setdefault((bare.env, line, f"{bare.budget:,} {unit}"), []).append(f"`{class_of(algo).__name__}`")
    return table(["", "return", "within", "classes"], ([*task, ", ".join(names)] for task, names in found.items()))


def bare_text(entries: list[Entry]) -> str:
    rows = []
    for algo in BARE:
        runs = by_seed(entry for entry in entries if entry["algo"] == algo)
        if not runs:
            continue
        values, file = [returned(run) for run in runs], runs[0].get("file")
        line = f"{runs[0]['line']:.0f}" + (" (its data's)" if BARE[algo].line is None else "")
        rows.append([f"`{class_of(algo).__name__}`", runs[0]["env"] + (f", {file}" if file else ""),
                     f"{runs[0]['total_timesteps']:,}", " ".join(str(run["seed"]) for run in runs),
                     report.returns(values), report.spread(values), line, learned(runs),
                     f"{max(run['seconds'] for run in runs):.0f}"])  # fmt: skip
    header = ["class", "environment, data", "budget", "seeds", "returns", "mean ± std", "at least", "learns",
              "seconds, at most"]  # fmt: skip
    note = (
        "Nothing set but the seed. Budgets are environment steps, offline gradient updates. The last checkpoint "
        f"plays {EPISODES['defaults']} episodes on fixed seeds; each seed has to reach the line."
    )
    return f"{note}\n\n{table(header, rows)}"


def before_after_text(entries: list[Entry]) -> str:
    rows = []
    for algo in BEFORE_AFTER:
        for defaults in ("0.1", "today's"):
            runs = by_seed(e for e in entries if e["algo"] == algo and e["defaults"] == defaults)
            if not runs:
                continue
            values = [returned(run) for run in runs]
            rows.append([f"`{class_of(algo).__name__}`", defaults, " ".join(str(run["seed"]) for run in runs),
                         f"{min(run['steps'] for run in runs):,}", f"{min(run['updates'] for run in runs):,}",
                         report.returns(values), report.spread(values)])  # fmt: skip
    header = ["class", "defaults of", "seeds", "steps", "updates", "returns", "mean ± std"]
    note = (
        f"{HALFCHEETAH}, nothing set but the seed, judged by {EPISODES['before-after']} episodes on fixed seeds. "
        "Settings that the papers use there come as presets, `sac/halfcheetah` and its kin."
    )
    return f"{note}\n\n{table(header, rows)}"
