"""End-to-end speed: environment steps per second of a whole training run.

    python -m benchmarks.speed.training [--device D] [--peer-device D] [--steps 4000] [--pairs 3] [--json FILE]
        SAC on HalfCheetah-v5 and Stable-Baselines3's `learn` with the same settings, alternating. For eight
        environments and one update per vector step: `--set num_envs=8 algo_kwargs.train_frequency=8`.
    python -m benchmarks.speed.training --algo td3 --leanrl DIR [--leanrl-compile] [--steps 4000] [--pairs 3]
        TD3 or SAC on HalfCheetah-v5 and LeanRL's, from a checkout (see `benchmarks.peers.leanrl`), alternating.
    python -m benchmarks.speed.training --algo redq --env Hopper-v5 --steps 100000 [--minutes 9]
        A single run: steps per second, fraction of time spent in updates, and final return.
    python -m benchmarks.speed.training --against PATH [--algo A --env E] [--steps 4000] [--blocks 21] [--json FILE]
        This checkout and another one (see `benchmarks.speed.against`): one long run each, in alternating blocks of
        steps. The result is printed, and stored if `--json` is given.

The steady rate covers the time from shortly after the first update, when compilation and capture are finished, to
the last step. The whole rate covers the entire call, including set-up and the last checkpoint. A single run
evaluates as its configuration specifies, and that time counts.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.peers import leanrl, sb3
from benchmarks.peers.checkouts import commit_of
from benchmarks.report import Entry, Results, Sections, table
from benchmarks.runs import Watch, configure, dataset_settings, seconds_of_run, train
from benchmarks.speed import against
from benchmarks.speed.timing import Stopwatch
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import resolve
from rl_training.runs.building import choose_device
from rl_training.runs.session import Session
from rl_training.runtime.online import OnlineConfig
from rl_training.runtime.workflows import evaluate_checkpoint
from rl_training.updates.updater import Updater

# Steps between the first update and the start of the steady rate.
_SETTLE = 200
_OURS, _STARTS = "ours", "algo_kwargs.learning_starts=1000"
Run = Callable[[TrainConfig], tuple[float, float]]  # steady and whole steps per second
_RATES = (
    f"The steady rate is measured from {_SETTLE} steps after the first update to the last step. The rate of the "
    "whole run includes set-up, compiling, the steps before the first update and the last checkpoint."
)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = report.arguments(__doc__)
    parser.add_argument("--algo", default="sac")
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--config", help="path or <algo>/<name>; default: that of the algorithm and environment")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE")
    parser.add_argument("--prior", type=Path, help="npz file with RLPD's prior data")
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--pairs", type=int, default=3, help="runs of each side; 0: a single run of ours")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--peer-device", help="device of Stable-Baselines3; default: --device")
    parser.add_argument("--leanrl", type=Path, metavar="DIR", help="a checkout of LeanRL, for td3 or sac")
    parser.add_argument("--leanrl-compile", action="store_true", help="run LeanRL with --compile")
    parser.add_argument(
        "--leanrl-python", metavar="PATH", help="Python with tensordict and torchrl; default: this one"
    )
    parser.add_argument("--acceleration", default="auto")
    parser.add_argument("--eval-interval", type=int)
    parser.add_argument("--episodes", type=int, default=30, help="episodes of the final evaluation of a single run")
    parser.add_argument("--minutes", type=float, help="stop a single run after this time")
    parser.add_argument("--against", type=Path, metavar="PATH", help="another checkout of this package")
    parser.add_argument("--blocks", type=int, default=against.BLOCKS, help="number of blocks with --against")
    options = parser.parse_args(given)
    if options.leanrl and (options.algo not in leanrl.SCRIPTS or options.against):
        parser.error(f"--leanrl requires --algo {' or '.join(leanrl.SCRIPTS)}")
    return options


class Pace(Watch):
    """Callback that records the times at the end of the settling period and at the last step."""

    def __init__(self, settled: int, deadline: float | None = None) -> None:
        super().__init__(deadline)
        self.settled = settled
        self.first: tuple[int, float] | None = None
        self.last: tuple[int, float] = (0, 0.0)

    def mark(self, step: int) -> None:
        if step >= self.settled:
            self.last = (step, time.perf_counter())
            self.first = self.first or self.last

    def on_step(self, session: Session) -> None:
        super().on_step(session)
        self.mark(session.clock.global_step)

    @property
    def rate(self) -> float:
        if self.first is None or self.first == self.last:
            raise SystemExit(f"too few steps: the steady rate is counted from step {self.settled}; raise --steps")
        return (self.last[0] - self.first[0]) / (self.last[1] - self.first[1])


def settled(config: TrainConfig) -> int:
    """The step from which the steady rate is counted; in a run without updates the policy acts from there."""
    online = resolve(config)[OnlineConfig]
    learns = online.first_steps < config.total_timesteps
    return int(online.first_steps if learns else online.acts_randomly_until(config)) + _SETTLE


def ours(config: TrainConfig) -> tuple[float, float]:
    """Steady and whole steps per second of one run."""
    pace = Pace(settled(config))
    seconds = seconds_of_run(config, pace)
    return pace.rate, config.total_timesteps / seconds


def theirs(config: TrainConfig) -> tuple[float, float]:
    """The same for Stable-Baselines3, which also saves at the end; environments are stepped sequentially."""
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    pace = Pace(settled(config))

    class Marks(BaseCallback):
        def _on_step(self) -> bool:
            pace.mark(self.num_timesteps)
            return True

    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        agent = sb3.agent_of(
            config, make_vec_env(config.env_id or "", config.num_envs, env_kwargs=config.env_kwargs)
        )
        agent.learn(config.total_timesteps, callback=Marks())
        agent.save(Path(folder) / "agent.zip")
        agent.save_replay_buffer(Path(folder) / "buffer.pkl")
        return pace.rate, config.total_timesteps / (time.perf_counter() - started)


class LeanRL:
    """Runs LeanRL's script; returns the stored fields in addition to the rates."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.entry: Entry = {}

    def __call__(self, config: TrainConfig) -> tuple[float, float]:
        """Steady and whole steps per second of one run."""
        given = leanrl.arguments(config, settle=_SETTLE, compile=self.options.leanrl_compile)
        said = leanrl.run(self.options.leanrl, config.algo, given, self.options.leanrl_python)
        self.entry = {
            "peer": "LeanRL, compiled" if self.options.leanrl_compile else "LeanRL",
            "peer_versions": {"checkout": commit_of(self.options.leanrl), **said["versions"]},
            "how": leanrl.how(config.algo),
        }
        return said["speed"], config.total_timesteps / said["seconds"]


def has_peers(options: argparse.Namespace) -> bool:
    return options.leanrl is not None or (options.algo == "sac" and sb3.installed())


def compare(config: TrainConfig, options: argparse.Namespace) -> list[Entry]:
    """Run ours and each peer in turn, `pairs` times; return one entry per peer."""
    peer_config = config.replace(device=options.peer_device or options.device)
    lean = LeanRL(options)
    runs: dict[str, tuple[Run, TrainConfig]] = {_OURS: (ours, config)}
    if options.algo == "sac" and sb3.installed():
        runs["Stable-Baselines3"] = (theirs, peer_config)
    if options.leanrl:
        runs["LeanRL"] = (lean, peer_config)
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for number in range(options.pairs):
        for name, (run, chosen) in runs.items():
            rates[name].append(run(chosen.replace(seed=options.seed + number)))
            print(f"{name}: {rates[name][-1][0]:.1f} steps/s steady, {rates[name][-1][1]:.1f} whole", flush=True)
    device = str(choose_device(peer_config.device))
    return [
        pair(rates[_OURS], found) | {"peer_device": device} | (lean.entry if name == "LeanRL" else {})
        for name, found in rates.items()
        if name != _OURS
    ]


def pair(own: list[tuple[float, float]], peer: list[tuple[float, float]]) -> Entry:
    """Steady and whole rates of both sides, and the ratio of the steady rates."""
    ratios = [a[0] / b[0] for a, b in zip(own, peer)]
    return {
        "kind": "compare",
        "steady": [rate for rate, _ in own],
        "peer_steady": [rate for rate, _ in peer],
        "whole": [rate for _, rate in own],
        "peer_whole": [rate for _, rate in peer],
        "ratio": statistics.median(ratios),
        "ratio_spread": [min(ratios), max(ratios)],
    }


def measure_against(config: TrainConfig, options: argparse.Namespace) -> Entry:
    """Comparison with another checkout, from timed blocks of steps inside endless runs."""
    endless = config.replace(total_timesteps=10**9)
    return against.steps(
        options.against, endless, settled=settled(config), count=options.steps, blocks=options.blocks
    )


def single(config: TrainConfig, options: argparse.Namespace) -> Entry:
    """A single run, with the time inside updates measured until the device has finished.

    Waiting for the device after the updates has no extra cost, because the next action needs the new weights
    anyway.
    """
    deadline = time.time() + 60 * options.minutes if options.minutes else None
    pace, stopwatch = Pace(settled(config), deadline), Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        with stopwatch.around(Updater, "run", "updates", skip=settled(config) // config.num_envs):
            result = train(config, folder, pace)
            share = stopwatch.share("updates")
        whole = time.perf_counter() - pace.started
        final = evaluate_checkpoint(result.checkpoint_path, options.episodes)
    entry = {
        "kind": "single",
        "steps": int(result.metrics["global_step"]),
        "updates": int(result.metrics["update_count"]),
        "steady": pace.rate,
        "whole": result.metrics["global_step"] / whole,
        "seconds": whole,
        "update_share": share,
        "return": final["eval_return_mean"],
        "return_std": final["eval_return_std"],
        "episodes": options.episodes,
        "curve": pace.curve,
    }
    print(
        f"{entry['steps']:,} steps in {whole:.0f} s: {pace.rate:.1f} steps/s, {share:.0%} in updates, return "
        f"{entry['return']:.0f} over {options.episodes} episodes"
    )
    return entry


def settings(entry: Entry) -> str:
    return " ".join([f"`{entry['config']}`", *entry["overrides"]])


def peer_of(entry: Entry) -> str:
    """The peer and the machine of a comparison."""
    return f"{entry.get('peer', 'Stable-Baselines3')} on {entry['peer_device']}"


def ratio_of(entry: Entry) -> str:
    """The ratio, with its minimum and maximum if there are several pairs of runs."""
    low, high = entry["ratio_spread"]
    return f"{entry['ratio']:.2f} " + ("(one pair)" if len(entry["steady"]) == 1 else f"({low:.2f} to {high:.2f})")


def sections(entries: dict[str, Entry]) -> Sections:
    pairs = [e for e in entries.values() if e["kind"] == "compare"]
    runs = [e for e in entries.values() if e["kind"] == "single"]
    parts = ["## Environment steps per second\n", f"Measured by `python -m benchmarks.speed.training`. {_RATES}\n"]
    median = statistics.median
    if pairs:
        rows = []
        for e in pairs:
            rows.append([f"{e['algo'].upper()} {e['env']}", e["machine"], settings(e),
                         f"{median(e['steady']):.0f} ({median(e['whole']):.0f})", peer_of(e),
                         f"{median(e['peer_steady']):.0f} ({median(e['peer_whole']):.0f})",
                         ratio_of(e)])  # fmt: skip
        header = ["", "machine", "settings", "steps/s steady (whole run)", "peer", "steps/s of the peer",
                  "ratio of the steady rates (spread)"]  # fmt: skip
        parts += [table(header, rows), "", *report.checkouts_said(e for e in pairs if "how" in e)]
    if runs:
        rows = [
            [f"{e['algo'].upper()} {e['env']}", e["machine"], settings(e), e["seed"],
             f"{e['steps']:,}", f"{e['updates']:,}", f"{e['steady']:.1f}", f"{e['update_share']:.0%}",
             final(e)]
            for e in runs
        ]  # fmt: skip
        header = ["", "machine", "settings", "seed", "steps", "updates", "steps/s", "time in updates",
                  "return"]  # fmt: skip
        parts += [table(header, rows), ""]
    if not pairs and not runs:
        return {}
    return {("performance/steps", "training"): "\n".join([*parts, report.origins([*pairs, *runs])])}


def final(entry: Entry) -> str:
    return f"{entry['return']:.0f} ± {entry['return_std']:.0f} over {entry['episodes']} episodes"


def configured(options: argparse.Namespace, source: str, alone: bool) -> TrainConfig:
    """The configuration of all sides; required settings are added to `options.set`."""
    fields: dict[str, Any] = {"algo_kwargs": {}}
    if not alone:
        # Neither side evaluates. There are few random steps, because they are equally fast on both sides.
        fields = {"eval_episodes": 0, "algo_kwargs": {"eval_interval": None, "early_stopping": None}}
        if not any("learning_starts" in override for override in options.set):
            options.set.append(_STARTS)
    elif options.eval_interval is not None:
        fields["algo_kwargs"]["eval_interval"] = options.eval_interval
    if options.prior is not None:
        fields["algo_kwargs"] |= dataset_settings([options.prior])
    return configure(
        source,
        options.algo,
        options.set,
        env_id=options.env,
        seed=options.seed,
        total_timesteps=options.steps,
        device=options.device,
        acceleration=options.acceleration,
        **fields,
    )


def key_of(entry: Entry) -> str:
    """Kind, machine and task; then the seed of a single run, or the peer and any unusual settings."""
    key = f"{entry['kind']}/{entry['machine']}/{entry['algo']}/{entry['env']}"
    if entry["kind"] == "single":
        return f"{key}/{entry['seed']}"
    if entry["kind"] == "against":
        return f"{key}/{entry['other_checkout']}"
    peer = [entry["peer_device"], *([entry["peer"]] if "peer" in entry else [])]
    chosen = " ".join(sorted(set(entry["overrides"]) - {_STARTS}))
    return "/".join([key, *peer, *([chosen] if chosen else [])])


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(given)
    results = Results("training", options.json)
    source = options.config or f"{options.algo}/{options.env.rpartition('-')[0].lower()}"
    alone = not options.against and (options.pairs == 0 or not has_peers(options))
    config = configured(options, source, alone)
    stamp = report.stamp(str(choose_device(config.device))) | {
        "algo": options.algo,
        "env": options.env,
        "config": source,
        "overrides": options.set,
        "seed": options.seed,
        "acceleration": options.acceleration,
    }
    if options.against:
        entry = stamp | measure_against(config, options)
        print(f"{options.algo.upper()} {options.env}: {against.said(entry, 'steps/s')}")
        if options.json:
            results.add({key_of(entry): entry})
        return
    entries = [single(config, options)] if alone else compare(config, options)
    results.add({key_of(stamp | entry): stamp | entry for entry in entries})
    results.show(sections)


if __name__ == "__main__":
    main()
