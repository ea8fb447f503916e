"""BC, CQL and IQL on data of discrete actions, beside d3rlpy's DiscreteBC and DiscreteCQL on the same rows.

    python -m benchmarks.discrete --data DIR [--env CartPole-v1] [--rows 10000] [--files random medium mixed]
                                  [--algo bc cql iql] [--updates 5000] [--seeds 0 1 2] [--episodes 30]
                                  [--peer-python PATH]

Files that DIR does not have are made: transitions of uniformly random actions (`random`), of a snapshot of a DQN of
ours about half way to its best (`medium`), and a third each of random, medium and the best snapshot (`mixed`); one
in ten actions of a snapshot is random. Seeds of ours are trained as one population. Both libraries have the same
networks, learning rate, batch size, discount and weight of the penalty; d3rlpy's target is copied every 200 updates
(ours follows by 0.005), and its cloning keeps its own penalty on log-probabilities. LunarLander-v3 needs the extra
`box2d`.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import report
from benchmarks.learning import finals
from benchmarks.report import Entry, Results, Sections, table
from benchmarks.runs import RunSpec, data_returns, dataset_settings, perform
from rl_training.data.datasets import TransitionDataset
from rl_training.data.formats import write_npz
from rl_training.environments.making import spaces_of
from rl_training.experience.collecting import collect_dataset, collect_random
from rl_training.experience.collector import random_actions
from rl_training.experiment.config import TrainConfig, load_config
from rl_training.experiment.manager import ExperimentManager
from rl_training.models.policies import Policy
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session
from rl_training.runs.spec import RunOptions
from rl_training.runtime.workflows import evaluate_checkpoint
from rl_training.spaces import SpaceSpec

PRESETS = {"CartPole-v1": "dqn/cartpole", "LunarLander-v3": "dqn/lunarlander"}
RANDOM_SHARE = 0.1
NETWORK: dict[str, Any] = {"hidden_sizes": [128, 128], "batch_size": 128}
SETTINGS: dict[str, dict[str, Any]] = {
    "bc": {"learning_rate": 1e-3},
    "cql": {"learning_rate": 1e-3, "cql_alpha": 1.0},
    "iql": {"learning_rate": 1e-3, "expectile": 0.7, "beta": 3.0},
}
# The same for d3rlpy, which has no IQL for discrete actions.
PEER_SETTINGS: dict[str, dict[str, Any]] = {
    "bc": {"learning_rate": 1e-3},
    "cql": {"learning_rate": 1e-3, "alpha": 1.0, "gamma": 0.99, "target_update_interval": 200},
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the npz files, made where they are not")
    parser.add_argument("--env", choices=PRESETS, default="CartPole-v1")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--files", nargs="+", default=["random", "medium", "mixed"])
    parser.add_argument("--algo", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--updates", type=int, default=5_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--episodes", type=int, default=30)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--peer-python", help="a Python with d3rlpy installed")
    parser.add_argument("--json", type=Path, help="keep results here and leave the documentation alone")
    return parser.parse_args()


# The data.


class Snapshots(Callback):
    """The policy at each evaluation, with its return."""

    def __init__(self) -> None:
        self.found: list[tuple[float, Policy]] = []

    def on_evaluation(self, session: Session, metrics: Mapping[str, float]) -> None:
        policy = copy.deepcopy(session.learner.model.policy).to("cpu")
        self.found.append((metrics["eval_return_mean"], policy))

    def best(self) -> Policy:
        return max(self.found, key=lambda one: one[0])[1]

    def half_way(self, start: float) -> Policy:
        """The one whose return is nearest to the middle between `start` and the best."""
        middle = 0.5 * (start + max(value for value, _ in self.found))
        return min(self.found, key=lambda one: abs(one[0] - middle))[1]


def learn_online(env: str) -> Snapshots:
    """A DQN of ours with the packaged settings, seen at each evaluation."""
    snapshots = Snapshots()
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(PRESETS[env]).config.replace(output_dir=folder)
        ExperimentManager().train(config, callbacks=[snapshots], options=RunOptions(quiet=True))
    return snapshots


def played(config: TrainConfig, spaces: SpaceSpec, size: int, seed: int, policy: Policy) -> TransitionDataset:
    """Transitions of a policy of whose actions some are random."""
    rng = np.random.default_rng(seed)

    def act(obs: NDArray[np.float32]) -> NDArray[Any]:
        if rng.random() < RANDOM_SHARE:
            return random_actions(rng, spaces, len(obs))
        with torch.inference_mode():
            return policy.mode(torch.from_numpy(obs)).numpy()

    return collect_dataset(config, spaces, size, seed, act, name="a snapshot")


def joined(parts: list[TransitionDataset]) -> TransitionDataset:
    """Data sets one behind the other, every row as likely as any."""
    starts = np.cumsum([0, *(len(part) for part in parts[:-1])])
    return TransitionDataset(
        np.concatenate([part.rows for part in parts]),
        parts[0].spaces,
        np.concatenate([part.episode_ends + start for part, start in zip(parts, starts)]),
        name="mixed",
    )


def place(options: argparse.Namespace, name: str) -> Path:
    return options.data / f"{options.env}-{name}-{options.rows}.npz"  # type: ignore[no-any-return]


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


# The runs.


def configured(options: argparse.Namespace, algo: str, name: str) -> TrainConfig:
    return TrainConfig(
        algo=algo,
        env_id=options.env,
        total_timesteps=options.updates,
        seed=options.seeds[0],
        device=options.device,
        eval_episodes=0,
        checkpoint_interval=10**9,
        algo_kwargs={**dataset_settings([place(options, name)]), **NETWORK, **SETTINGS[algo]},
    )


def train_ours(options: argparse.Namespace, config: TrainConfig) -> Iterator[tuple[int, Entry]]:
    """Every seed, trained as one population."""
    with tempfile.TemporaryDirectory() as folder:
        together = config.replace(output_dir=folder, seed=None, seeds=options.seeds)
        results = ExperimentManager().train_all(together, options=RunOptions(quiet=True))
        for seed, result in zip(options.seeds, results, strict=True):
            final = evaluate_checkpoint(result.checkpoint_path, options.episodes)
            yield seed, {"updates": int(result.metrics["update_count"]), "final": final}


def train_theirs(options: argparse.Namespace, config: TrainConfig) -> Iterator[tuple[int, Entry]]:
    """Every seed, one after the other."""
    for seed in options.seeds:
        job = RunSpec(
            key=f"d3rlpy {config.algo}/{seed}",
            config=config.replace(seed=seed).to_dict(),
            library="d3rlpy",
            episodes=options.episodes,
            peer_python=options.peer_python,
            peer_settings=PEER_SETTINGS[config.algo],
        )
        found = perform(job)
        peer = found["peer_versions"]
        named = {"d3rlpy": peer["version"], "its torch": peer["torch"]}
        yield seed, {"updates": found["updates"], "final": found["final"], "versions": found["versions"] | named}


def entries(options: argparse.Namespace) -> Iterator[dict[str, Entry]]:
    for name in options.files:
        for algo in options.algo:
            config = configured(options, algo, name)
            returns = data_returns([place(options, name)], spaces_of(config))
            libraries = {"rl_training": train_ours}
            if options.peer_python and algo in PEER_SETTINGS:
                libraries["d3rlpy"] = train_theirs
            for library, train in libraries.items():
                for seed, found in train(options, config):
                    about = {
                        "library": library,
                        "algo": algo,
                        "env": options.env,
                        "file": name,
                        "rows": options.rows,
                        "seed": seed,
                        "budget": options.updates,
                        "episodes": options.episodes,
                        "data_return": statistics.fmean(returns),
                        "data_episodes": len(returns),
                    }
                    key = f"{options.env}/{name}/{options.rows}/{options.updates}/{library} {algo}/{seed}"
                    print(f"{key}: {found['final']['eval_return_mean']:.1f}", flush=True)
                    yield {key: report.stamp(options.device) | found | about}


# The table.


def file_rows(runs: list[Entry]) -> Iterator[list[str]]:
    """One file: the data, then a row per algorithm and library."""
    first = runs[0]
    own = f"{first['data_return']:.0f}"
    yield [first["file"], "the data itself", "–", f"{first['data_episodes']} episodes", own]
    contenders: dict[tuple[str, str], list[Entry]] = {}
    for run in sorted(runs, key=lambda run: (run["algo"], run["library"] == "d3rlpy", run["seed"])):
        contenders.setdefault((run["algo"], run["library"]), []).append(run)
    for (algo, library), found in contenders.items():
        label = f"d3rlpy Discrete{algo.upper()}" if library == "d3rlpy" else algo.upper()
        values = finals(found)
        seeds = " ".join(str(run["seed"]) for run in found)
        yield [first["file"], label, seeds, report.returns(values), report.spread(values)]


def sections(found: dict[str, Entry]) -> Sections:
    groups: dict[tuple[str, int, int], list[Entry]] = {}
    for entry in found.values():
        groups.setdefault((entry["env"], entry["rows"], entry["budget"]), []).append(entry)
    texts = []
    for (env, rows, budget), runs in sorted(groups.items()):
        names = dict.fromkeys(run["file"] for run in runs)
        order = [name for name in ("random", "medium", "mixed") if name in names]
        lines = [row for name in order for row in file_rows([run for run in runs if run["file"] == name])]
        header = ["data", "", "seeds", "returns", "mean ± std"]
        episodes = " / ".join(sorted({str(run["episodes"]) for run in runs}))
        about = f"Returns are means over {episodes} episodes."
        texts.append(f"### {env}, {rows:,} rows, {budget:,} updates\n\n{about}\n\n{table(header, lines)}")
    runs = list(found.values())
    body = "\n\n".join(texts)
    text = (
        "## Discrete actions\n\n"
        "Written by `python -m benchmarks.discrete`; last checkpoint, episodes on the same "
        "seeds for every run. `random` are uniformly random actions, `medium` a snapshot of a DQN about half way "
        "to its best, `mixed` a third each of both and of the best snapshot; one in ten of a snapshot's actions is "
        "random, which a clone leaves out: its return may lie on either side of its data's. Networks, learning "
        "rate, batch size, discount and weight of the penalty are the same on both sides; d3rlpy copies its "
        "target every 200 updates, keeps its cloning's penalty on log-probabilities, and has no IQL for discrete "
        "actions. Our seeds are trained as one population.\n\n"
        f"{body}\n\n{report.origins(runs)}"
    )
    return {("results", "discrete"): text}


def main() -> None:
    options = arguments()
    options.data.mkdir(parents=True, exist_ok=True)
    results = Results("discrete", options.json)
    make_data(options)
    for entry in entries(options):
        results.add(entry)
    for text in sections(results.load()).values():
        print(f"\n{text}")
    results.render(sections)


if __name__ == "__main__":
    main()
