"""Returns that classes must reach with default settings, as in `SAC("Pendulum-v1", seed=0).learn(10_000)`.

The study `bare-classes` trains the classes and defines the budgets, which the README lists. `LINES` are the
required returns. They were fixed before the first measurement, and every seed must reach them.

- Pendulum-v1, -200: swung up and held; random actions get -1,200, the best possible is about -140.
- CartPole-v1, 450 of 500.
- Behaviour cloning copies good and bad episodes. It must reach the mean return of its data, less the standard
  error of the mean over the number of evaluation episodes.
- The other offline algorithms and RLPD use the replay buffer of an agent that learned the task, including its first
  random episodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import rl_training
from benchmarks.evidence.keeping import Kept, load
from benchmarks.report import RESULTS, ROOT, table
from rl_training import ManagedAlgorithm
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.strict_yaml import parse_yaml

STUDY = ROOT / "benchmarks" / "studies" / "bare-classes.yaml"
LINES = {"Pendulum-v1": -200.0, "CartPole-v1": 450.0}
_SEEDS = 3


@dataclass(frozen=True)
class Bare:
    """Environment of a class, its budget (steps; offline, updates) and the return it must reach."""

    env: str
    budget: int
    line: float | None  # None: the mean return of the data


def read() -> dict[str, Bare]:
    """Return, by algorithm, the settings in the study and the required return, which cloning does not have."""
    tasks = parse_yaml(STUDY.read_text(encoding="utf-8"), str(STUDY)).value["list"]
    return {
        task["algo"]: Bare(
            task["env_id"], task["total_timesteps"], LINES[task["env_id"]] if task["algo"] != "bc" else None
        )
        for task in tasks
    }


BARE = read()


def class_of(algo: str) -> type[ManagedAlgorithm]:
    """The exported class that trains an algorithm."""
    exported = (getattr(rl_training, name) for name in rl_training.__all__)  # type: ignore[attr-defined]
    found: type[ManagedAlgorithm] = next(one for one in exported if getattr(one, "algo", None) == algo)
    return found


def reached(algo: str, kept: Kept | None) -> bool | None:
    """Whether every seed reached the required return; None if fewer than `_SEEDS` seeds have been evaluated."""
    if kept is None:
        return None
    runs = [run for run in kept["runs"].values() if run["algo"] == algo and "judged" in run]
    if len(runs) < _SEEDS:
        return None
    line, episodes = BARE[algo].line, len(runs[0]["judged"]["returns"])
    if line is None:
        data = kept["data"][runs[0]["dataset"]["name"]]
        line = data["mean"] - data["std"] / episodes**0.5
    return all(run["judged"]["mean"] >= line for run in runs)


def budgets() -> str:
    """The table of budgets in the README."""
    kept, found = load(RESULTS / "evidence" / f"{STUDY.stem}.json"), dict[tuple[str, ...], list[str]]()
    for algo, bare in BARE.items():
        unit = "updates" if get_algorithm_spec(algo).regime == "offline" else "steps"
        line = "the mean of its data, less one standard error" if bare.line is None else f"{bare.line:g}"
        line = {True: line, False: f"{line}, missed by a seed", None: "not measured yet"}[reached(algo, kept)]
        found.setdefault((bare.env, line, f"{bare.budget:,} {unit}"), []).append(f"`{class_of(algo).__name__}`")
    return table(["", "return", "within", "classes"], ([*task, ", ".join(names)] for task, names in found.items()))
