"""Offline training on your own arrays, without an environment: IQL on the log of a point on a line.

    python examples/offline_own_arrays.py --updates 2000

The log is of a noisy controller that pushes a point towards the origin. The program prints the actions of the
trained policy at a few states. Replace `logged_data` with your own log.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from rl_training import IQL, TransitionDataset


def logged_data(episodes: int = 100, length: int = 50, seed: int = 0) -> dict[str, Any]:
    """State (position, speed), a push in [-3, 3], and the negative cost of being away from the origin."""
    rng = np.random.default_rng(seed)
    columns: dict[str, list[Any]] = {
        "observations": [], "actions": [], "rewards": [], "next_observations": [], "terminals": [], "timeouts": []
    }  # fmt: skip
    for _ in range(episodes):
        state = rng.uniform(-1.0, 1.0, 2)
        for step in range(length):
            push = np.clip(-2.0 * state[0] - state[1] + rng.normal(0.0, 1.5), -3.0, 3.0)
            following = state + 0.1 * np.array([state[1], push])
            reward = -(state[0] ** 2) - 0.1 * state[1] ** 2
            row = (state, [push], reward, following, False, step == length - 1)
            for column, value in zip(columns.values(), row):
                column.append(value)
            state = following
    return {name: np.asarray(values) for name, values in columns.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="IQL on arrays in memory, without an environment.")
    parser.add_argument("--updates", type=int, default=2_000)
    parser.add_argument("--output-dir", default="runs")
    options = parser.parse_args()

    # Pass the bounds of the actuator, not the range of the actions in the log.
    dataset = TransitionDataset.from_arrays(**logged_data(), action_low=-3.0, action_high=3.0)
    model = IQL(None, seed=0, hidden_sizes=[64, 64], normalize_observations=True, output_dir=options.output_dir)
    result = model.learn(total_timesteps=options.updates, dataset=dataset)

    states = np.array([[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    for state, push in zip(states, model.predict(states)):
        print(f"position {state[0]:+.1f}  push {push[0]:+.2f}")
    print(f"checkpoint: {result.checkpoint_path}")


if __name__ == "__main__":
    main()
