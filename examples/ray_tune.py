"""Use this package in Ray Tune if you already have a Tune setup (`rl-training tune` does not need one).

    pip install 'ray[tune]'
    python examples/ray_tune.py --trials 8 --steps 20000

Notes:

- Each trial has its own working directory, so all paths must be absolute, including `storage_path`.
- Do not pass checkpoints to `tune.report`: it copies folders, including files that checkpoints share. Each run
  keeps its own checkpoints, and a restarted trial resumes from the newest one.
- `Tuner.restore` unpickles files: restore only from folders you trust.
- A trial uses one CPU. More threads would slow down other trials.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray import tune

import rl_training
from rl_training import SAC, Callback


class Report(Callback):
    """Reports every evaluation to Tune, for its schedulers."""

    def on_evaluation(self, session: Any, metrics: Mapping[str, float]) -> None:
        tune.report({"eval_return_mean": metrics["eval_return_mean"], "step": session.clock.global_step})


def train(settings: dict[str, Any]) -> None:
    """Run one trial, on any node, in a folder named after the trial."""
    folder = Path(settings["runs"]) / tune.get_context().get_trial_id()
    begun = sorted(folder.glob("*/checkpoints"))
    if begun:
        rl_training.load(begun[-1].parent).resume(callbacks=[Report()])
        return
    model = SAC(
        "Pendulum-v1",
        seed=0,
        device="cpu",
        output_dir=str(folder),
        learning_rate=settings["learning_rate"],
        gamma=settings["gamma"],
        learning_starts=settings["steps"] // 10,
        eval_interval=settings["steps"] // 4,
        checkpoint_interval=settings["steps"] // 4,
    )
    model.learn(total_timesteps=settings["steps"], callbacks=[Report()], progress_bar=False)


def main() -> None:
    parser = argparse.ArgumentParser(description="SAC on Pendulum under Ray Tune.")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--output-dir", type=Path, default=Path("tune"))
    options = parser.parse_args()
    root = options.output_dir.absolute()
    space = {
        "learning_rate": tune.loguniform(1e-4, 3e-3),
        "gamma": tune.choice([0.95, 0.99]),
        "steps": options.steps,
        "runs": str(root / "runs"),
    }
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space=space,
        tune_config=tune.TuneConfig(num_samples=options.trials, metric="eval_return_mean", mode="max"),
        run_config=tune.RunConfig(name="sac-pendulum", storage_path=str(root), verbose=0),
    )
    best = tuner.fit().get_best_result()
    settings = {name: best.config[name] for name in ("learning_rate", "gamma")}
    print(f"best: {settings}, return {best.metrics['eval_return_mean']:.1f}")


if __name__ == "__main__":
    main()
