"""Search for better settings of SAC on Pendulum, and confirm the best ones on fresh seeds.

    pip install optuna
    python examples/tuning.py --trials 20 --steps 5000 --workers 2

docs/guides/tuning.md does the same with a YAML file and `rl-training tune`. Run the program again to continue an
interrupted search, or with more `--trials` to extend it.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rl_training.errors import RLTrainingError
from rl_training.study.tuning import TrialResult, Tuning


def description(options: argparse.Namespace) -> dict[str, Any]:
    """The tuning as a mapping, which a YAML file may hold as well."""
    return {
        "name": "pendulum",
        "base": "sac/pendulum",
        "set": {
            "total_timesteps": options.steps,
            "learning_starts": options.steps // 10,
            "hidden_sizes": [64, 64],
            "eval_episodes": options.episodes,
            "device": "cpu",
        },
        "seeds": list(range(options.seeds)),
        "space": {
            "learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
            "gamma": [0.9, 0.95, 0.98, 0.99],
            "batch_size": {"low": 64, "high": 256, "step": 64},
        },
        "trials": options.trials,
        "confirm": {"best": 1, "seeds": list(range(100, 100 + options.seeds))},
        "threads": 1,
    }


def line(name: str, trial: TrialResult) -> str:
    """A trial: what it changed, what chose it, and its returns on fresh seeds."""
    value, fresh = (
        "failed" if number is None else f"{number:.1f}"
        for number in (trial.value, trial.confirmed.mean if trial.confirmed else None)
    )
    changed = ", ".join(f"{key}={number:.3g}" for key, number in trial.settings.items()) or "as it is"
    return f"{name:<6} tuning {value:>8}   fresh seeds {fresh:>8}   {changed}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Tune SAC on Pendulum-v1.")
    parser.add_argument("--trials", type=int, default=20, help="number of configurations, including the base")
    parser.add_argument("--seeds", type=int, default=2, help="of each trial, and of the confirmation")
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--output-dir", default="studies")
    options = parser.parse_args()
    try:
        tuning = Tuning(description(options), output_dir=options.output_dir)
        result = tuning.run(options.workers, say=lambda text: print(text, file=sys.stderr))
    except RLTrainingError as error:
        sys.exit(f"error: {error}")
    print(line("base", result.base))
    print(line("best", result.best))
    print(f"{len(result.trials)} trials in {tuning.folder}; rl-training status {tuning.folder}")


if __name__ == "__main__":
    main()
