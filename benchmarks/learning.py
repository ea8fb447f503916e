"""Does it learn? Online algorithms from their packaged configs, several seeds, judged on fixed episodes.

python -m benchmarks.learning [--algo ddpg td3 …] [--seeds 0 1 2] [--workers W]
    Pendulum-v1 and CartPole-v1 against the returns they must reach.
python -m benchmarks.learning --env HalfCheetah-v5 --algo sac --seeds 0 1 --workers 4
    Learning curves, SAC beside Stable-Baselines3 with the same settings.
python -m benchmarks.learning --algo rlpd --prior FILE.npz --seeds 0 1 2 3 4
    Environment steps until the mean return reaches --target: RLPD against SAC and REDQ without prior data.
python -m benchmarks.learning --env Hopper-v5 --algo rlpd sac redq --prior FILE.npz --steps 50000
    Learning curves with prior data beside those without.
python -m benchmarks.learning --defaults --data FILE.npz --workers 16 --out FILE.json
    Every class with nothing set, against the budgets and returns in `benchmarks.defaults`; runs that FILE.json
    holds are not made again. `--gpu redq cql edac` spares a CPU the three that take longest.
python -m benchmarks.learning --halfcheetah --workers 16 --out FILE.json
    SAC, TD3 and TQC on HalfCheetah-v5 with today's class defaults and with those of 0.1 (`--gpu tqc`, likewise).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import cases, defaults, report
from benchmarks.report import Entry, Results, Sections, table
from benchmarks.runs import RunSpec, algorithm_changes, configure, dataset_settings, perform_all
from rl_training.experiment.registry import resolve
from rl_training.runtime.online import OnlineConfig


@dataclass(frozen=True)
class Task:
    """An algorithm, where it is tried, for how long, and the return it must reach."""

    algo: str
    env: str
    steps: int
    threshold: float
    best: bool = False


TASKS = (
    *(Task(algo, "Pendulum-v1", 15_000, -200.0) for algo in ("ddpg", "td3", "sac", "tqc")),
    Task("redq", "Pendulum-v1", 6_000, -200.0),
    Task("dqn", "CartPole-v1", 50_000, 475.0, best=True),
)
RACE_STEPS = 15_000
CURVE_STEPS = {"HalfCheetah-v5": 100_000, "Hopper-v5": 50_000}


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo", nargs="+")
    parser.add_argument("--env", help="learning curves in this environment")
    parser.add_argument("--config", help="path or <algo>/<name>; {algo} stands for each algorithm")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of every config")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, help="CPU threads of each run; 1 if there are several workers")
    parser.add_argument("--device", default="cpu", help="small networks and environments are at home on a CPU")
    parser.add_argument("--acceleration", default="auto")
    parser.add_argument("--episodes", type=int, default=30, help="of the final evaluation")
    parser.add_argument("--eval-interval", type=int, help="steps between points of a curve")
    parser.add_argument("--eval-episodes", type=int, default=10, help="of each point of a curve")
    parser.add_argument("--prior", type=Path, help="npz file with RLPD's prior data")
    parser.add_argument("--target", type=float, default=-200.0, help="return to reach with prior data")
    parser.add_argument("--minutes", type=float, help="stop runs and judge them after this time")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--peers-only", action="store_true", help="to run the peer on another device than ours")
    parser.add_argument("--defaults", action="store_true", help="every class with nothing set")
    parser.add_argument("--halfcheetah", action="store_true", help="class defaults of today and of 0.1")
    parser.add_argument("--data", type=Path, help="npz file, a replay of Pendulum-v1, for the bare offline classes")
    parser.add_argument("--gpu", nargs="+", default=[], metavar="ALGO", help="bare classes to train on a GPU")
    parser.add_argument("--checkout", help="the commit, where there is no repository to ask")
    parser.add_argument(
        "--json", "--out", type=Path, help="keep results here and leave the documentation alone", metavar="FILE"
    )
    return parser.parse_args(given)


def short(env: str) -> str:
    return env.rpartition("-")[0].lower()


def make_job(
    options: argparse.Namespace, kind: str, algo: str, env: str, steps: int, seed: int, **more: Any
) -> RunSpec:
    """A job from the algorithm's config for that environment."""
    source = (options.config or "{algo}/" + short(env)).format(algo=algo)
    extra: dict[str, Any] = more.pop("algo_kwargs", {})
    if algo == "rlpd":
        if options.prior is None:
            raise SystemExit("rlpd needs --prior FILE.npz")
        extra |= dataset_settings([options.prior])
    config = configure(
        source,
        algo,
        options.set,
        env_id=env,
        seed=seed,
        total_timesteps=options.steps or steps,
        device=options.device,
        acceleration=options.acceleration,
        checkpoint_interval=10**9,
        algo_kwargs=extra,
        **more.pop("fields", {}),
    )
    library = more.pop("library", "rl_training")
    prior = {"prior": options.prior.stem} if algo == "rlpd" else {}
    rhythm = resolve(config)[OnlineConfig].gradient_updates_per_step
    # The thresholds must be reached on every device; curves and races are of one run each.
    place = f"/{config.device}" if kind == "threshold" and config.device != "cpu" else ""
    return RunSpec(
        key=f"{kind}/{env}/{library} {algo}{'+' + prior['prior'] if prior else ''}/{seed}{place}",
        config=config.to_dict(),
        library=library,
        episodes=options.episodes,
        deadline=time.time() + 60 * options.minutes if options.minutes else None,
        labels={
            "kind": kind,
            "config": source,
            "overrides": options.set,
            "updates_per_step": rhythm,
            **prior,
            **more.pop("labels", {}),
        },
        **more,
    )


def threshold_jobs(options: argparse.Namespace) -> Iterable[RunSpec]:
    """Each algorithm on its task."""
    for task in TASKS:
        if options.algo and task.algo not in options.algo:
            continue
        for seed in options.seeds:
            more = {"algo_kwargs": {"eval_interval": options.eval_interval or 2_500}} if task.best else {}
            fields = {"eval_episodes": options.eval_episodes if task.best else 0}
            yield make_job(
                options,
                "threshold",
                task.algo,
                task.env,
                task.steps,
                seed,
                best=task.best,
                fields=fields,
                labels={"threshold": task.threshold, "budget": task.steps},
                **more,
            )


def curve_jobs(options: argparse.Namespace) -> Iterable[RunSpec]:
    """Learning curves in one environment."""
    steps = CURVE_STEPS.get(options.env, 100_000)
    interval = options.eval_interval or (options.steps or steps) // 10
    for seed in options.seeds:
        for algo in options.algo or ["sac"]:
            peers = ["sb3"] if algo == "sac" and cases.installed("sb3") and not options.no_peers else []
            ours = [] if options.peers_only else ["rl_training"]
            for library in [*ours, *(peers if short(options.env) == "halfcheetah" else [])]:
                yield make_job(
                    options,
                    "curve",
                    algo,
                    options.env,
                    steps,
                    seed,
                    library=library,
                    fields={"eval_episodes": options.eval_episodes},
                    algo_kwargs={"eval_interval": interval},
                )


def race_jobs(options: argparse.Namespace) -> Iterable[RunSpec]:
    """Steps until the target: prior data against none."""
    for algo in ("rlpd", "sac", "redq"):
        for seed in options.seeds:
            yield make_job(
                options,
                "race",
                algo,
                "Pendulum-v1",
                RACE_STEPS,
                seed,
                fields={"eval_episodes": max(options.eval_episodes, 20)},
                algo_kwargs={
                    "eval_interval": options.eval_interval or 250,
                    "early_stopping": {"target_return": options.target},
                },
                labels={"target": options.target},
            )


def name_of(entry: Entry) -> str:
    library = {"rl_training": "", "sb3": "Stable-Baselines3 "}[entry["library"]]
    prior = f" with {entry['prior']}" if "prior" in entry else ""
    return ", ".join([f"{library}{entry['algo'].upper()}{prior}", *algorithm_changes(entry["overrides"])])


def groups(entries: Iterable[Entry]) -> dict[tuple[str, str], list[Entry]]:
    """By environment and contender, seeds in order."""
    found: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda e: e["seed"]):
        found[entry["env"], name_of(entry)].append(entry)
    return found


def finals(entries: Iterable[Entry]) -> list[float]:
    return [entry["final"]["eval_return_mean"] for entry in entries]


def verdict(values: list[float], wanted: float, runs: list[Entry], budget: int) -> str:
    """Passing takes three seeds, thirty episodes and no more than the budget; less proves nothing either way."""
    if len(values) < 3 or any(run["episodes"] < 30 or run["total_timesteps"] > budget for run in runs):
        return "not judged: needs 3 seeds, 30 episodes and the agreed budget"
    return "pass" if statistics.fmean(values) >= wanted else "FAIL"


def threshold_text(entries: list[Entry]) -> str:
    rows = []
    on_device = [groups(e for e in entries if e["device"] == device) for device in ("cpu", "cuda")]
    for (env, name), runs in (item for found in on_device for item in found.items()):
        values, wanted = finals(runs), runs[0]["threshold"]
        passed = verdict(values, wanted, runs, runs[0]["budget"])
        seeds = " ".join(str(run["seed"]) for run in runs)
        done, budget = min(run["steps"] for run in runs), max(run["total_timesteps"] for run in runs)
        steps = f"{budget:,}" if done == budget else f"{budget:,}, cut short at {done:,}"
        settings = " ".join([f"`{runs[0]['config']}`", *runs[0]["overrides"]])
        how = f"{runs[0]['judged']}, {runs[0]['episodes']} episodes"
        rows.append([name, env, runs[0]["device"], steps, settings, how, seeds, report.returns(values),
                     report.spread(values), f"{wanted:g}", passed])  # fmt: skip
    header = ["", "environment", "on", "steps", "config", "judged by", "seeds", "returns", "mean ± std",
              "at least", ""]  # fmt: skip
    note = (
        "A best checkpoint was chosen by evaluations during the run, whose episodes are among those it is judged "
        "by; a last checkpoint was chosen by nothing."
    )
    return f"{table(header, rows)}\n\n{note}"


def curve_text(entries: list[Entry]) -> str:
    parts = []
    by_env = groups(entries)
    for env in sorted({env for env, _ in by_env}):
        runs_of = {name: runs for (place, name), runs in by_env.items() if place == env}
        points = sorted({step for runs in runs_of.values() for run in runs for step, *_ in run["curve"]})
        rows = []
        for name, runs in runs_of.items():
            cells = []
            for point in points:
                values = [mean for run in runs for step, mean, _ in run["curve"] if step == point]
                cells.append(report.spread(values) if values else "–")
            speed = statistics.fmean(run["steps"] / run["seconds"] for run in runs)
            rows.append([name, " ".join(str(r["seed"]) for r in runs), *cells, report.returns(finals(runs)),
                         report.spread(finals(runs)), f"{speed:.0f}"])  # fmt: skip
        header = ["", "seeds", *(f"{point / 1000:g}k" for point in points), "last, per seed", "last", "steps/s"]
        configs = " ".join(sorted({f"`{run['config']}`" for runs in runs_of.values() for run in runs}))
        parts.append(f"**{env}** ({configs})\n\n{table(header, rows)}\n")
        if "SAC" in runs_of and "Stable-Baselines3 SAC" in runs_of:
            parts.append(at_common_step(runs_of["SAC"], runs_of["Stable-Baselines3 SAC"]) + "\n")
    return "\n".join(parts)


def at_common_step(ours: list[Entry], theirs: list[Entry]) -> str:
    """The comparison at the last step that every run of both sides was evaluated at."""
    curves = [{step: mean for step, mean, _ in run["curve"]} for run in (*ours, *theirs)]
    common = set(curves[0]).intersection(*curves[1:])
    if not common:
        return "No step was evaluated by every run, so the two are not compared."
    step = max(common)
    values = [curve[step] for curve in curves]
    found = comparison(values[: len(ours)], values[len(ours) :])
    return f"At {step:,} steps, the last that all runs reached: {found}"


def comparison(ours: list[float], theirs: list[float]) -> str:
    """Whether the difference of two means is more than the seeds' noise explains (two standard errors)."""
    difference = statistics.fmean(ours) - statistics.fmean(theirs)
    if min(len(ours), len(theirs)) < 2:
        return f"Difference of the means {difference:+.0f}; one seed says nothing about noise."
    noise = (statistics.variance(ours) / len(ours) + statistics.variance(theirs) / len(theirs)) ** 0.5
    found = "worse beyond the seeds' noise" if difference < -2 * noise else "not worse beyond the seeds' noise"
    few = "; so few seeds say little" if min(len(ours), len(theirs)) < 3 else ""
    return f"Difference of the means {difference:+.0f}, standard error {noise:.0f}: {found}{few}."


def race_text(entries: list[Entry]) -> str:
    rows, means = [], {}
    for (env, name), runs in groups(entries).items():
        reached = [next((step for step, mean, _ in run["curve"] if mean >= run["target"]), None) for run in runs]
        done = [step for step in reached if step is not None]
        means[name.partition(" ")[0]] = statistics.fmean(done) if len(done) == len(runs) else None
        listed = ", ".join("not reached" if step is None else f"{step:,}" for step in reached)
        mean = f"{statistics.fmean(done):,.0f}" if len(done) == len(runs) else "–"
        rows.append([name, env, f"`{runs[0]['config']}`", runs[0]["updates_per_step"], f"{runs[0]['target']:g}",
                     " ".join(str(r["seed"]) for r in runs), listed, mean])  # fmt: skip
    header = ["", "environment", "config", "updates per step", "target", "seeds", "steps until reached", "mean"]
    text = table(header, rows)
    ours, sac = means.get("RLPD"), means.get("SAC")
    if ours is not None and sac is not None:
        outcome = "pass" if ours <= sac / 2 else "FAIL"
        text += f"\n\nRLPD needs {ours / sac:.2f} of SAC's steps (at most 0.5 wanted): {outcome}."
    return text


def sections(entries: dict[str, Entry]) -> Sections:
    writers = {
        "threshold": ("learning", "## Online algorithms", threshold_text),
        "curve": ("learning-curves", "## Learning curves", curve_text),
        "defaults": ("learning-defaults", "## Bare classes", defaults.bare_text),
        "before-after": ("learning-before-after", "## Class defaults before and after", defaults.before_after_text),
        "race": ("learning-prior-data", "## Steps until solved, with and without prior data", race_text),
    }
    found: Sections = {}
    for kind, (name, heading, write) in writers.items():
        chosen = [e for e in entries.values() if e["kind"] == kind]
        if chosen:
            note = "Written by `python -m benchmarks.learning`; evaluation episodes are the same for every run."
            found["results", name] = f"{heading}\n\n{note}\n\n{write(chosen)}\n\n{report.origins(chosen)}"
    return found


def measure(options: argparse.Namespace, results: Results) -> None:
    """Runs from the packaged configs, each kept as it ends."""
    if options.env:
        jobs = curve_jobs(options)
    elif options.algo == ["rlpd"]:
        jobs = race_jobs(options)
    else:
        jobs = threshold_jobs(options)
    for job, entry in perform_all(list(jobs), options.workers, options.threads):
        results.add({job.key: entry})


def main() -> None:
    options = arguments()
    results = Results("learning", options.json)
    (defaults.measure if options.defaults or options.halfcheetah else measure)(options, results)
    for text in sections(results.load()).values():
        print(f"\n{text}")
    results.render(sections)


if __name__ == "__main__":
    main()
