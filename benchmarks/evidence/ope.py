"""Accuracy of off-policy evaluation: compare FQE's ranking of policies with their returns in the environment.

    python -m benchmarks.evidence.ope [--env Pendulum-v1] [--device cpu] [--updates 8000] [--bootstraps 3]
                             [--peer PYTHON] [--peers-only] [--folder DIR] [--results FILE]

A small version of DOPE (Fu et al. 2021) that needs no downloads. FQE evaluates eleven snapshots of one SAC run on
the replay buffer of that run. The true value of a snapshot is its mean discounted return over 256 episodes. These
episodes end when the discount is negligible, not at the time limit of the environment.

The program reports Spearman's rank correlation, the regret of selecting the policy with the highest estimate (as a
fraction of the range of true values), and the mean absolute error. With `--peer`, the interpreter of an environment
with d3rlpy, d3rlpy's FQE evaluates the same policies on the same rows. `--peers-only` runs d3rlpy alone, so that
our FQE can run elsewhere on a copy of the folder.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from benchmarks.peers.d3rlpy import estimate
from benchmarks.report import Entry, Results, Sections, number, origins, stamp, table
from rl_training import SAC, ope
from rl_training.console.dataset_tasks import from_run
from rl_training.data.datasets import TransitionDataset
from rl_training.experience.fqe_data import acts
from rl_training.off_policy_evaluation.policies import Candidate, candidates

Floats = NDArray[np.float64]
SNAPSHOTS, EPISODES, GAMMA = 11, 256, 0.99
# Episodes that measure true values end when the discount is below this.
NOTHING = 1e-3
SIDE_BY_SIDE = 64
# Steps of the SAC run, and settings with which it learns the task within them.
RUNS: dict[str, dict[str, Any]] = {
    "Pendulum-v1": {"total_timesteps": 5_500, "learning_rate": 1e-3, "learning_starts": 500, "alpha": "auto"},
    "Hopper-v5": {"total_timesteps": 220_000, "learning_starts": 5_000, "alpha": "auto"},
    "HalfCheetah-v5": {"total_timesteps": 220_000, "learning_starts": 5_000, "alpha": "auto"},
}


def snapshots(env_id: str, device: str, folder: Path) -> tuple[Path, list[Path]]:
    """Return the folder of a SAC run and its eleven checkpoints; the run is trained once and then reused."""
    settings = dict(RUNS[env_id])
    total = settings.pop("total_timesteps")
    homes = sorted(folder.glob(f"{env_id}__sac__*"))
    if not homes:
        model = SAC(
            env_id,
            seed=0,
            device=device,
            output_dir=str(folder),
            checkpoint_interval=total // SNAPSHOTS,
            keep_checkpoints=SNAPSHOTS,
            eval_episodes=0,
            buffer_capacity=total,
            **settings,
        )
        homes = [model.learn(total).run_dir]
    return homes[0], sorted((homes[0] / "checkpoints").glob("step_*"))[:SNAPSHOTS]


def truth(env_id: str, candidate: Candidate, episodes: int = EPISODES, gamma: float = GAMMA) -> tuple[float, float]:
    """Return the mean discounted return over `episodes`, and its standard error."""
    horizon = math.ceil(math.log(NOTHING) / math.log(gamma))
    envs = [gym.make(env_id, max_episode_steps=horizon) for _ in range(min(SIDE_BY_SIDE, episodes))]
    returns: list[float] = []
    for first in range(0, episodes, len(envs)):
        obs = np.stack([env.reset(seed=first + i)[0] for i, env in enumerate(envs)]).astype(np.float32)
        total, alive = np.zeros(len(envs)), np.ones(len(envs), bool)
        for step in range(horizon):
            actions = candidate.spaces.to_env(acts(candidate.policy, torch.from_numpy(obs)).numpy())
            for i in np.flatnonzero(alive):
                obs[i], reward, terminated, _, _ = envs[i].step(actions[i])
                total[i] += gamma**step * float(reward)
                alive[i] = not terminated
            if not alive.any():
                break
        returns += total.tolist()
    for env in envs:
        env.close()
    return float(np.mean(returns)), float(np.std(returns, ddof=1) / math.sqrt(len(returns)))


def agreements(truths: Floats, values: Floats) -> dict[str, Floats]:
    """Rank correlation, regret as a fraction of the range of truths, mean absolute error; inputs are `[…, K]`."""
    ranks = stats.rankdata(truths, axis=-1), stats.rankdata(values, axis=-1)
    best, chosen = truths.max(-1), np.take_along_axis(truths, values.argmax(-1, keepdims=True), -1)[..., 0]
    return {
        "spearman": np.asarray(stats.pearsonr(*ranks, axis=-1).statistic),
        "regret": (best - chosen) / (best - truths.min(-1)),
        "error": np.abs(values - truths).mean(-1),
    }


def agreement(truths: Floats, values: Floats) -> dict[str, float]:
    """`agreements` for a single set of policies, `[K]`."""
    return {name: float(value) for name, value in agreements(truths, values).items()}


def interval(truths: Floats, values: Floats, name: str) -> tuple[float, float]:
    """95 % interval of `agreement` from a bootstrap over the policies."""

    def statistic(t: Floats, v: Floats, axis: int = -1) -> Floats:
        return agreements(np.moveaxis(t, axis, -1), np.moveaxis(v, axis, -1))[name]

    found = stats.bootstrap(
        (truths, values), statistic, paired=True, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    return float(found.low), float(found.high)


def scores(truths: Floats, values: Floats) -> dict[str, Any]:
    """The values `[K, B]`, and the agreement of their means over bootstraps."""
    return {"mean": agreement(truths, values.mean(1)), "values": values.tolist()}


def weights_of(candidate: Candidate, path: Path) -> Path:
    """Write the mean of a SAC policy as plain arrays; policies with a normaliser are rejected."""
    assert not candidate.policy.normalizer.enabled
    net: Any = candidate.policy.actor.net
    arrays = {}
    for i, layer in enumerate([*net.hidden, net.head]):
        arrays[f"w{i}"], arrays[f"b{i}"] = layer.weight[0].numpy(), layer.bias[0, 0].numpy()
    last, half = len(net.hidden), net.head.weight.shape[-1] // 2
    arrays[f"w{last}"], arrays[f"b{last}"] = arrays[f"w{last}"][:, :half], arrays[f"b{last}"][:half]
    np.savez(path, **arrays)
    return path


def ask_peer(python: str, found: list[Candidate], data: TransitionDataset, updates: int, seeds: int) -> Entry:
    """d3rlpy's values `[K, seeds]` of the same policies on the same rows."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        columns = {name: column.read(0, len(data)) for name, column in data.columns().data.items()}
        columns["actions"] = data.layout.unpack(torch.from_numpy(data.rows)).actions.numpy()
        columns["terminals"] = columns["terminals"].astype(np.float32)
        columns["timeouts"] = columns["timeouts"].astype(np.float32)
        np.savez(home / "data.npz", **columns)  # type: ignore[arg-type]
        policies = [str(weights_of(one, home / f"{i}.npz")) for i, one in enumerate(found)]
        order = {"data": str(home / "data.npz"), "policies": policies, "updates": updates, "gamma": GAMMA}
        answers = [estimate(python, order | {"seed": seed}) for seed in range(seeds)]
    return {
        "values": np.array([answer["values"] for answer in answers]).T,
        "seconds": sum(answer["seconds"] for answer in answers),
        "version": answers[0]["version"],
    }


def measure(arguments: argparse.Namespace) -> Iterator[tuple[str, Entry]]:
    """Yield one entry for our FQE and one for the peer, as they are finished."""
    env_id, folder = arguments.env, Path(arguments.folder)
    run, places = snapshots(env_id, arguments.device, folder)
    file = folder / f"{env_id}.npz"
    if not file.exists():
        from_run(str(run), str(file), allow_import=False)
    found = candidates(places)
    truths, errors = (np.array(column) for column in zip(*(truth(env_id, one) for one in found)))
    print("truth", truths.round(1).tolist())
    data = TransitionDataset.load(file)
    common = stamp(arguments.device) | {
        "env": env_id,
        "rows": len(data),
        "episodes": len(data.episode_ends),
        "updates": arguments.updates,
        "truth": truths.tolist(),
        "truth_error": errors.tolist(),
    }
    if not arguments.peers_only:
        values, seconds = judge(places, data, arguments)
        own = {"seconds": seconds, "repetitions": f"{arguments.bootstraps} bootstraps"}
        yield f"{env_id}/{arguments.device}/rl_training", common | scores(truths, values) | own
    if arguments.peer:
        answer = ask_peer(arguments.peer, found, data, arguments.updates, arguments.peer_seeds)
        theirs = {
            "seconds": answer["seconds"],
            "repetitions": f"{arguments.peer_seeds} seeds",
            "peer": f"d3rlpy {answer['version']}",
        }
        yield f"{env_id}/{arguments.device}/d3rlpy", common | scores(truths, answer["values"]) | theirs


def judge(places: list[Path], data: TransitionDataset, arguments: argparse.Namespace) -> tuple[Floats, float]:
    """Our values `[K, B]`, and the seconds they took."""
    started = time.perf_counter()
    judged = ope(
        places,
        data,
        bootstraps=arguments.bootstraps,
        updates=arguments.updates,
        gamma=GAMMA,
        device=arguments.device,
    )
    by_name = {one.name: one.values for one in judged.policies}
    return np.array([by_name[str(place)] for place in places]), time.perf_counter() - started


def sections(entries: dict[str, Entry]) -> Sections:
    """The table of the documentation."""
    rows = []
    for entry in sorted(entries.values(), key=lambda one: (one["env"], "peer" in one)):
        truths = np.array(entry["truth"])
        rows.append(
            [
                entry["env"],
                f"{entry['rows']:,}",
                entry.get("peer", "rl-training"),
                f"{entry['updates']:,}, {entry['repetitions']}",
                _told(entry, "spearman", 2),
                _told(entry, "regret", 2),
                _told(entry, "error", 0),
                f"{truths.min():.0f} to {truths.max():.0f}",
                f"{number(entry['seconds'])}, {entry['device']}",
            ]
        )
    header = ("environment", "rows", "FQE of", "updates", "Spearman", "regret@1", "absolute error", "true values",
              "seconds")  # fmt: skip
    words = (
        "FQE ranks eleven snapshots of one SAC run from the replay buffer of that run. The true value of a "
        f"snapshot is its mean return over {EPISODES} episodes with discount {GAMMA}. Each score is a mean over "
        "repetitions, with a 95 % bootstrap interval over the eleven policies. Regret is relative to the range of "
        "true values."
    )
    if any("peer" in entry for entry in entries.values()):
        words += (
            " d3rlpy uses its defaults (batch of 100, learning rate 1e-4, hard target update every 100 updates, no "
            "normalisation or clipping) and fits one policy after the other. The table compares equal numbers of "
            "updates, not converged estimates."
        )
    where = (
        f"{origins(entries.values())} Seconds are the sum over all fits, on a machine with other work: one "
        "population on a GPU, one thread on a CPU."
    )
    return {("results/ope", "ope"): f"# Off-policy evaluation\n\n{words}\n\n{table(header, rows)}\n\n{where}"}


def _told(entry: Entry, name: str, digits: int) -> str:
    low, high = interval(np.array(entry["truth"]), np.array(entry["values"]).mean(1), name)
    return f"{entry['mean'][name]:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=RUNS, default="Pendulum-v1")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--updates", type=int, default=8_000)
    parser.add_argument("--bootstraps", type=int, default=3)
    parser.add_argument("--peer", help="Python interpreter of an environment with d3rlpy")
    parser.add_argument("--peer-seeds", type=int, default=2)
    parser.add_argument("--peers-only", action="store_true", help="run only d3rlpy")
    parser.add_argument("--folder", default="runs/ope", help="folder of the SAC run")
    parser.add_argument("--results", type=Path, help="file to write results to, instead of rendering them")
    arguments = parser.parse_args()
    results = Results("ope", arguments.results)
    for name, entry in measure(arguments):
        print(name, entry["mean"])
        results.add({name: entry})
    results.render(sections)


if __name__ == "__main__":
    main()
