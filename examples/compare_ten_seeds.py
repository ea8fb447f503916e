"""Compare two algorithms on one task with ten seeds each.

    pip install matplotlib scipy jinja2
    python examples/compare_ten_seeds.py --algorithms sac td3 --env Pendulum-v1 --steps 10000

The seeds of an algorithm are trained together, each in its own run folder, so `rl-training runs` and
`rl-training report` can read the output folder afterwards. One seed proves nothing: compare the interquartile means
(IQM, the mean of the middle half of the seeds) and the probability that a run of one algorithm beats a run of the
other. If the interval of the difference contains 0, these seeds do not show which algorithm is better.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from numpy.typing import NDArray

from rl_training import DDPG, REDQ, SAC, TD3, TQC
from rl_training.errors import RLTrainingError
from rl_training.report.statistics import compare, estimate, probability_of_improvement

Returns = dict[str, NDArray[np.float64]]
ALGORITHMS = {"ddpg": DDPG, "td3": TD3, "sac": SAC, "tqc": TQC, "redq": REDQ}


def final_returns(name: str, options: argparse.Namespace) -> NDArray[np.float64]:
    """Train all seeds of an algorithm; returns the mean return of each seed's last evaluation, `[seeds]`."""
    model = ALGORITHMS[name](
        options.env,
        seeds=list(range(options.seeds)),
        eval_episodes=options.episodes,
        output_dir=options.output_dir,
        hidden_sizes=[64, 64],
        learning_starts=options.learning_starts,
        device="cpu",
    )
    results = model.learn(total_timesteps=options.steps, progress_bar=options.progress)
    return np.array([result.metrics["eval_return_mean"] for result in results])


def table(returns: Returns) -> list[str]:
    """One line for each algorithm."""
    lines = [f"{'':>6}{'seeds':>7}{'mean':>10}{'std':>9}{'IQM':>10}{'95 % interval of the IQM':>28}"]
    for name, values in returns.items():
        middle = estimate([values])
        interval = f"{middle.low:.1f} to {middle.high:.1f}" if len(values) > 1 else "-"
        spread = f"{values.std(ddof=1):.1f}" if len(values) > 1 else "-"
        lines.append(
            f"{name:>6}{len(values):>7}{values.mean():>10.1f}{spread:>9}{middle.value:>10.1f}{interval:>28}"
        )
    return lines


def verdict(returns: Returns) -> list[str]:
    """Compare the first algorithm with the second; "better" only if the interval excludes 0."""
    (one, first), (other, second) = returns.items()
    wins = probability_of_improvement(first, second)
    lines = [f"a run of {one} beats a run of {other} with probability {wins:.2f}"]
    difference = compare([first], [second])
    if difference.low is not None:
        said = "these seeds do not show which is better"
        if difference.excludes_zero:
            said = f"{one if difference.value > 0 else other} is better here"
        lines.append(f"difference of the IQMs: {difference.low:.1f} to {difference.high:.1f}; {said}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare two algorithms over several seeds.")
    parser.add_argument("--algorithms", nargs=2, default=["sac", "td3"], choices=ALGORITHMS)
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--learning-starts", type=int, default=500)
    parser.add_argument("--episodes", type=int, default=10, help="evaluation episodes of each seed")
    parser.add_argument("--output-dir", default="runs/compare_ten_seeds")
    parser.add_argument("--progress", action="store_true", help="show progress")
    options = parser.parse_args()
    if options.algorithms[0] == options.algorithms[1]:
        parser.error("give two different algorithms")
    try:
        returns = {name: final_returns(name, options) for name in options.algorithms}
    except RLTrainingError as error:
        sys.exit(f"error: {error}")
    print("\n".join([*table(returns), *verdict(returns)]))


if __name__ == "__main__":
    main()
