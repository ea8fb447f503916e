"""Minutes until a policy reaches a return: one algorithm, many batched environments, on a GPU.

    python -m benchmarks.speed.minutes [--task HalfCheetah Ant Humanoid] [--algo flash_sac] [--environments 256 …]
        [--updates 8 …] [--batch 2048] [--n-step 1] [--seeds 0 1 2] [--minutes 5] [--within 9] [--every 5]
        [--episodes 10] [--target RETURN] [--buffer 1000000] [--starts N] [--steps 10000000] [--set KEY=VALUE …]
        [--go-on] [--tf32] [--together 1] [--device D] [--json FILE]

If several values are given for `--environments` or `--updates` (updates per vector step), each combination is a
separate run, one after another. To find good values for a machine, use few minutes, one seed and `--go-on`.
`--task` accepts any Gymnasium id if `--target` is given.

A run is evaluated every `--every` seconds of training. It ends at the first evaluation that reaches the return
(unless `--go-on` is given), `--minutes` after set-up and compilation, or when all runs have taken `--within`
minutes. Its curve is written after every evaluation: environment steps, updates, return and seconds. Seconds count
from the start of the call; they include set-up and compilation and exclude evaluations, and all three are stored
separately. `--together` records how many such runs share the machine.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks import report
from benchmarks.report import Entry, Results, Sections, number, table
from benchmarks.runs import seconds_of_run
from benchmarks.speed import stepping
from benchmarks.speed.timing import wait
from rl_training.errors import RLTrainingError
from rl_training.experiment.config import TrainConfig
from rl_training.runs.building import choose_device
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session

# Environment, its arguments, and the target return.
TASKS: dict[str, tuple[str, dict[str, Any], float]] = {
    "HalfCheetah": ("HalfCheetah-v4", {}, 10_000.0),
    "Ant": ("Ant-v4", {}, 5_000.0),
    "Humanoid": (*stepping.TASKS["Humanoid-v5 without contact forces"], 5_000.0),
}
_NEVER = 10**12
# Vector steps with random actions before the first update, and the fewest environment steps.
_RANDOM, _FEWEST = 10, 5_000
# Fields that identify a run, in addition to its seed.
_CHOSEN = ("algo", "task", "environments", "updates", "batch", "n_step", "buffer", "starts", "tf32", "settings")


def arguments() -> argparse.Namespace:
    parser = report.arguments(__doc__)
    parser.add_argument("--task", nargs="+", default=list(TASKS), metavar="NAME")
    parser.add_argument("--algo", default="flash_sac")
    parser.add_argument("--environments", nargs="+", type=int, default=[256], metavar="N")
    parser.add_argument("--updates", nargs="+", type=int, default=[8], metavar="K", help="updates per vector step")
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--n-step", type=int, default=1)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument(
        "--minutes", type=float, default=5.0, help="limit of each run, after set-up and compilation"
    )
    parser.add_argument("--within", type=float, help="limit of all runs together, in minutes")
    parser.add_argument("--every", type=float, default=5.0, help="seconds of training between evaluations")
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--target", type=float, help="return to reach; overrides that of the task")
    parser.add_argument("--buffer", type=int, default=1_000_000)
    parser.add_argument(
        "--starts", type=int, help=f"learning_starts; default: {_RANDOM} per environment, at least {_FEWEST}"
    )
    parser.add_argument(
        "--steps", type=int, default=10_000_000, help="environment steps over which schedules decay"
    )
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE")
    parser.add_argument("--go-on", action="store_true", help="continue after the return is reached")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument(
        "--together", type=int, default=1, help="number of runs that share the machine (recorded only)"
    )
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    if options.target is None and (others := set(options.task) - set(TASKS)):
        parser.error(f"{', '.join(others)}: give the return to reach with --target")
    return options


class Climb(Callback):
    """Callback that evaluates by wall time, and stops at the target return or the time limit."""

    def __init__(
        self, options: argparse.Namespace, target: float, deadline: float, keep: Callable[[Entry], None]
    ) -> None:
        self.every, self.target, self.keep = options.every, target, keep
        self.limit, self.deadline, self.goes_on = 60.0 * options.minutes, deadline, options.go_on
        self.started = self.before = time.perf_counter()
        self.setup = self.compiling = self.evaluating = self.evaluated = 0.0
        self.curve: list[tuple[int, int, float, float]] = []  # steps, updates, mean return, seconds

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started - self.evaluating

    @property
    def reached(self) -> float | None:
        """Seconds until the first evaluation that reaches the target return."""
        return next((seconds for *_, mean, seconds in self.curve if mean >= self.target), None)

    def on_training_start(self, session: Session) -> None:
        self.before = time.perf_counter()
        self.setup = self.before - self.started

    def on_step(self, session: Session) -> None:
        if session.learner.updates and not self.compiling:
            wait()
            self.compiling = time.perf_counter() - self.before  # the first step with updates, which compiles
        if self.seconds - self.evaluated >= self.every:
            self.evaluate(session)
        if self.reached is not None and not self.goes_on:
            session.stop(f"the return of {self.target:g} is reached")
        elif self.seconds - self.setup - self.compiling > self.limit or time.time() > self.deadline:
            session.stop("the time given to this benchmark is over")
        self.before = time.perf_counter()

    def evaluate(self, session: Session) -> None:
        wait()
        self.evaluated, before = self.seconds, time.perf_counter()
        session.evaluate()
        self.evaluating += time.perf_counter() - before
        self.keep(self.entry())

    def on_training_end(self, session: Session) -> None:
        wait()
        self.evaluated = self.seconds

    def on_evaluation(self, session: Session, metrics: Mapping[str, float]) -> None:
        point = (session.clock.global_step, session.learner.updates, metrics["eval_return_mean"], self.evaluated)
        self.curve.append(point)

    def entry(self) -> Entry:
        names = ("setup", "compiling", "evaluating", "reached", "curve")
        return {name: getattr(self, name) for name in names}


def config_of(options: argparse.Namespace, task: str, environments: int, updates: int, seed: int) -> TrainConfig:
    env_id, env_kwargs, _ = TASKS.get(task, (task, {}, 0.0))
    settings = {
        "train_frequency": environments,
        "gradient_updates_per_step": updates,
        "batch_size": options.batch,
        "buffer_capacity": options.buffer,
        "learning_starts": options.starts or max(_RANDOM * environments, _FEWEST),
        "n_step": options.n_step,
    }
    config = TrainConfig(
        algo=options.algo, env_id=env_id, env_kwargs=env_kwargs, seed=seed, total_timesteps=options.steps,
        num_envs=environments, device=options.device, tf32=options.tf32, eval_episodes=options.episodes,
        log_interval=1_000 * environments, checkpoint_interval=_NEVER, algo_kwargs=settings,
    )  # fmt: skip
    return config.with_overrides(options.set)


def runs(options: argparse.Namespace) -> Iterator[tuple[Entry, TrainConfig]]:
    """Yield the identifying fields of each run, and its configuration."""
    for task, environments, updates in itertools.product(options.task, options.environments, options.updates):
        target = options.target if options.target is not None else TASKS[task][2]
        for seed in options.seeds:
            config = config_of(options, task, environments, updates, seed)
            about = {"algo": options.algo, "task": task, "environments": environments, "updates": updates,
                     "batch": options.batch, "n_step": options.n_step, "buffer": options.buffer,
                     "starts": config.algo_kwargs["learning_starts"], "tf32": options.tf32,
                     "settings": " ".join(options.set), "seed": seed, "target": target, "env": config.env_id,
                     "minutes": options.minutes, "episodes": options.episodes,
                     "together": options.together}  # fmt: skip
            yield about, config


def setting_of(entry: Entry) -> tuple[str, ...]:
    return (entry["machine"], *(str(entry[name]) for name in _CHOSEN))


def row_of(entries: list[Entry]) -> list[str]:
    """Row of one setting: minutes of every seed that reached the return, and the last evaluation of every seed."""
    first = entries[0]
    minutes = ["–" if e["reached"] is None else f"{e['reached'] / 60:.1f}" for e in entries]
    ends = [e["curve"][-1] for e in entries]
    spent = [seconds - e["setup"] - e["compiling"] for e, (*_, seconds) in zip(entries, ends)]
    rates = [sum(end[i] for end in ends) / max(sum(spent), 1e-9) for i in (0, 1)]
    more = " ".join(filter(None, [f"n_step {first['n_step']}", "TF32" if first["tf32"] else "", first["settings"]]))
    seeds = ", ".join(str(e["seed"]) for e in entries)
    overhead = [sum(e[name] for e in entries) / len(entries) for name in ("setup", "compiling", "evaluating")]
    return [
        first["algo"], first["env"], str(first["together"]), str(first["environments"]), str(first["updates"]),
        str(first["batch"]), more, number(first["target"]), seeds, ", ".join(minutes),
        report.returns([end[2] for end in ends]), f"{ends[0][3] / 60:.1f}", *map(number, rates),
        " + ".join(f"{value:.0f}" for value in overhead),
    ]  # fmt: skip


_HEADER = [
    "algorithm", "task", "runs at a time", "environments", "updates per step of all", "batch", "settings", "return",
    "seeds", "minutes until it", "last evaluation", "at minute (first seed)", "steps/s", "updates/s",
    "set-up + compiling + evaluations, s",
]  # fmt: skip


def text_of(entries: list[Entry]) -> str:
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in sorted(entries, key=lambda e: e["seed"]):
        if entry["curve"]:
            groups.setdefault(setting_of(entry), []).append(entry)
    return table(_HEADER, [row_of(group) for group in groups.values()])


def sections(entries: dict[str, Entry]) -> Sections:
    found = list(entries.values())
    if not found:
        return {}
    text = (
        "## Minutes to a return\n\nMeasured by `python -m benchmarks.speed.minutes`: minutes of one run from the "
        "start of the call, including set-up and compiling, without evaluations (their seconds are in the last "
        "column). The return is reached at the first evaluation with at least this mean. Humanoid has no contact "
        "forces."
    )
    return {("performance/steps", "minutes"): f"{text}\n\n{text_of(found)}\n\n{report.origins(found)}"}


def keeper(results: Results, key: str, about: Entry, kept: dict[str, Entry]) -> Callable[[Entry], None]:
    """Return a function that stores the current state of a run in memory and in the file."""

    def keep(found: Entry) -> None:
        kept[key] = about | found
        results.add({key: kept[key]})

    return keep


def main() -> None:
    options = arguments()
    results, stamp = Results("minutes", options.json), report.stamp(str(choose_device(options.device)))
    deadline = time.time() + 60.0 * options.within if options.within else math.inf
    kept: dict[str, Entry] = {}
    for about, config in runs(options):
        if time.time() > deadline:
            break
        key = "/".join([*setting_of(stamp | about), str(about["seed"])])
        climb = Climb(options, about["target"], deadline, keeper(results, key, stamp | about, kept))
        try:
            seconds_of_run(config, climb)
            climb.keep(climb.entry())
        except RLTrainingError as error:
            print(f"{key}: {error}", flush=True)
            continue
        best = max(mean for _, _, mean, _ in climb.curve)
        at = "not reached" if climb.reached is None else f"reached after {climb.reached:.1f} s"
        print(f"{key}: {about['target']:g} {at}, best {best:.0f}", flush=True)
    print(f"\n{text_of(list(kept.values()))}")
    results.render(sections)


if __name__ == "__main__":
    main()
