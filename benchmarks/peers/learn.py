"""Train peers with the settings, data and seeds of a study, and evaluate them on the same episodes as its policies.

    python -m benchmarks.peers.learn sb3 benchmarks/studies/pendulum.yaml [--seeds 0 1] [--minutes 60]
    python -m benchmarks.peers.learn d3rlpy STUDY --data DIR --python PYTHON [--algo crr awac iql]
    python -m benchmarks.peers.learn corl STUDY --data DIR --checkout DIR [--algo td3_bc iql]
    python -m benchmarks.peers.learn corl STUDY --data DIR --checkout DIR --algo rebrac --python PYTHON
    python -m benchmarks.peers.learn flashsac STUDY --checkout DIR [--env HalfCheetah-v4]

A peer is trained for each configuration of the study whose algorithm the library implements, with the same
networks, batch size, observations and number of updates. All other settings are the library's defaults, or those
that CORL published for the data set. If CORL has no ReBRAC penalty weights for the data set, those of the
configuration are used. Stable-Baselines3 also gets the other settings of SAC and TD3. FlashSAC's agent has the
settings of its file, with our networks, batch size, buffer and learning start; it is compiled on a GPU unless
`--eager` is given.

`--python` is a Python with d3rlpy or, for ReBRAC, with jax, flax, optax and chex. Results are stored in
`benchmarks/results/peers.json` and shown with those of the study (`python -m benchmarks.evidence render`). Several
commands may run concurrently.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import report
from benchmarks.evidence.judging import SEED
from benchmarks.peers import flashsac, sb3
from benchmarks.peers.checkouts import commit_of
from benchmarks.peers.d3rlpy import D3rlpyLearner, write_rows
from benchmarks.peers.loops import CorlLearner, libraries, published_settings
from benchmarks.report import Entry, Results
from rl_training.data.datasets import TransitionDataset
from rl_training.data.extra_columns import NEXT_ACTIONS, Column
from rl_training.data.loading import DatasetConfig, load_dataset
from rl_training.environments.making import spaces_of
from rl_training.environments.playing import Evaluator
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import resolve
from rl_training.models.mlp import NetworkShape
from rl_training.runs.building import choose_device
from rl_training.runtime.controls import ControlConfig
from rl_training.study.description import Location, read_description
from rl_training.updates.schedules import OptimizationConfig

ALGORITHMS = {
    "sb3": ("sac", "td3"),
    "d3rlpy": ("bc", "cql", "crr", "awac", "iql"),
    "corl": ("td3_bc", "iql", "rebrac"),
    "flashsac": ("flash_sac",),
}
# d3rlpy's algorithms for discrete actions, with the settings of the studies `discrete-…`.
DISCRETE = {
    "bc": {"learning_rate": 1e-3},
    "cql": {"learning_rate": 1e-3, "alpha": 1.0, "gamma": 0.99, "target_update_interval": 200},
}
_OWN_REWARDS = {"reward_scale": 1.0, "reward_shift": 0.0, "reward_range_scaling": False}
_PORTION = 500  # updates between two checks of the time limit


@dataclass(frozen=True)
class Job:
    """One run of a peer. At `deadline` (seconds since the epoch) it is stopped and evaluated as it is."""

    library: str
    study: str
    config: TrainConfig
    episodes: int
    deadline: float | None
    settings: dict[str, Any]
    named: str  # source of these settings
    python: str | None = None
    checkout: Path | None = None

    @property
    def key(self) -> str:
        place = "+".join([self.config.env_id or "", *(path.stem for path in files_of(self.config))])
        return f"{self.study}/{place}/{self.library} {self.config.algo}/{self.config.seed}"

    @property
    def over(self) -> bool:
        return self.deadline is not None and time.time() > self.deadline


def files_of(config: TrainConfig) -> list[Path]:
    """The data files of a configuration."""
    parts = [config.algo_kwargs, *config.algo_kwargs.get("datasets", [])]
    return [Path(part["dataset_path"]) for part in parts if part.get("dataset_path")]


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = report.arguments(__doc__)
    parser.add_argument("library", choices=ALGORITHMS)
    parser.add_argument("study", type=Path)
    parser.add_argument("--algo", nargs="+", help="only these algorithms of the study")
    parser.add_argument("--env", nargs="+", help="only these environments of the study")
    parser.add_argument("--seeds", type=int, nargs="+", help="seeds; default: those of the study")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with the data files of the study")
    parser.add_argument("--device", help="device; default: that of the study")
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--minutes", type=float, help="time limit, after which runs are stopped and evaluated")
    parser.add_argument("--python", default="python", help="a Python with d3rlpy, or with jax for ReBRAC")
    parser.add_argument("--checkout", type=Path, metavar="DIR", help="a checkout of CORL or FlashSAC")
    parser.add_argument("--eager", action="store_true", help="do not compile FlashSAC's agent")
    options = parser.parse_args(given)
    if options.library in ("corl", "flashsac"):
        if options.checkout is None:
            parser.error(f"{options.library} needs --checkout")
        corl = options.library == "corl"  # raises for a wrong folder before anything runs
        libraries(options.checkout if corl else None, None, None, None if corl else options.checkout)
    return options


def peer_settings(options: argparse.Namespace, config: TrainConfig) -> tuple[dict[str, Any], str]:
    """Library-specific settings of the peer, and a description of their source."""
    if options.library == "sb3":
        return {}, "ours"
    if options.library == "flashsac":
        compiled = not options.eager and choose_device(config.device).type == "cuda"
        settings = {"use_compile": compiled, "compile_mode": "reduce-overhead"}
        return settings, f"its file's, {'compiled' if compiled else 'not compiled'}"
    if options.library == "corl":
        names = [path.stem.partition("-") for path in files_of(config)]
        task, quality = names[0][0], "-".join(name for _, _, name in names)
        published = published_settings(options.checkout, config.algo, task, quality)
        if published is not None:
            return published, f"CORL's {quality} settings"
        if config.algo == "rebrac":
            weights, settings = ("actor_bc_coef", "critic_bc_coef"), resolve(config).to_dict()
            return {name: settings[name] for name in weights}, "CORL's defaults, penalty weights of the study"
    elif spaces_of(config).discrete:
        return DISCRETE[config.algo], "the study's"
    return {}, f"{'CORL' if options.library == 'corl' else 'd3rlpy'}'s defaults"


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """A job for each seed of each configuration whose algorithm the library implements."""
    found = read_description(options.study, Location.of(options.data, options.device))
    wanted = [one for one in found.wanted if one.config.algo in (options.algo or ALGORITHMS[options.library])]
    wanted = [one for one in wanted if options.env is None or one.config.env_id in options.env]
    if missing := set(options.algo or ()) - set(ALGORITHMS[options.library]):
        raise SystemExit(f"{options.library} has no {', '.join(sorted(missing))} here")
    deadline = time.time() + 60 * options.minutes if options.minutes else None
    for one in wanted:
        if options.library == "d3rlpy" and spaces_of(one.config).discrete and one.config.algo not in DISCRETE:
            continue
        settings, named = peer_settings(options, one.config)
        for seed in options.seeds or one.seeds:
            config = one.config.replace(seed=seed)
            yield Job(options.library, found.name, config, options.episodes, deadline, settings, named,
                      options.python, options.checkout)  # fmt: skip


class Curve:
    """Evaluates a peer's policy at the intervals of the configuration, and at the end."""

    def __init__(self, job: Job, policy: Any, started: float | None = None) -> None:
        """`started`: start of the measured time; default: now."""
        self._job, self._policy = job, policy
        self._evaluator = Evaluator(job.config, spaces_of(job.config), seed=SEED)
        self._interval = resolve(job.config)[ControlConfig].eval_interval
        self._started = time.perf_counter() if started is None else started
        self.points: list[tuple[int, float, float]] = []

    def add(self, step: int) -> None:
        """Evaluate if `step` is a multiple of the interval."""
        if self._interval and step % self._interval == 0:
            metrics = self._evaluator.run(self._policy, self._job.config.eval_episodes)
            self.points.append((step, metrics["eval_return_mean"], time.perf_counter() - self._started))
            print(f"{self._job.key}: {self.points[-1][1]:.1f} after {step:,} steps", flush=True)

    def end(self, steps: int, updates: int) -> Entry:
        """The entry of the run."""
        seconds = time.perf_counter() - self._started
        final = self._evaluator.run(self._policy, self._job.episodes)
        self._evaluator.close()
        return {"steps": steps, "updates": updates, "seconds": seconds, "curve": self.points, "final": final}


def train_sb3(job: Job) -> Entry:
    """Train an agent of Stable-Baselines3 with the settings of the configuration."""
    import gymnasium as gym
    from stable_baselines3.common.callbacks import BaseCallback

    config = job.config
    agent = sb3.agent_of(config, gym.make(config.env_id or "", **config.env_kwargs))
    curve = Curve(job, sb3.SB3Policy(agent))

    class Evaluate(BaseCallback):
        def _on_step(self) -> bool:
            curve.add(self.num_timesteps)
            return not job.over

    agent.learn(config.total_timesteps, callback=Evaluate())
    return curve.end(agent.num_timesteps, agent._n_updates)


def train_flashsac(job: Job) -> Entry:
    """Train FlashSAC's agent in one environment, as its `train.py` does."""
    import gymnasium as gym

    config, settings, spaces = job.config, resolve(job.config).to_dict(), spaces_of(job.config)
    seed, device = config.seed or 0, choose_device(config.device)
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high" if config.tf32 else "highest")
    env = gym.wrappers.RescaleAction(
        gym.make(config.env_id or "", **config.env_kwargs), np.float32(-1.0), np.float32(1.0)
    )
    assert job.checkout is not None
    agent = flashsac.make_agent(
        job.checkout, device.type, spaces.obs_dim, spaces.action_dim, use_amp=False, **job.settings,
        actor_num_blocks=settings["residual_blocks"], critic_num_blocks=settings["residual_blocks"],
        actor_hidden_dim=settings["hidden_sizes"][0],
        critic_hidden_dim=(settings["critic_hidden_sizes"] or settings["hidden_sizes"])[0],
        sample_batch_size=settings["batch_size"], buffer_max_length=settings["buffer_capacity"],
        buffer_min_length=settings["learning_starts"],
    )  # fmt: skip
    curve, step = Curve(job, flashsac.FlashSACPolicy(agent)), 0
    for step in flashsac.train_agent(agent, env, seed, config.total_timesteps):
        curve.add(step)
        if job.over:
            break
    return curve.end(step, agent._update_step) | {"peer_versions": {"checkout": commit_of(job.checkout)}}


def data_of(config: TrainConfig, extras: tuple[Column, ...] = (), **changes: Any) -> TransitionDataset:
    chosen = resolve(config)[DatasetConfig].model_copy(update=changes)
    return load_dataset(chosen, spaces=spaces_of(config), extras=extras)


def columns_of(dataset: TransitionDataset) -> Any:
    return dataset.layout.unpack(torch.from_numpy(np.asarray(dataset.rows)))


def train_d3rlpy(job: Job) -> Entry:
    """Train on the same rows, with actions scaled as ours."""
    settings, spaces = resolve(job.config), spaces_of(job.config)
    dataset = data_of(job.config)
    columns, ends = columns_of(dataset), dataset.episode_ends
    timeouts = np.zeros(len(dataset), dtype=np.float32)
    timeouts[ends] = 1.0 - columns.dones.numpy()[ends]
    started = time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        D3rlpyLearner(
            job.python or "python",
            f"{'Discrete' * spaces.discrete}{job.config.algo.upper()}",
            write_rows(Path(folder) / "data.npz", columns, timeouts),
            hidden=settings[NetworkShape].hidden_sizes,
            batch=settings[OptimizationConfig].batch_size,
            seed=job.config.seed or 0,
            normalize=settings[DatasetConfig].normalize_observations,
            settings=job.settings,
            discrete=spaces.num_actions,
        ) as peer,
    ):
        about = {"peer_versions": peer.versions, "fingerprint": dataset.fingerprint()}
        return learned(job, peer, peer.run, started) | about


def run_settings(config: TrainConfig) -> dict[str, Any]:
    """Seed and number of updates with the names of CORL's file; for ReBRAC also the networks, which are fixed in
    other files."""
    seed, total = config.seed or 0, config.total_timesteps
    if config.algo != "rebrac":
        return {"seed": seed, "max_timesteps": total}
    sizes, epoch = resolve(config)[NetworkShape].hidden_sizes, math.gcd(total, _PORTION)
    layers = {"hidden_dim": sizes[0], "actor_n_hiddens": len(sizes), "critic_n_hiddens": len(sizes)}
    epochs = {"num_updates_on_epoch": epoch, "num_epochs": total // epoch, "eval_every": 1}
    return layers | epochs | {"train_seed": seed}


def train_corl(job: Job) -> Entry:
    """Train on the same rows with the rewards of the file, which CORL scales by its own settings."""
    batch = resolve(job.config)[OptimizationConfig].batch_size
    dataset = data_of(job.config, (NEXT_ACTIONS,) if job.config.algo == "rebrac" else (), **_OWN_REWARDS)
    assert job.checkout is not None
    started = time.perf_counter()
    with CorlLearner(
        job.checkout,
        job.config.algo,
        columns_of(dataset),
        choose_device(job.config.device),
        batch=batch,
        settings=job.settings | run_settings(job.config),
        jax_python=job.python,
    ) as peer:
        found = learned(job, peer, peer.run, started) | peer.about()
    return found | {"fingerprint": data_of(job.config).fingerprint()}


def learned(job: Job, peer: Any, update: Callable[[int], Any], started: float) -> Entry:
    """Make all updates, then evaluate the peer's policy; `started` is the start time of its process."""
    curve, done, total = Curve(job, peer, started), 0, job.config.total_timesteps
    while done < total and not job.over:
        count = min(_PORTION, total - done)
        update(count)
        done += count
    return curve.end(done, done)


_TRAIN = {"sb3": train_sb3, "d3rlpy": train_d3rlpy, "corl": train_corl, "flashsac": train_flashsac}


def perform(job: Job) -> Entry:
    """Run one job and return its entry, which records the machine and settings."""
    config = job.config
    about = {"library": job.library, "study": job.study, "algo": config.algo, "env": config.env_id,
             "seed": config.seed, "total_timesteps": config.total_timesteps, "episodes": job.episodes,
             "settings": job.named}  # fmt: skip
    return report.stamp(str(choose_device(config.device))) | about | _TRAIN[job.library](job)


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(given)
    results = Results("peers", options.json)
    for job in jobs(options):
        if job.over:
            print(f"{job.key} left out: no time was left for it", flush=True)
            continue
        entry = perform(job)
        results.add({job.key: entry})
        print(f"{job.key}: {entry['final']['eval_return_mean']:.1f} in {entry['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
