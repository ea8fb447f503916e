"""Exported policies compared with `predict`: numerical difference, file size, speed.

    python -m benchmarks.speed.export [--algorithms sac td3 …] [--steps 300] [--seconds 0.5] [--json FILE]

Each algorithm is trained for a few hundred steps with its default networks and a normaliser, in an environment with
observations far from zero and asymmetric action bounds. The outputs are compared on new observations, one by one
and in batches of seven. They are compared again with the weights of the last layer multiplied by 1000, so that
actions are at their bounds. Times are CPU times of one thread, which other processes affect less; the three ways to
run a policy alternate.
"""

from __future__ import annotations

import copy
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import report
from benchmarks.evidence.bare import class_of
from benchmarks.report import Entry, Results, Sections, number, table
from rl_training.experiment.registry import algorithm_names, get_algorithm_spec
from rl_training.export.graph import onnx_bytes
from rl_training.export.policy_runner import Policy as NumpyPolicy
from rl_training.export.program import npz_bytes, program_of
from rl_training.export.writing import export_checkpoint
from rl_training.runtime.loading import LoadedPolicy, load_policy, open_checkpoint

OBS, ROWS, ROUNDS = 17, 700, 7
LOW = np.array([-1.0, -2.0, 0.0, 0.1, -1.0, -0.4], np.float32)
HIGH = np.array([1.0, 1.0, 3.0, 0.4, 1.0, 0.4], np.float32)
CENTRE, SCALE = np.linspace(-30.0, 5.0, OBS), np.logspace(-1, 1.3, OBS)
Array = NDArray[Any]
Act = Callable[[Array], Array]


class Skewed(gym.Env[Any, Any]):
    """17 observations of unequal scale, six actions with different bounds or five discrete actions; 50 steps."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)

    def __init__(self, discrete: bool = False) -> None:
        self.action_space: Any = gym.spaces.Discrete(5) if discrete else gym.spaces.Box(LOW, HIGH)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return looks(self.np_random, 1)[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return looks(self.np_random, 1)[0], float(np.sum(action)), False, self.t == 50, {}


def looks(rng: np.random.Generator, rows: int) -> Array:
    return rng.normal(CENTRE, SCALE, (rows, OBS)).astype(np.float32)


def train(algo: str, steps: int, folder: Path) -> Path:
    """Train a policy and return its run folder."""
    owners = get_algorithm_spec(algo).sections.owners()
    given = {
        "normalize_observations": True,
        "learning_starts": steps // 2,
        "gradient_updates_per_step": 1,
        "dataset_kind": "random",
        "dataset_size": 1_000,
        "offline_pretrain_updates": steps,
    }
    model: Any = class_of(algo)(
        Skewed,
        env_kwargs={"discrete": get_algorithm_spec(algo).learner.discrete},
        seed=0,
        device="cpu",
        output_dir=folder,
        eval_episodes=0,
        **{key: value for key, value in given.items() if key in owners},
    )
    done: Path = model.learn(steps, progress_bar=False).run_dir
    return done


def onnx(path: Path) -> Callable[..., Array]:
    import onnxruntime  # not needed to render the pages

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options)

    def run(observation: Array, noise: Array | None = None) -> Array:
        given = {"observation": observation} | ({} if noise is None else {"noise": noise})
        action: Array = session.run(["action"], given)[0]
        return action

    return run


def difference(run: Act, policy: LoadedPolicy, obs: Array, size: int, *, bounds: bool = False) -> float:
    """Largest difference of actions predicted in batches of `size`; for discrete actions, the fraction that
    differs.

    With `bounds`, only actions at their bounds are compared.
    """
    got, wanted = (
        np.concatenate([act(obs[i : i + size]) for i in range(0, len(obs), size)]) for act in (run, policy.predict)
    )
    if policy.spaces.discrete:
        return float(np.mean(got != wanted))
    judged = ((wanted == LOW) | (wanted == HIGH)) | (not bounds)
    return float(np.abs(got.astype(np.float64) - wanted.astype(np.float64))[judged].max())


def saturated(policy: LoadedPolicy, place: Path) -> tuple[LoadedPolicy, dict[str, Act]]:
    """The policy with its actions at their bounds, and its exported files."""
    pushed = LoadedPolicy(copy.deepcopy(policy.policy), policy.spaces, policy.config)
    net: Any = pushed.policy.actor.net
    head = net.head
    head.weight *= 1e3
    steps = program_of(pushed, sampled=False)
    files = {
        "onnx": onnx_bytes(steps, pushed.spaces, sampled=False, metadata={}, version="0"),
        "npz": npz_bytes(steps, {"observation": {"size": OBS}, "stochastic": False}),
    }
    for suffix, data in files.items():
        (place / f"pushed.{suffix}").write_bytes(data)
    return pushed, {"onnx": onnx(place / "pushed.onnx"), "npz": NumpyPolicy(place / "pushed.npz")}


def microseconds(ways: dict[str, Act], seconds: float) -> dict[str, float]:
    """Median time of each way for one observation; the ways alternate."""
    obs, found = looks(np.random.default_rng(3), 1), {name: list[float]() for name in ways}
    for turn in range(ROUNDS + 1):
        for name, act in ways.items():
            count, started = 0, time.process_time()
            while (spent := time.process_time() - started) < seconds / ROUNDS:
                act(obs)
                count += 1
            if turn:
                found[name].append(1e6 * spent / count)
    return {name: statistics.median(rounds) for name, rounds in found.items()}


def measure(algo: str, steps: int, seconds: float) -> Entry:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        run = train(algo, steps, place / "runs")
        policy = load_policy(open_checkpoint(run))
        made = {suffix: export_checkpoint(run, place / f"policy.{suffix}") for suffix in ("onnx", "npz")}
        ways: dict[str, Act] = {
            "predict": policy.predict,
            "onnx": onnx(made["onnx"].path),
            "npz": NumpyPolicy(made["npz"].path),
        }
        rng = np.random.default_rng(1)
        obs = looks(rng, ROWS)
        entry: Entry = {
            "kind": "export",
            "algo": algo,
            "steps": steps,
            "checked_by_export": {suffix: one.largest_difference for suffix, one in made.items()},
            "bytes": {suffix: one.num_bytes for suffix, one in made.items()},
            "difference": {
                f"{suffix} {name}": difference(ways[suffix], policy, obs, size)
                for suffix in made
                for name, size in (("one", 1), ("seven", 7))
            },
            "microseconds": microseconds(ways, seconds),
        }
        if not policy.spaces.discrete:
            pushed, written = saturated(policy, place)
            actions = pushed.predict(obs)
            entry["at_bounds"] = float(np.mean((actions == LOW) | (actions == HIGH)))
            entry["difference"] |= {
                f"{suffix} bounds": difference(act, pushed, obs, 7, bounds=True) for suffix, act in written.items()
            }
        if policy.policy.stochastic:
            noisy = export_checkpoint(run, place / "noisy.onnx", deterministic=False)
            noise = rng.standard_normal((ROWS, policy.spaces.action_dim)).astype(np.float32)
            apart = onnx(noisy.path)(obs, noise).astype(np.float64) - policy.act(obs, noise)
            entry["difference"]["onnx noise"] = float(np.abs(apart).max())
    used = {name: metadata.version(name) for name in ("onnx", "onnxruntime")}
    stamp = report.stamp("cpu") | {"load": os.getloadavg()[0]}
    return stamp | {"versions": stamp["versions"] | used} | entry


def span(values: Iterable[float]) -> str:
    """The smallest and the largest value, rounded."""
    found = [f"{value:.0f}" for value in sorted(values)]
    return f"{found[0]}–{found[-1]}"


def row(way: str, suffix: str, entries: list[Entry]) -> list[str]:
    """Largest difference, file size and time of one way to run a policy."""
    apart = [
        value
        for entry in entries
        for name, value in entry["difference"].items()
        if name.partition(" ")[0] == suffix
    ]
    sizes = [entry["bytes"][suffix] / 1000 for entry in entries if suffix in entry["bytes"]]
    return [
        way,
        number(max(apart), 2) if apart else "–",
        span(sizes) if sizes else "–",
        span(entry["microseconds"][suffix] for entry in entries),
    ]


def sections(entries: dict[str, Entry]) -> Sections:
    here = list(entries.values())
    loads = [entry["load"] for entry in here]
    bound = min(entry["at_bounds"] for entry in here if "at_bounds" in entry)
    ways = {"`predict`": "predict", "onnxruntime": "onnx", "numpy": "npz"}
    text = [
        f"Measured by `python -m benchmarks.speed.export` with {len(here)} algorithms, their default networks and "
        f"a normaliser: {OBS} observations, six actions. Differences are from `predict`, on {ROWS} observations "
        f"that the export had not compared, also with at least {100 * bound:.0f} % of the actions at their bounds. "
        "Times are for one observation on one CPU thread.",
        "",
        table(
            ["", "largest difference", "file, kB", "µs per observation"],
            [row(way, suffix, here) for way, suffix in ways.items()],
        ),
        "",
        f"{report.origins(here)} Load of the machine meanwhile: {min(loads):.1f} to {max(loads):.1f}.",
    ]
    return {("guides/deploying", "export"): "\n".join(text)}


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--algorithms", nargs="+", choices=algorithm_names(), default=algorithm_names())
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds of timing for each way")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = Results("export", options.json)
    for algo in options.algorithms:
        entry = measure(algo, options.steps, options.seconds)
        results.add({algo: entry})
        print(algo, entry["difference"], entry["microseconds"], flush=True)
    results.render(sections)


if __name__ == "__main__":
    main()
