"""Run a study on a Ray cluster, with the same trials, folders and numbers as without Ray.

    python examples/study_on_ray.py --ray local        # a new cluster on this machine
    python examples/study_on_ray.py --ray auto         # an existing cluster; `studies` is on a shared disk

A second start skips finished trials; with more seeds it adds trials; without --ray it continues in one process.
"""

from __future__ import annotations

import argparse

from rl_training import Study


def main() -> None:
    parser = argparse.ArgumentParser(description="Two discounts and some seeds of DQN on CartPole, on Ray.")
    parser.add_argument("--ray", metavar="ADDRESS", help="auto, local or host:port; without it, no Ray")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seeds", default="0..2")
    parser.add_argument("--output-dir", default="studies")
    options = parser.parse_args()
    description = {
        "name": "gamma-on-ray",
        "base": "dqn/cartpole",
        "set": {"total_timesteps": options.steps, "device": "cpu"},
        "seeds": options.seeds,
        "grid": {"gamma": [0.9, 0.99]},
        "threads": 1,
    }
    study = Study(description, output_dir=options.output_dir)
    study.run(ray=options.ray, say=print)
    best = study.best()
    print(f"best: {best.settings}, return {best.score:.1f}")


if __name__ == "__main__":
    main()
