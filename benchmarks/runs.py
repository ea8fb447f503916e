"""Training runs as jobs: one seed of one algorithm of one library; several side by side, a process each."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from benchmarks import report
from benchmarks.report import Entry
from rl_training.data.datasets import TransitionDataset
from rl_training.data.formats import read_columns
from rl_training.data.loading import DatasetConfig, load_dataset
from rl_training.environments.making import spaces_of
from rl_training.environments.playing import Evaluator
from rl_training.experiment.config import TrainConfig, load_config, packaged_configs
from rl_training.experiment.registry import get_algorithm_spec, resolve
from rl_training.models.mlp import NetworkShape
from rl_training.runs.building import choose_device
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session
from rl_training.runs.spec import RunOptions
from rl_training.runtime.controls import ControlConfig
from rl_training.runtime.workflows import evaluate_checkpoint
from rl_training.spaces import SpaceSpec
from rl_training.updates.schedules import OptimizationConfig


@dataclass(frozen=True)
class RunSpec:
    """One run and how it is judged: `episodes` of evaluation on the seeds every run is evaluated on, of the last
    checkpoint or of the best one. At `deadline` (seconds since the epoch) it stops and is judged as it stands."""

    key: str
    config: dict[str, Any]
    library: str = "rl_training"
    episodes: int = 30
    best: bool = False
    deadline: float | None = None
    labels: dict[str, Any] = field(default_factory=dict)
    peer_python: str | None = None
    peer_settings: dict[str, Any] = field(default_factory=dict)
    peer_checkout: Path | None = None


class Named(Protocol):
    """What can be performed: its key names it in the results."""

    @property
    def key(self) -> str: ...


Work = TypeVar("Work", bound=Named)


class Watch(Callback):
    """Keeps the learning curve and the time; stops the run at the deadline."""

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline
        self.started = time.perf_counter()
        self.curve: list[tuple[int, float, float]] = []  # ticks of the clock, mean return, seconds since the start

    def on_evaluation(self, session: Session, metrics: Mapping[str, float]) -> None:
        seconds = time.perf_counter() - self.started
        self.curve.append((session.clock.global_step, metrics["eval_return_mean"], seconds))

    def on_step(self, session: Session) -> None:
        if self.deadline is not None and time.time() > self.deadline:
            session.stop("the time given to this benchmark was up")


def train_ours(job: RunSpec) -> Entry:
    """Through the registry, as the command line does."""
    config = TrainConfig(**job.config)
    with tempfile.TemporaryDirectory() as folder:
        config = config.replace(output_dir=folder)
        watch = Watch(job.deadline)
        result = get_algorithm_spec(config.algo).train(config, callbacks=[watch], options=RunOptions(quiet=True))
        seconds = time.perf_counter() - watch.started
        judged = result.run_dir / "best" if job.best else result.checkpoint_path
        final = evaluate_checkpoint(judged, job.episodes)
    return {
        "steps": int(result.metrics["global_step"]),
        "updates": int(result.metrics["update_count"]),
        "seconds": seconds,
        "curve": watch.curve,
        "final": final,
    }


def sb3_agent(config: TrainConfig, env: Any, **options: Any) -> Any:
    """A Stable-Baselines3 SAC with the settings of one of our configs."""
    import stable_baselines3 as sb3

    settings = resolve(config).to_dict()
    return sb3.SAC(
        "MlpPolicy",
        env,
        learning_rate=settings["learning_rate"],
        buffer_size=settings["buffer_capacity"],
        learning_starts=settings["learning_starts"],
        batch_size=settings["batch_size"],
        tau=settings["tau"],
        gamma=settings["gamma"],
        train_freq=settings["train_frequency"],
        gradient_steps=settings["gradient_updates_per_step"],
        ent_coef=settings["alpha"],
        target_entropy="auto" if settings["target_entropy"] is None else settings["target_entropy"],
        policy_kwargs={"net_arch": list(settings["hidden_sizes"])},
        device=str(choose_device(config.device)),
        seed=config.seed,
        **options,
    )


def train_sb3(job: RunSpec) -> Entry:
    """Stable-Baselines3 SAC with the same settings, judged by our evaluator on the same episodes."""
    import gymnasium as gym
    from stable_baselines3.common.callbacks import BaseCallback

    from benchmarks.peers import SB3Policy

    config = TrainConfig(**job.config)
    agent = sb3_agent(config, gym.make(config.env_id or "", **config.env_kwargs))
    evaluator = Evaluator(config, spaces_of(config))
    interval = resolve(config)[ControlConfig].eval_interval
    policy: Any = SB3Policy(agent)
    curve: list[tuple[int, float, float]] = []
    started = time.perf_counter()

    class Curve(BaseCallback):
        def _on_step(self) -> bool:
            if interval and self.num_timesteps % interval == 0:
                metrics = evaluator.run(policy, config.eval_episodes)
                curve.append((self.num_timesteps, metrics["eval_return_mean"], time.perf_counter() - started))
            return job.deadline is None or time.time() < job.deadline

    agent.learn(config.total_timesteps, callback=Curve())
    seconds = time.perf_counter() - started
    final = evaluator.run(policy, job.episodes)
    evaluator.close()
    steps, updates = agent.num_timesteps, agent._n_updates
    return {"steps": steps, "updates": updates, "seconds": seconds, "curve": curve, "final": final}


def train_d3rlpy(job: RunSpec) -> Entry:
    """d3rlpy on the same rows, actions scaled as ours, judged by our evaluator on the same episodes."""
    from benchmarks.peers import D3rlpyProcess

    config = TrainConfig(**job.config)
    settings, spaces = resolve(config), spaces_of(config)
    dataset = load_dataset(settings[DatasetConfig], spaces=spaces)
    columns = dataset.layout.unpack(torch.from_numpy(np.asarray(dataset.rows)))
    timeouts = np.zeros(len(dataset), dtype=np.float32)
    timeouts[dataset.episode_ends] = 1.0 - columns.dones.numpy()[dataset.episode_ends]
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        np.savez(
            data,
            observations=columns.obs.numpy(),
            actions=columns.actions.numpy(),
            rewards=columns.rewards.numpy(),
            terminals=columns.dones.numpy(),
            timeouts=timeouts,
        )
        started = time.perf_counter()
        with D3rlpyProcess(
            job.peer_python or "python",
            f"{'Discrete' * spaces.discrete}{config.algo.upper()}",
            data,
            hidden=settings[NetworkShape].hidden_sizes,
            batch=settings[OptimizationConfig].batch_size,
            seed=config.seed or 0,
            normalize=settings[DatasetConfig].normalize_observations,
            settings=job.peer_settings,
            discrete=spaces.num_actions,
        ) as peer:
            learned = _learn(job, config, peer, lambda count: peer.update(count, fresh=True), started)
            return learned | {"peer_versions": peer.versions}


def _learn(job: RunSpec, config: TrainConfig, peer: Any, update: Callable[[int], Any], started: float) -> Entry:
    """A peer in a process of its own makes its updates and is judged; `started` is when it was."""
    done = 0
    while done < config.total_timesteps and (job.deadline is None or time.time() < job.deadline):
        count = min(500, config.total_timesteps - done)
        update(count)
        done += count
    seconds = time.perf_counter() - started
    evaluator = Evaluator(config, spaces_of(config))
    final = evaluator.run(peer, job.episodes)
    evaluator.close()
    return {"steps": done, "updates": done, "seconds": seconds, "curve": [], "final": final}


def train_corl(job: RunSpec) -> Entry:
    """CORL on the same rows, judged by our evaluator on the same episodes.

    Rewards are as in the file: CORL scales them, and normalises observations, where its own settings say so.
    """
    from benchmarks.loops import CorlLearner

    config = TrainConfig(**job.config)
    settings, spaces = resolve(config), spaces_of(config)
    own_rewards = {"reward_scale": 1.0, "reward_shift": 0.0, "reward_range_scaling": False}
    dataset = load_dataset(settings[DatasetConfig].model_copy(update=own_rewards), spaces=spaces)
    assert job.peer_checkout is not None
    started = time.perf_counter()
    with CorlLearner(
        job.peer_checkout,
        config.algo,
        dataset.layout.unpack(torch.from_numpy(np.asarray(dataset.rows))),
        choose_device(config.device),
        batch=settings[OptimizationConfig].batch_size,
        settings={**job.peer_settings, "seed": config.seed or 0, "max_timesteps": config.total_timesteps},
    ) as peer:
        return _learn(job, config, peer, peer.run, started) | peer.about()


_TRAIN = {"rl_training": train_ours, "sb3": train_sb3, "d3rlpy": train_d3rlpy, "corl": train_corl}


def perform(job: RunSpec) -> Entry:
    """Run one job in this process; its entry says where and how."""
    if job.deadline is not None and time.time() > job.deadline:
        raise TimeoutError("no time was left for it")
    device = str(choose_device(job.config["device"]))
    found = _TRAIN[job.library](job)
    config = job.config
    about = {
        "library": job.library,
        "algo": config["algo"],
        "env": config["env_id"],
        "seed": config["seed"],
        "total_timesteps": config["total_timesteps"],
        "episodes": job.episodes,
        "judged": "best checkpoint" if job.best else "last checkpoint",
        "acceleration": config["acceleration"],
    }
    return report.stamp(device) | about | job.labels | found


def perform_all(
    jobs: Sequence[Work], workers: int, threads: int | None, perform: Callable[[Work], Entry] = perform
) -> Iterator[tuple[Work, Entry]]:
    """Jobs as they end, `workers` at a time with `threads` CPU threads each; one that fails is reported."""
    if threads is None and workers > 1:
        threads = 1
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # read by the processes started below
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), max_tasks_per_child=1)
    with pool:
        pending = {pool.submit(perform, job): job for job in jobs}
        for future in as_completed(pending):
            job = pending[future]
            try:
                entry = future.result()
            except TimeoutError as error:
                print(f"{job.key} left out: {error}", flush=True)
                continue
            except Exception:
                print(f"{job.key} FAILED\n{traceback.format_exc()}", flush=True)
                continue
            final = entry["final"]["eval_return_mean"]
            print(f"{job.key}: {final:.1f} after {entry['steps']:,} in {entry['seconds']:.0f} s", flush=True)
            yield job, entry


def configure(source: str, algo: str, overrides: Sequence[str], **fields: Any) -> TrainConfig:
    """A config by name or path with `key=value` overrides and `fields` replaced."""
    if not (Path(source).is_file() or source in packaged_configs()):
        raise SystemExit(f"{algo}: no config {source!r}; give one with --config")
    config = load_config(source, overrides).config
    extra = fields.pop("algo_kwargs", {})
    return config.replace(**fields, algo_kwargs={**config.algo_kwargs, **extra})


def dataset_settings(files: list[Path]) -> dict[str, Any]:
    """The keys of `algo_kwargs` for these files; every other choice of data is taken back."""
    nothing = {"dataset_kind": "random", "dataset_path": None, "dataset_id": None, "dataset_download": False}
    if len(files) == 1:
        return nothing | {"dataset_kind": "npz", "dataset_path": str(files[0]), "datasets": []}
    choices = []
    for path in files:
        with np.load(path) as data:
            rows = len(data["rewards"])
        choices.append({"dataset_kind": "npz", "dataset_path": str(path), "weight": float(rows)})
    return nothing | {"datasets": choices}


def data_returns(files: list[Path], spaces: SpaceSpec) -> list[float]:
    """The return of every episode in the files."""
    found: list[float] = []
    for path in files:
        with read_columns(str(path), "npz") as columns:
            found += TransitionDataset.from_columns(columns, spaces=spaces).episode_returns().tolist()
    return found


def algorithm_changes(overrides: Iterable[str]) -> list[str]:
    """Overrides that make another algorithm of it; where and how fast it runs is no such thing."""
    prefix = "algo_kwargs."
    return [override.removeprefix(prefix) for override in overrides if override.startswith(prefix)]
