"""Generate the data of the studies `discrete-…`: discrete actions of random, half-trained and mixed policies.

    python -m benchmarks.evidence.discrete_data --data DIR [--env CartPole-v1] [--rows 10000] [--files random …]

Writes the files `ENV-NAME.npz` that are missing in DIR. `random` contains uniformly random actions, `medium` the
actions of a DQN snapshot about half-way to its best return, and `mixed` one third each of random, medium and the
best snapshot. One in ten actions of a snapshot is random. LunarLander-v3 requires the extra `box2d`.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.runs import train
from rl_training.data.datasets import TransitionDataset
from rl_training.data.formats.npz import write_npz
from rl_training.environments.making import spaces_of
from rl_training.experience.collecting import collect_dataset, collect_random
from rl_training.experience.collector import random_actions
from rl_training.experiment.config import TrainConfig, load_config
from rl_training.models.policies import Policy
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session
from rl_training.spaces import SpaceSpec

PRESETS = {"CartPole-v1": "dqn/cartpole", "LunarLander-v3": "dqn/lunarlander"}
NAMES = ("random", "medium", "mixed")
RANDOM_SHARE = 0.1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder to write to")
    parser.add_argument("--env", choices=PRESETS, default="CartPole-v1")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--files", nargs="+", choices=NAMES, default=NAMES)
    return parser.parse_args()


class Snapshots(Callback):
    """Callback that stores the policy and its return at each evaluation."""

    def __init__(self) -> None:
        self.found: list[tuple[float, Policy]] = []

    def on_evaluation(self, session: Session, metrics: Mapping[str, float]) -> None:
        policy = copy.deepcopy(session.learner.model.policy).to("cpu")
        self.found.append((metrics["eval_return_mean"], policy))

    def best(self) -> Policy:
        return max(self.found, key=lambda one: one[0])[1]

    def half_way(self, start: float) -> Policy:
        """The snapshot whose return is closest to the midpoint between `start` and the best."""
        middle = 0.5 * (start + max(value for value, _ in self.found))
        return min(self.found, key=lambda one: abs(one[0] - middle))[1]


def learn_online(env: str) -> Snapshots:
    """Train a DQN with the packaged settings and return a snapshot for each evaluation."""
    snapshots = Snapshots()
    with tempfile.TemporaryDirectory() as folder:
        train(load_config(PRESETS[env]).config, folder, snapshots)
    return snapshots


def played(config: TrainConfig, spaces: SpaceSpec, size: int, seed: int, policy: Policy) -> TransitionDataset:
    """Transitions of a policy, with a fraction of its actions replaced by random ones."""
    rng = np.random.default_rng(seed)

    def act(obs: NDArray[np.float32]) -> NDArray[Any]:
        if rng.random() < RANDOM_SHARE:
            return random_actions(rng, spaces, len(obs))
        with torch.inference_mode():
            return policy.mode(torch.from_numpy(obs)).numpy()

    return collect_dataset(config, spaces, size, seed, act, name="a snapshot")


def joined(parts: list[TransitionDataset]) -> TransitionDataset:
    """Concatenate data sets; every row is equally likely."""
    starts = np.cumsum([0, *(len(part) for part in parts[:-1])])
    return TransitionDataset(
        np.concatenate([part.rows for part in parts]),
        parts[0].spaces,
        np.concatenate([part.episode_ends + start for part, start in zip(parts, starts)]),
        name="mixed",
    )


def place(options: argparse.Namespace, name: str) -> Path:
    path: Path = options.data / f"{options.env}-{name}.npz"
    return path


def make_data(options: argparse.Namespace) -> None:
    """Write the files that are missing."""
    missing = [name for name in options.files if not place(options, name).is_file()]
    if not missing:
        return
    config = TrainConfig(algo="bc", env_id=options.env, total_timesteps=1, seed=0)
    spaces, third = spaces_of(config), options.rows // 3
    found = {"random": collect_random(config, spaces, options.rows, 0)}
    if missing != ["random"]:
        snapshots = learn_online(options.env)
        medium = snapshots.half_way(statistics.fmean(found["random"].episode_returns()))
        found["medium"] = played(config, spaces, options.rows, 1, medium)
        found["mixed"] = joined(
            [
                collect_random(config, spaces, third, 2),
                played(config, spaces, third, 3, medium),
                played(config, spaces, third, 4, snapshots.best()),
            ]
        )
    for name in missing:
        write_npz(place(options, name), found[name].columns())
        mean = statistics.fmean(found[name].episode_returns())
        print(f"{place(options, name)}: mean return {mean:.1f}", flush=True)


def main() -> None:
    options = arguments()
    options.data.mkdir(parents=True, exist_ok=True)
    make_data(options)


if __name__ == "__main__":
    main()
