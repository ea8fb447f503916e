"""Online training end to end, with batched environments.

    python -m benchmarks.speed.online cores [--steps 3000] [--pairs 3] [--json FILE]
        SAC on HalfCheetah-v5 and Stable-Baselines3 on a CPU, alternating and with the same number of updates: one
        environment, eight environments with one update per vector step, and eight without updates. Results are
        stored with those of `benchmarks.speed.training`.
    python -m benchmarks.speed.online evaluation [--episodes 10] [--rounds 5] [--json FILE]
        Seconds of an evaluation on HalfCheetah-v5, for each value of the setting `environments`.
    python -m benchmarks.speed.online tensor [--environments 4096] [--updates 8] [--batch 1024] [--device D]
        [--vector-steps 4000] [--learning-steps 1000] [--json FILE]
        SAC on torch/Pendulum-v1: one run for rates and host reads, without evaluations, and one run for returns.

See also `benchmarks.speed.steps` for the parts of a step, `benchmarks.speed.training` for GPUs and other peers, and
`benchmarks.speed.seeds` for many seeds trained together.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

from benchmarks import report
from benchmarks.report import Entry, Results, Sections, number, table
from benchmarks.runs import Watch, configure, seconds_of_run
from benchmarks.speed import cases, training
from benchmarks.speed.host_reads import HostReads
from benchmarks.speed.timing import wait
from rl_training.environments.making import spaces_of
from rl_training.environments.playing import Evaluator
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import resolve
from rl_training.runs.building import choose_device
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session
from rl_training.runtime.online import OnlineConfig

# Vector steps between the first update and the first measurement, for compilation and capture.
_SETTLE = 50
# Vector steps between two log rows.
_REPORT = 1_000


def arguments() -> argparse.Namespace:
    parser = report.arguments(__doc__)
    parser.add_argument("mode", choices=("cores", "evaluation", "tensor"))
    parser.add_argument("--steps", type=int, default=3_000, help="steps of each environment")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--way", nargs="+", default=["local", "auto"], help="values of `environments`")
    parser.add_argument("--env", default="torch/Pendulum-v1")
    parser.add_argument("--environments", type=int, default=4096)
    parser.add_argument("--updates", type=int, default=8, help="updates per vector step")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--vector-steps", type=int, default=4_000, help="vector steps of the run for rates")
    parser.add_argument(
        "--learning-steps", type=int, default=1_000, help="vector steps of the run for returns; 0: no such run"
    )
    parser.add_argument("--evaluations", type=int, default=20, help="evaluations of the run for returns")
    return parser.parse_args()


def compare_on_cores(options: argparse.Namespace) -> None:
    """Three comparisons of `benchmarks.speed.training`."""
    eight = 8 * options.steps
    once = ["num_envs=8", "algo_kwargs.train_frequency=8"]
    never = ["num_envs=8", f"algo_kwargs.learning_starts={eight}", "algo_kwargs.random_steps=1000"]
    for steps, overrides in ((options.steps, []), (eight, once), (eight, never)):
        given = ["--device", "cpu", "--steps", str(steps), "--pairs", str(options.pairs)]
        given += ["--json", str(options.json)] if options.json else []
        training.main([*given, *(["--set", *overrides] if overrides else [])])


def evaluation_seconds(options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of evaluations for each value of `environments`, alternating, after one that creates the
    environments."""
    config = configure("sac/halfcheetah", "sac", [], device="cpu")
    (case,) = cases.find(["SAC"])
    policy, spaces = cases.build(case, torch.device("cpu")).model.policy, spaces_of(config)
    evaluators = {way: Evaluator(config.replace(environments=way), spaces) for way in options.way}
    found: dict[str, list[float]] = {way: [] for way in options.way}
    for turn in range(1 + options.rounds):
        for way, evaluator in evaluators.items():
            started = time.perf_counter()
            evaluator.run(policy, options.episodes)
            if turn:
                found[way].append(time.perf_counter() - started)
    for evaluator in evaluators.values():
        evaluator.close()
    return found


# Tensor environments.


class Windows(Callback):
    """Times the first half of the vector steps after `start`, and counts host reads in the second half."""

    def __init__(self, start: int, end: int, width: int, device: torch.device) -> None:
        self.start, self.middle, self.end, self.width = start, (start + end) // 2, end, width
        self.reads = HostReads(device)
        self.times: list[tuple[int, int, float]] = []  # vector steps, updates, seconds

    def on_step(self, session: Session) -> None:
        done = session.clock.global_step // self.width
        if done in (self.start, self.middle):
            wait()
            self.times.append((done, session.learner.updates, time.perf_counter()))
        if done == self.middle:
            self.reads.__enter__()
        elif done == self.end:
            self.reads.__exit__()

    def entry(self) -> Entry:
        (first, before, started), (last, after, ended) = self.times
        counted = (self.end - self.middle) / 1000
        synchronizations = self.reads.synchronizations
        return {
            "rate": self.width * (last - first) / (ended - started),
            "update_rate": (after - before) / (ended - started),
            "reads": self.reads.reads / counted,
            "synchronizations": None if synchronizations is None else synchronizations / counted,
            "places": dict(self.reads.places.most_common(8)),
        }


def tensor_config(options: argparse.Namespace, vector_steps: int, **more: Any) -> TrainConfig:
    count = options.environments
    settings = {
        "train_frequency": count,
        "gradient_updates_per_step": options.updates,
        "batch_size": options.batch,
        "buffer_capacity": 1_000_000,
        "learning_starts": 10 * count,
        "early_stopping": None,
    }
    return configure(
        "sac/pendulum", "sac", [], env_id=options.env, num_envs=count, total_timesteps=count * vector_steps,
        device=options.device, seed=0, log_interval=_REPORT * count, checkpoint_interval=10**12,
        **{"eval_episodes": 0, "algo_kwargs": settings | {"eval_interval": None}} | more,
    )  # fmt: skip


def measure_rates(options: argparse.Namespace) -> Entry:
    config = tensor_config(options, options.vector_steps)
    start = resolve(config)[OnlineConfig].first_steps // config.num_envs + _SETTLE
    windows = Windows(start, options.vector_steps, config.num_envs, choose_device(config.device))
    seconds = seconds_of_run(config, windows)
    return windows.entry() | {"vector_steps": options.vector_steps, "seconds": seconds}


def measure_returns(options: argparse.Namespace) -> list[tuple[int, float, float]]:
    """Environment steps, return and seconds since the start of the call, evaluations included."""
    every = max(1, options.learning_steps // options.evaluations) * options.environments
    config = tensor_config(options, options.learning_steps, eval_episodes=100)
    config = config.replace(algo_kwargs={**config.algo_kwargs, "eval_interval": every})
    watch = Watch(None)
    seconds_of_run(config, watch)
    return watch.curve


# Tables.


def sections(entries: dict[str, Entry]) -> Sections:
    found: Sections = {}
    evaluations = [e for e in entries.values() if e["kind"] == "evaluation"]
    tensors = [e for e in entries.values() if e["kind"] == "tensor"]
    if evaluations:
        rows = [
            [e["machine"], f"`environments: {e['way']}`", e["episodes"], f"{statistics.median(e['seconds']):.2f}"]
            for e in evaluations
        ]
        written = "Measured by `python -m benchmarks.speed.online evaluation` on HalfCheetah."
        text = (
            f"{written}\n\n{table(['machine', '', 'episodes', 'seconds'], rows)}\n\n{report.origins(evaluations)}"
        )
        found["performance/stepping", "evaluation"] = f"## Duration of an evaluation\n\n{text}"
    if tensors:
        found["performance/stepping", "tensor"] = tensor_text(tensors)
    return found


def tensor_text(entries: list[Entry]) -> str:
    columns = ("rate", "update_rate", "reads", "synchronizations")
    rows = [
        [
            e["machine"],
            e["env"],
            f"{e['environments']:,}",
            e["updates"],
            e["batch"],
            *(number(e[c]) for c in columns),
        ]
        for e in entries
    ]
    head = ["machine", "environment", "environments", "updates per vector step", "batch", "steps/s", "updates/s",
            "host reads per 1,000 vector steps", "synchronisations"]  # fmt: skip
    lines = [
        "## Tensor environments",
        "Measured by `python -m benchmarks.speed.online tensor`: SAC with environment, policy, replay buffer and "
        "updates on one device. Host reads are calls that read a tensor or wait for the device. Synchronisations "
        f"are the operations that CUDA reports. Both are counted with a log report every {_REPORT:,} vector steps.",
        table(head, rows),
    ]
    for e in entries:
        if e["curve"]:
            points = ", ".join(f"{mean:.0f} after {seconds:.1f} s" for _, mean, seconds in e["curve"])
            lines.append(f"Return on {e['machine']}, by seconds since the start of the call: {points}.")
    return "\n\n".join([*lines, report.origins(entries)])


def main() -> None:
    options = arguments()
    if options.mode == "cores":
        compare_on_cores(options)
        return
    results = Results("online", options.json)
    if options.mode == "evaluation":
        stamp = report.stamp("cpu")
        for way, seconds in evaluation_seconds(options).items():
            about = {"kind": "evaluation", "way": way, "episodes": options.episodes, "seconds": seconds}
            results.add({f"evaluation/{stamp['machine']}/{options.episodes}/{way}": stamp | about})
    else:
        stamp = report.stamp(str(choose_device(options.device)))
        chosen = {name: getattr(options, name) for name in ("env", "environments", "updates", "batch")}
        key = f"tensor/{stamp['machine']}/" + "/".join(map(str, chosen.values()))
        entry = stamp | {"kind": "tensor", "curve": []} | chosen | measure_rates(options)
        results.add({key: entry})
        print(f"most frequent: {entry['places']}", flush=True)
        if options.learning_steps:
            results.add({key: entry | {"curve": measure_returns(options)}})
    results.show(sections)


if __name__ == "__main__":
    main()
