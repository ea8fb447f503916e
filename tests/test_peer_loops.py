"""Peers from checkouts in their own loops, with stand-ins for the checkouts and for jax."""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from benchmarks.evidence import judging
from benchmarks.peers import flashsac as flashsac_peer
from benchmarks.peers import leanrl, learn, loops, sb3
from benchmarks.peers.checkouts import commit_of
from benchmarks.peers.protocol import Evaluated
from benchmarks.runs import configure
from benchmarks.speed import cases, summary, training, updates
from benchmarks.speed.timing import Rates, alternate, ratios_of
from rl_training.data.transitions import TransitionBatch
from rl_training.environments.making import spaces_of
from rl_training.environments.playing import Evaluator
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import resolve
from rl_training.experiment.strict_yaml import dump_yaml
from rl_training.runtime.online import OnlineConfig

pytestmark = pytest.mark.pages

CPU = torch.device("cpu")

# The interface of one of CORL's files; every update is a line in a file.
CORL_FILE = """
from dataclasses import dataclass
import d4rl
import gym
import pyrallis
import wandb
from tqdm import trange

@dataclass
class TrainConfig:
    device: str = "cuda"
    batch_size: int = 1
    buffer_size: int = 10
    num_train_ops: int = 1_000_000
    eval_frequency: int = 2
    hidden_dim: int = 1

class ReplayBuffer:
    def __init__(self, states, actions, size, device):
        self.said = [states, actions, size, device]
    def sample(self, batch_size):
        return [*self.said, batch_size]

def wrap_env(env, state_mean=0.0):
    return gym.wrappers.TransformObservation(env, state_mean)

@pyrallis.wrap()
def train(config: TrainConfig):
    env = gym.make("none")
    env.seed(0)
    env.action_space.seed(0)
    rows = d4rl.qlearning_dataset(env)
    env = wrap_env(env, state_mean=1.0)
    assert env.action_space.high[0] == 1.0
    shapes = [env.observation_space.shape[0], env.action_space.shape[0]]
    buffer = ReplayBuffer(*shapes, len(rows["rewards"]), config.device)
    wandb.init(project="p")
    wandb.run.save()
    print("what it prints is no answer")
    for t in trange(config.num_train_ops, ncols=80):
        batch = buffer.sample(config.batch_size)
        with open(LOG, "a") as file:
            print([*batch, config.hidden_dim], file=file)
        wandb.log({"loss": 0.0}, step=t)
        assert (t + 1) % config.eval_frequency, "evaluates"
"""

# The interface of CORL's TD3+BC; its actor adds a tenth of the updates it had to the first state.
CORL_LEARNER = """
from dataclasses import asdict, dataclass
import d4rl
import gym
import numpy as np
import pyrallis
import wandb

@dataclass
class TrainConfig:
    device: str = "cuda"
    env: str = "none"
    seed: int = 0
    batch_size: int = 1
    buffer_size: int = 10
    max_timesteps: int = 1_000_000
    eval_freq: int = 2
    alpha: float = 2.5

class ReplayBuffer:
    def sample(self, batch_size):
        return batch_size

def wrap_env(env, state_mean=0.0, state_std=1.0):
    return gym.wrappers.TransformObservation(env, state_mean)

class Actor:
    updates, training = 0, True
    def eval(self):
        self.training = False
    def train(self):
        self.training = True
    def act(self, state, device):
        assert not self.training
        assert (state.shape, device) == ((3,), "cpu")
        return np.clip(state[:1] + self.updates / 10, -1.0, 1.0)

class TD3_BC:
    def __init__(self, actor, device):
        self.actor, self.device = actor, device
    def train(self, batch):
        assert self.actor.training
        self.actor.updates += 1

@pyrallis.wrap()
def train(config: TrainConfig):
    env = gym.make(config.env)
    rows = d4rl.qlearning_dataset(env)
    env = wrap_env(env, state_mean=rows["observations"].mean(0), state_std=2.0)
    buffer = ReplayBuffer()
    trainer = TD3_BC(actor=Actor(), device=config.device)
    wandb.init(config=asdict(config))
    for t in range(config.max_timesteps):
        trainer.train(buffer.sample(config.batch_size))
        with open(LOG, "a") as file:
            print(asdict(config), [float(reward) for reward in rows["rewards"][:2]], file=file)
        assert (t + 1) % config.eval_freq, "evaluates"
"""

# The interface of CORL's ReBRAC; its actor adds a tenth of the updates it had to the first state.
CORL_REBRAC = """
from dataclasses import asdict, dataclass
import d4rl
import gym
import jax
import numpy as np
import pyrallis
import wandb
from tqdm.auto import trange

@dataclass
class Config:
    actor_bc_coef: float = 1.0
    critic_bc_coef: float = 1.0
    hidden_dim: int = 1
    actor_n_hiddens: int = 1
    critic_n_hiddens: int = 1
    batch_size: int = 1
    num_epochs: int = 1000
    num_updates_on_epoch: int = 1000
    eval_every: int = 5
    train_seed: int = 0

def qlearning_dataset(env):
    return env.get_dataset()

def wrap_env(env, state_mean=0.0, state_std=1.0):
    return gym.wrappers.TransformObservation(env, state_mean)

def evaluate(env, params, action_fn, num_episodes, seed):
    raise AssertionError("evaluates")

@pyrallis.wrap()
def main(config: Config):
    wandb.init(config=asdict(config))
    wandb.mark_preempting()
    env = gym.make("none")
    rows = qlearning_dataset(env)
    env = wrap_env(env, rows["observations"].mean(0), 2.0)
    updates, follows = 0, rows["next_actions"][:18] == rows["actions"][1:19]
    for epoch in trange(config.num_epochs, desc="Epochs"):
        for _ in range(config.num_updates_on_epoch):
            updates = jax.tree_map(lambda count: count + 1, updates)
            with open(LOG, "a") as file:
                print(asdict(config), len(rows["rewards"]), follows.all(), file=file)
        wandb.log({"loss": 0.0})
        if epoch % config.eval_every == 0 or epoch == config.num_epochs - 1:
            returns = evaluate(env, updates, lambda params, obs: np.tanh(obs[:, :1] + params / 10), 10, seed=42)
            assert env.get_normalized_score(returns) * 100.0 == 0.0
"""

# The interface of one of Unifloral's scripts; every scan is a line in a file.
UNIFLORAL_FILE = """
from dataclasses import dataclass
import distrax
import d4rl
import gym
import tyro
import wandb

@dataclass
class Args:
    dataset: str = "none"
    num_updates: int = 4
    eval_interval: int = 2
    eval_workers: int = 8
    batch_size: int = 1
    num_critic_updates_per_step: int = 2

if __name__ == "__main__":
    args = tyro.cli(Args)
    env = gym.vector.make(args.dataset, num_envs=args.eval_workers)
    rows = d4rl.qlearning_dataset(gym.make(args.dataset))
    assert len(rows["rewards"]) == len(rows["next_observations"])
    for _ in range(args.num_updates // args.eval_interval):
        with open(LOG, "a") as file:
            print(args.eval_interval, args.batch_size, *env.single_action_space.shape, file=file)
        assert len(env.reset()) == args.eval_workers
        assert env.env_fns[0]().spec.max_episode_steps == 0
        assert d4rl.get_normalized_score(args.dataset, 1.0) == 1.0
"""
JAX = """
class config:
    update = staticmethod(lambda name, value: None)
class tree_util:
    tree_map = staticmethod(lambda function, leaf: function(leaf))
live_arrays = list
block_until_ready = lambda arrays: None
"""

# The interface of FlashSAC's agent; every update is a line in a file.
FLASHSAC_FILE = """
import jax.numpy as jnp
import torch
from omegaconf import OmegaConf

class FlashSACConfig:
    def __init__(self, **settings):
        vars(self).update(settings)

class Buffer:
    def __init__(self, rows, observations, actions):
        self._observations, self._next_observations = torch.empty(2, rows, observations)
        self._actions = torch.empty(rows, actions)
        self._rewards, self._terminateds, self._truncateds = torch.empty(3, rows)
        self._num_in_buffer = 0

class FlashSACAgent:
    def __init__(self, observation_space, action_space, env_info, cfg):
        sizes = [space.shape[-1] for space in (observation_space, action_space)]
        self.cfg, self._replay_buffer = cfg, Buffer(cfg.buffer_max_length, *sizes)
    def update(self):
        assert self._replay_buffer._num_in_buffer == self.cfg.buffer_max_length
        assert self._replay_buffer._terminateds.sum() > 0
        print("what it prints is no answer")
        with open(LOG, "a") as file:
            print(vars(self.cfg), file=file)
"""
FLASHSAC_SETTINGS = """
agent_type: flashSAC
seed: ${seed}
buffer_max_length: 1_000_000
actor_update_period: 2
learning_rate_init: 3e-4
use_compile: true
use_amp: true
"""

# The interface of FQL's agent and data set; every update is a line in a file.
FQL_AGENT = """
import distrax
import ml_collections
from utils.datasets import Dataset

class FQLAgent:
    def __init__(self, config, updates):
        self.config, self.updates = config, updates
    @classmethod
    def create(cls, seed, ex_observations, ex_actions, config):
        assert (ex_observations.shape, ex_actions.shape) == ((1, 17), (1, 6))
        return cls(config, 0)
    def update(self, batch):
        assert len(batch["rewards"]) == self.config["batch_size"]
        assert (batch["masks"] == 1.0 - batch["terminals"]).all()
        with open(LOG, "a") as file:
            print(self.updates, self.config, file=file)
        return FQLAgent(self.config, self.updates + 1), {}

def get_config():
    none = ml_collections.config_dict.placeholder(str)
    return ml_collections.ConfigDict(dict(lr=3e-4, batch_size=256, actor_hidden_dims=(1,), encoder=none))
"""
FQL_DATA = """
class Dataset(dict):
    @classmethod
    def create(cls, **fields):
        return cls(fields)
    def sample(self, count):
        return {name: values[:count] for name, values in self.items()}
"""

# The interface of LeanRL's script; it prints its arguments, and a speed every second step.
LEANRL_FILE = """
from dataclasses import dataclass
import tyro
import wandb
from tensordict.nn import CudaGraphModule
from torchrl.data import ReplayBuffer

@dataclass
class Args:
    env_id: str = "none"
    seed: int = 1
    total_timesteps: int = 1
    learning_rate: float = 0.0
    buffer_size: int = 1
    gamma: float = 0.0
    tau: float = 0.0
    batch_size: int = 1
    policy_noise: float = 0.0
    exploration_noise: float = 0.0
    learning_starts: int = 0
    policy_frequency: int = 1
    noise_clip: float = 0.0
    measure_burnin: int = 3
    cuda: bool = True
    cudagraphs: bool = False
    compile: bool = False

if __name__ == "__main__":
    args = tyro.cli(Args)
    wandb.init(config=vars(args))
    with open(LOG, "a") as file:
        print(args, file=file)
    print("what it prints is no answer")
    for step in range(args.measure_burnin, args.total_timesteps):
        if step % 2 == 0:
            wandb.log({"speed": 10.0 * step, "loss": 0.0}, step=step)
"""


def case_of(algo: str) -> cases.Case:
    return next(case for case in cases.CASES if case.algo == algo)


def checkout(folder: Path, place: str, text: str) -> Path:
    """A checkout with one file that writes a log; its path."""
    path = folder / "algorithms" / place
    path.parent.mkdir(parents=True)
    path.write_text(text.replace("LOG", repr(str(folder / "log"))), encoding="utf-8")
    return folder


def lines(folder: Path) -> list[str]:
    return (folder / "log").read_text(encoding="utf-8").splitlines()


def test_loop_of_corl_makes_the_requested_updates(tmp_path: Path) -> None:
    given = loops.libraries(checkout(tmp_path, "offline/awac.py", CORL_FILE), None, None)
    found, left_out = loops.connect(given, case_of("awac"), CPU, batch=32, tf32=False)
    assert left_out == []
    with found["CORL"] as peer:
        assert not (tmp_path / "log").exists()  # held up before its first update
        for count, total in ((3, 3), (4, 7)):
            peer.run(count)
            assert len(lines(tmp_path)) == total
    assert len(lines(tmp_path)) == 7  # and it has ended
    expected = [cases.OBS_DIM, cases.ACTION_DIM, cases.ROWS, "cpu", 32, 256]
    assert lines(tmp_path)[0] == str(expected)
    entry = peer.entry(Rates([4.0, 6.0, 9.0]), Rates([2.0, 2.0, 3.0]))
    assert entry["peer"] == "CORL:AWAC"
    assert (entry["peer_rate"], entry["ratio"], entry["ratio_spread"]) == (2.0, 3.0, [2.0, 3.0])
    assert entry["peer_versions"] == {"checkout": "unknown", "torch": torch.__version__}


def learner(folder: Path, updates: int, algo: str = "td3_bc") -> loops.CorlLearner:
    """CORL's double on four rows whose observations are 1, 2 and 3."""
    columns = TransitionBatch(
        obs=torch.tensor([[1.0, 2.0, 3.0]] * 4),
        actions=torch.zeros(4, 1),
        rewards=torch.zeros(4),
        next_obs=torch.zeros(4, 3),
        dones=torch.zeros(4),
    )
    return loops.CorlLearner(folder, algo, columns, CPU, batch=8, settings={"max_timesteps": updates})


def test_actor_of_corl_acts_as_it_is_between_updates(tmp_path: Path) -> None:
    states = torch.tensor([[1.0, 2.0, 3.0], [1.5, 2.0, 3.0]])  # minus the mean; the std is 2
    with learner(checkout(tmp_path, "offline/td3_bc.py", CORL_LEARNER), updates=6) as peer:
        torch.testing.assert_close(peer.mode(states), torch.tensor([[0.0], [0.25]]))
        peer.run(2)
        torch.testing.assert_close(peer.mode(states), torch.tensor([[0.2], [0.45]]))
        torch.testing.assert_close(peer.mode(states[1:]), torch.tensor([[0.45]]))
        assert len(lines(tmp_path)) == 2  # acting makes no update
        peer.run(4)  # all that its loop makes: it has ended, and acts still
        torch.testing.assert_close(peer.mode(states), torch.tensor([[0.6], [0.85]]))
        assert len(lines(tmp_path)) == 6
        with pytest.raises(RuntimeError, match="ended with 0"):
            peer.run(1)


def test_file_of_corl_whose_actor_is_not_known_does_not_act(tmp_path: Path) -> None:
    given = loops.libraries(checkout(tmp_path, "offline/awac.py", CORL_FILE), None, None)
    found, _ = loops.connect(given, case_of("awac"), CPU, batch=8, tf32=False)
    with found["CORL"] as peer, pytest.raises(RuntimeError, match="only the actors of td3_bc, iql act here"):
        peer.ask({"act": [[0.0] * cases.OBS_DIM]})


def pendulum_file(folder: Path) -> Path:
    """Rows of Pendulum-v1 as `pendulum-replay.npz`; the folder."""
    draw, count = np.random.default_rng(0), 40
    states = draw.uniform(-1.0, 1.0, (2, 21, 3)).astype(np.float32)  # two episodes
    last = np.arange(count) % 20 == 19
    np.savez(
        folder / "pendulum-replay.npz", observations=states[:, :-1].reshape(-1, 3),
        next_observations=states[:, 1:].reshape(-1, 3),
        actions=draw.uniform(-2.0, 2.0, (count, 1)), rewards=-1.0 - np.arange(count),
        terminals=np.zeros(count), timeouts=last,
    )  # fmt: skip
    return folder


def offline_jobs(
    library: str,
    folder: Path,
    *more: str,
    seeds: list[int],
    algos: tuple[str, ...] = ("bc", "crr", "iql", "td3_bc"),
    **fields: Any,
) -> list[learn.Job]:
    """Jobs of a peer for a study of several offline algorithms on `pendulum-replay.npz`."""
    data = {"dataset_kind": "npz", "dataset_path": "pendulum-replay.npz", "total_timesteps": 7, "device": "cpu"}
    tasks = [{"config": f"{algo}/pendulum-replay"} for algo in algos]
    study = folder / "some.yaml"
    study.write_text(dump_yaml({"set": data | fields, "seeds": seeds, "tasks": tasks}), encoding="utf-8")
    words = [library, str(study), "--data", str(folder), "--checkout", str(folder), "--episodes", "2", *more]
    return list(learn.jobs(learn.arguments(words)))


def publish(folder: Path, algo: str, task: str, file: str, text: str) -> None:
    path = folder / "configs" / "offline" / algo / task / file
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")


def test_corl_learns_from_the_rows_and_is_evaluated_on_the_episodes_of_a_study(tmp_path: Path) -> None:
    checkout(pendulum_file(tmp_path), "offline/td3_bc.py", CORL_LEARNER)
    publish(tmp_path, "td3_bc", "pendulum", "replay_v2.yaml", "alpha: 4e-1\nenv: p-v2\nseed: 9\nmax_timesteps: 9\n")
    (job,) = offline_jobs("corl", tmp_path, "--algo", "td3_bc", seeds=[5], reward_scale=3.0)
    assert job.key == "some/Pendulum-v1+pendulum-replay/corl td3_bc/5"
    entry = learn.perform(job)
    assert len(lines(tmp_path)) == entry["updates"] == 7
    told = {
        "device": "cpu", "env": "p-v2", "seed": 5, "batch_size": 256, "buffer_size": 40, "max_timesteps": 7,
        "eval_freq": 10**9, "alpha": 0.4,
    }  # fmt: skip
    assert lines(tmp_path)[0] == f"{told} [-1.0, -2.0]"  # rewards of the file
    assert (entry["library"], entry["settings"]) == ("corl", "CORL's replay settings")
    assert entry["fingerprint"] == learn.data_of(job.config).fingerprint()
    assert (entry["peer"], entry["peer_versions"]["checkout"]) == ("CORL:TD3+BC", "unknown")
    with np.load(tmp_path / "pendulum-replay.npz") as data:
        mean = torch.from_numpy(data["observations"].mean(0))
    # What the double of the actor does after seven updates.
    expected = evaluated(job, lambda obs: ((obs - mean) / 2.0)[:, :1].add(0.7).clamp(-1.0, 1.0))
    assert entry["final"] == pytest.approx(expected, rel=1e-4)


def evaluated(job: learn.Job, act: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, float]:
    """Two episodes of a policy, evaluated as those of a study are."""

    class Double(Evaluated):
        def mode(self, obs: torch.Tensor) -> torch.Tensor:
            return act(obs)

    evaluator = Evaluator(job.config, spaces_of(job.config), seed=judging.SEED)
    policy: Any = Double()
    found = evaluator.run(policy, 2)
    evaluator.close()
    return found


def test_rebrac_of_corl_learns_from_rows_with_next_actions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "jax.py").write_text(JAX, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    checkout(pendulum_file(tmp_path), "offline/rebrac.py", CORL_REBRAC)
    words = ("--algo", "rebrac", "--python", sys.executable)
    (job,) = offline_jobs("corl", tmp_path, *words, seeds=[5], algos=("rebrac",))
    entry = learn.perform(job)
    assert len(lines(tmp_path)) == entry["updates"] == 7
    told = {
        "actor_bc_coef": 0.01, "critic_bc_coef": 0.01, "hidden_dim": 256, "actor_n_hiddens": 3,
        "critic_n_hiddens": 3, "batch_size": 256, "num_epochs": 7, "num_updates_on_epoch": 1, "eval_every": 1,
        "train_seed": 5,
    }  # fmt: skip
    assert lines(tmp_path)[0] == f"{told} 38 True"  # of 40 rows, the last of both cut episodes have no next action
    assert entry["settings"] == "CORL's defaults, penalty weights of the study"
    assert entry["fingerprint"] == learn.data_of(job.config).fingerprint()
    with np.load(tmp_path / "pendulum-replay.npz") as data:
        kept = data["observations"][~data["timeouts"]]
    expected = evaluated(job, lambda obs: ((obs - torch.from_numpy(kept.mean(0))) / 2.0)[:, :1].add(0.7).tanh())
    assert entry["final"] == pytest.approx(expected, rel=1e-4)


def test_libraries_run_only_algorithms_they_have(tmp_path: Path) -> None:
    (pendulum_file(tmp_path) / "algorithms").mkdir()
    jobs = [
        job
        for library in ("corl", "d3rlpy")
        for job in offline_jobs(library, tmp_path, "--seeds", "0", seeds=[1, 2])
    ]
    said = {job.key.split("/")[2]: job.named for job in jobs}
    assert said == {
        "corl iql": "CORL's defaults",  # the checkout has nothing for this file
        "corl td3_bc": "CORL's defaults",
        "d3rlpy bc": "d3rlpy's defaults",
        "d3rlpy crr": "d3rlpy's defaults",
        "d3rlpy iql": "d3rlpy's defaults",
    }
    assert all(job.settings == {} and job.config.seed == 0 for job in jobs)
    with pytest.raises(SystemExit, match="corl has no crr here"):
        offline_jobs("corl", tmp_path, "--algo", "crr", seeds=[0])
    with pytest.raises(SystemExit, match="nowhere"):
        offline_jobs("corl", tmp_path, "--checkout", str(tmp_path / "nowhere"), seeds=[0])


def test_settings_of_corl_for_a_mixture_are_those_of_its_data_set(tmp_path: Path) -> None:
    publish(
        tmp_path, "iql", "hopper", "medium_expert_v2.yaml", "beta: 6.0\nqf_lr: 3e-4\nbatch_size: 9\nname: IQL\n"
    )
    options = argparse.Namespace(library="corl", checkout=tmp_path)
    files = [{"dataset_kind": "npz", "dataset_path": f"hopper-{quality}.npz"} for quality in ("medium", "expert")]

    def settings_of(algo: str) -> tuple[dict[str, Any], str]:
        return learn.peer_settings(
            options, TrainConfig(algo=algo, env_id="Hopper-v5", total_timesteps=9, algo_kwargs={"datasets": files})
        )

    assert settings_of("iql") == ({"beta": 6.0, "qf_lr": 3e-4}, "CORL's medium-expert settings")
    assert settings_of("td3_bc") == ({}, "CORL's defaults")


def test_script_of_unifloral_makes_whole_scans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "jax.py").write_text(JAX, encoding="utf-8")
    (tmp_path / "site" / "distrax.py").write_text("", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    given = loops.libraries(None, checkout(tmp_path, "td3_bc.py", UNIFLORAL_FILE), sys.executable)
    found, left_out = loops.connect(given, case_of("td3_bc"), CPU, batch=32, tf32=False)
    assert left_out == []
    with found["Unifloral"] as peer:
        assert peer.period == 50  # 25 steps of two critic updates
        assert lines(tmp_path) == ["25 32 6"]  # compiled
        peer.run(100)
        assert len(lines(tmp_path)) == 3
        peer.run(50)
        assert len(lines(tmp_path)) == 4


def flashsac(folder: Path, *ways: str) -> loops.Library:
    path = folder / "flash_rl" / "agents" / "flashSAC"
    path.mkdir(parents=True)
    (path / "agent.py").write_text(FLASHSAC_FILE.replace("LOG", repr(str(folder / "log"))), encoding="utf-8")
    (folder / "configs" / "agent").mkdir(parents=True)
    (folder / "configs" / "agent" / "flashSAC.yaml").write_text(FLASHSAC_SETTINGS, encoding="utf-8")
    (library,) = loops.libraries(None, None, None, folder, ways)
    return library


def test_agent_of_flashsac_makes_the_requested_updates(tmp_path: Path) -> None:
    library, loop = flashsac(tmp_path, "eager"), loops.LOOPS["FlashSAC"]["flash_sac/eager"]
    with loops.LoopUpdates(library, loop, case_of("sac"), CPU, batch=32, tf32=False) as peer:
        assert len(lines(tmp_path)) == 4  # two of each variant, which compile
        peer.run(3)
    assert len(lines(tmp_path)) == 7
    told = ast.literal_eval(lines(tmp_path)[0])
    assert "agent_type" not in told
    expected = {"seed": 0, "learning_rate_init": 3e-4, "sample_batch_size": 32, "buffer_max_length": cases.ROWS}
    expected |= {"use_compile": False, "use_amp": False, "device_type": "cpu", "buffer_device_type": "cpu"}
    assert {name: told[name] for name in expected} == expected
    entry = peer.entry(Rates([4.0]), Rates([2.0]))
    assert (peer.period, entry["peer"], entry["ratio"]) == (2, "FlashSAC:eager", 2.0)


def test_agent_of_fql_makes_the_requested_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = repr(str(tmp_path / "log"))
    files = {"site/jax": JAX, "site/distrax": "", "agents/fql": FQL_AGENT.replace("LOG", log)}
    for name, text in (files | {"utils/datasets": FQL_DATA}).items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    given = loops.libraries(None, None, sys.executable, fql=tmp_path)
    found, left_out = loops.connect(given, case_of("fql"), CPU, batch=32, tf32=False)
    assert left_out == []
    with found["FQL"] as peer:
        assert len(lines(tmp_path)) == 2  # they compile
        peer.run(3)
    number, told = lines(tmp_path)[-1].split(" ", 1)
    sizes = [512] * 4
    expected = {"lr": 3e-4, "batch_size": 32, "encoder": None}
    assert (number, ast.literal_eval(told)) == (
        "4",
        expected | {"actor_hidden_dims": sizes, "value_hidden_dims": sizes},
    )


class Recorded:
    """An agent that may start after three transitions, and keeps what it was given."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.seen: list[float] = []
        self.updates: list[int] = []

    def can_start_training(self) -> bool:
        return len(self.rows) >= 3

    def sample_actions(self, step: int, before: dict[str, Any], training: bool) -> Any:
        self.seen.append(float(before["next_observation"][0, 0]))
        return np.full((1, 1), 0.5, dtype=np.float32)

    def process_transition(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def update(self) -> None:
        self.updates.append(len(self.rows))


class Counting(gym.Env[Any, Any]):
    """Observations count up from 10 times the number of the episode; every second episode terminates."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    episode = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.episode, self.now = self.episode + 1, 10.0 * (self.episode + 1)
        return np.array([self.now], dtype=np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.now += 1.0
        over = self.now % 10 == 2
        return np.array([self.now], dtype=np.float32), self.now, over and self.episode == 2, over, {}


def test_whole_runs_of_flashsac_store_final_observations_and_update_after_every_step() -> None:
    agent = Recorded()
    assert list(flashsac_peer.train_agent(agent, Counting(), 0, 6)) == [1, 2, 3, 4, 5, 6]
    ends = [(float(row["observation"][0, 0]), float(row["next_observation"][0, 0])) for row in agent.rows]
    assert ends == [(10, 11), (11, 12), (20, 21), (21, 22), (30, 31), (31, 32)]
    assert [bool(row["terminated"][0]) for row in agent.rows] == [False, False, False, True, False, False]
    assert [bool(row["truncated"][0]) for row in agent.rows] == [False, True, False, True, False, True]
    assert agent.seen == [21.0, 30.0, 31.0]  # the actions before are random
    assert agent.updates == [3, 4, 5, 6]


def test_ways_of_one_library_are_peers_of_their_own(tmp_path: Path) -> None:
    library = flashsac(tmp_path, "compiled", "compiled float16")
    case = replace(case_of("sac"), algo="flash_sac")
    found = {name: loop.settings(case) for name, loop in loops.loops_of(library, case)}
    assert found == {"FlashSAC compiled": {"use_amp": False}, "FlashSAC compiled float16": {}}
    assert list(loops.loops_of(library, case_of("sac"))) == []


def test_peer_that_is_not_ready_in_time_is_left_out_and_ended(tmp_path: Path) -> None:
    given = loops.libraries(checkout(tmp_path, "offline/awac.py", "import time; time.sleep(60)"), None, None)
    found, left_out = loops.connect(given, case_of("awac"), CPU, batch=8, tf32=False, within=0.01)
    assert found == {}
    assert left_out[0].endswith("gave no answer in 0.01 s")


def test_a_case_is_found_by_its_name_or_by_the_algorithm_that_no_case_is_named_by() -> None:
    assert [case.name for case in cases.find(["sac"])] == ["SAC"]
    assert [case.name for case in cases.find(["SAC, SimBa", "tqc"])] == [
        "TQC, 2 critics", "TQC, 5 critics", "SAC, SimBa"
    ]  # fmt: skip
    with pytest.raises(SystemExit, match="no such algorithm or case: nothing"):
        cases.find(["nothing", "sac"])


def test_peer_that_cannot_run_is_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = checkout(tmp_path, "offline/awac.py", "raise ImportError('needs a planet')")
    found, left_out = loops.connect(loops.libraries(broken, None, None), case_of("awac"), CPU, batch=8, tf32=False)
    assert found == {}
    assert len(left_out) == 1
    assert left_out[0].startswith("CORL AWAC: ")
    assert "needs a planet" in left_out[0]
    assert "needs a planet" in capsys.readouterr().out


def test_cases_with_other_networks_have_no_such_peer(tmp_path: Path) -> None:
    given = loops.libraries(checkout(tmp_path, "offline/cql.py", "raise SystemExit"), None, None)
    narrow = [case for case in cases.CASES if case.name == "CQL, 256×2"]
    wide = cases.find(["iql"], (512, 512))
    for case in (*narrow, *wide, case_of("sac")):
        assert loops.connect(given, case, CPU, batch=8, tf32=False) == ({}, [])


def test_checkouts_are_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("c", "u"):
        (tmp_path / name / "algorithms").mkdir(parents=True)
    corl, unifloral = str(tmp_path / "c"), str(tmp_path / "u")
    monkeypatch.setattr(
        sys, "argv", ["updates", "--corl", corl, "--unifloral", unifloral, "--jax-python", "/a/jax"]
    )
    first, second = updates.arguments().libraries
    assert (first.name, first.checkout, first.python) == ("CORL", tmp_path / "c", sys.executable)
    assert (second.name, second.checkout, second.python) == ("Unifloral", tmp_path / "u", "/a/jax")
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--no-peers"])
    assert updates.arguments().libraries == []
    monkeypatch.setattr(sys, "argv", ["updates", "--corl", str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit, match="nowhere"):
        updates.arguments()


def test_commit_is_the_checkouts_own(tmp_path: Path) -> None:
    """Not that of a repository it was copied into."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(tmp_path), *author, "commit", "-qm", "m", "--allow-empty"], check=True)
    inside = tmp_path / "copy"
    inside.mkdir()
    assert commit_of(inside) == "unknown"
    (inside / "COMMIT").write_text("0123456789abcdef\n", encoding="utf-8")
    assert commit_of(inside) == "0123456789ab"
    head = subprocess.run(
        ["git", "-C", str(tmp_path), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    assert head.stdout.startswith(commit_of(tmp_path))


class Counted:
    """A contender that records how many updates were requested."""

    def __init__(self, period: int | None = None) -> None:
        self.period = period
        self.asked: list[int] = []

    def run(self, count: int) -> None:
        self.asked.append(count)


def test_contender_with_a_period_of_its_own_is_asked_for_whole_ones() -> None:
    ours, scans = Counted(), Counted(50)
    alternate({"ours": ours, "scans": scans}, seconds=1e-6, blocks=2, period=3)
    assert all(count % 3 == 0 for count in ours.asked)
    assert any(count % 50 for count in ours.asked)
    assert all(count % 50 == 0 for count in scans.asked)


def measured(**more: Any) -> dict[str, Any]:
    """A stored entry, after a round trip through JSON."""
    entry: dict[str, Any] = {
        "kind": "rate", "case": "IQL", "hidden": [256, 256], "batch": 256, "mode": "eager", "tf32": False,
        "rate": 100.0, "date": "2026-01-01", "device": "cpu", "machine": "2 CPU cores", "threads": 1,
        "versions": {"torch": "2"},
    }  # fmt: skip
    read: dict[str, Any] = json.loads(json.dumps(entry | more))
    return read


def given_peer(name: str, rate: float, note: str = "") -> dict[str, Any]:
    return {
        "peer": name, "peer_rate": rate, "peer_blocks": [rate], "how": "its own loop", "note": note,
        "peer_versions": {"checkout": "abc", "torch": "2"}, **ratios_of(Rates([100.0]), Rates([rate])),
    }  # fmt: skip


def test_tables_have_a_row_for_every_peer_and_how_it_was_run() -> None:
    installed = {"peer": "d3rlpy:IQL", "peer_rate": 80.0, "ratio": 1.25, "ratio_spread": [1.2, 1.3]}
    given = [given_peer("CORL:IQL", 50.0, "sizes are fixed"), given_peer("Unifloral:IQL", 200.0)]
    (text,) = updates.sections({"a": measured(**installed, given_peers=given)}).values()
    assert "**2 CPU cores, eager, 1 threads.** " in text
    assert "| IQL | 100 | 10,000 | d3rlpy IQL | 80 | 1.25 (1.20 to 1.30) | 2026-01-01 |" in text
    assert "|  |  |  | CORL IQL | 50 | 2.00 (2.00 to 2.00) |  |" in text
    assert "|  |  |  | Unifloral IQL | 200 | 0.50 (0.50 to 0.50) |  |" in text
    assert "CORL (checkout abc, torch 2): its own loop. IQL: sizes are fixed." in text
    assert "Unifloral (checkout abc, torch 2): its own loop.\n" in text


def test_the_short_table_has_a_column_for_each_library() -> None:
    installed = {"peer": "d3rlpy:IQL", "peer_rate": 80.0, "ratio": 1.25, "ratio_spread": [1.2, 1.3]}
    given = [given_peer("CORL:IQL", 50.0), given_peer("Unifloral:IQL", 200.0)]
    text = summary._updates([measured(**installed, given_peers=given), measured(case="SAC")])
    assert "| algorithm | here | d3rlpy | CORL | Unifloral (JAX) |" in text
    assert "| IQL | 100 | 80 (1.25×) | 50 (2.00×) | 200 (0.50×) |" in text
    assert "| SAC | 100 |  |  |  |" in text


def test_peer_of_a_checkout_stands_in_the_first_row_where_none_is_installed() -> None:
    (row,) = updates.rate_rows([measured(given_peers=[given_peer("CORL:IQL", 50.0)])])
    assert row[0] == "IQL"
    assert row[4:] == ["CORL IQL", "50", "2.00 (2.00 to 2.00)", "–", "2026-01-01"]  # the goal is of the installed


def test_entries_from_before_there_were_checkouts_still_render() -> None:
    assert updates.rate_rows([measured()])[0][4:] == [*["–"] * 4, "2026-01-01"]
    (text,) = updates.sections({"a": measured()}).values()
    assert "checkout" not in text


def lean_checkout(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with doubles of what its script imports."""
    (folder / "leanrl").mkdir()
    script = LEANRL_FILE.replace("LOG", repr(str(folder / "log")))
    (folder / leanrl.SCRIPTS["td3"]).write_text(script, encoding="utf-8")
    for package, module, names in (
        ("tensordict", "nn", "CudaGraphModule = TensorDictModule"),
        ("torchrl", "data", "ReplayBuffer"),
    ):
        (folder / "site" / package).mkdir(parents=True)
        (folder / "site" / package / "__init__.py").write_text("", encoding="utf-8")
        (folder / "site" / package / f"{module}.py").write_text(f"{names} = None", encoding="utf-8")
        described = folder / "site" / f"{package}-0.5.dist-info"
        described.mkdir()
        (described / "METADATA").write_text(f"Name: {package}\nVersion: 0.5\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder / "site"))
    return folder


def lean_config(*overrides: str, algo: str = "td3", steps: int = 9) -> Any:
    return configure(
        f"{algo}/halfcheetah", algo, list(overrides), env_id="HalfCheetah-v5", seed=4, total_timesteps=steps,
        device="cpu",
    )  # fmt: skip


def test_script_of_leanrl_is_given_the_settings_of_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = leanrl.arguments(lean_config("algo_kwargs.policy_delay=3", "algo_kwargs.tau=0.25"), settle=2)
    said = leanrl.run(lean_checkout(tmp_path, monkeypatch), "td3", given)
    assert said["speed"] == 80.0  # the last it said
    assert said["seconds"] > 0.0
    assert said["versions"]["tensordict"] == "0.5"
    (line,) = lines(tmp_path)
    for part in ("env_id='HalfCheetah-v5'", "seed=4", "total_timesteps=9", "learning_rate=0.0003", "gamma=0.99",
                 "buffer_size=1000000", "tau=0.25", "policy_frequency=3", "learning_starts=25000", "cuda=False",
                 "cudagraphs=False", "measure_burnin=2"):  # fmt: skip
        assert part in line


def test_sac_of_leanrl_updates_its_actor_as_often_as_ours() -> None:
    given = leanrl.arguments(lean_config("algo_kwargs.learning_rate=0.001", algo="sac"), settle=2)
    assert (given["policy_lr"], given["q_lr"], given["policy_frequency"]) == (1e-3, 1e-3, 1)
    with pytest.raises(SystemExit, match="alpha"):
        leanrl.arguments(lean_config("algo_kwargs.alpha=0.2", algo="sac"), settle=2)
    with pytest.raises(SystemExit, match="num_envs"):
        leanrl.arguments(lean_config("num_envs=2", algo="sac"), settle=2)


def test_scripts_of_leanrl_get_what_earlier_libraries_gave_them() -> None:
    class Envs:
        def step(self, actions: Any) -> Any:
            return actions + 1, None, None, actions > 1, {}

    envs = leanrl.with_final_observations(Envs)()
    assert envs.step(np.array([0, 1]))[4] == {}
    assert envs.step(np.array([0, 2]))[4]["final_observation"].tolist() == [1, 3]
    module = leanrl.without_other_outputs(lambda function, in_keys, out_keys: function)
    assert module(lambda x: (x, 2, 3), in_keys=["a"], out_keys=["b"])(1) == (1,)
    assert module(lambda x: x, in_keys=["a"], out_keys=["b"])(1) == 1


@pytest.mark.parametrize(
    ("overrides", "rounds"),
    [
        ([], (1, 1)),
        (["num_envs=8"], (1, 8)),
        (["num_envs=8", "algo_kwargs.train_frequency=8"], (1, 1)),
        (["num_envs=4", "algo_kwargs.train_frequency=8", "algo_kwargs.gradient_updates_per_step=3"], (2, 3)),
        (["num_envs=8", "algo_kwargs.learning_starts=20000"], (1, 0)),
    ],
)
def test_stable_baselines_makes_as_many_updates_per_step(overrides: list[str], rounds: tuple[int, int]) -> None:
    """Its rounds count steps of all environments, ours count those of each."""
    config = lean_config(*overrides, algo="sac", steps=20_000)
    assert sb3.rounds_of(config) == rounds
    every, updates = rounds
    online = resolve(config)[OnlineConfig]
    steps = every * config.num_envs
    assert updates == 0 or online.earned(10_000 + 10 * steps) - online.earned(10_000 + 9 * steps) == updates


def test_rounds_of_updates_that_stable_baselines_cannot_make_are_refused() -> None:
    with pytest.raises(SystemExit, match="multiple"):
        sb3.rounds_of(lean_config("num_envs=3", "algo_kwargs.train_frequency=2", algo="sac"))


AGENTS = {
    "sac": (["algo_kwargs.alpha=0.3"], {"ent_coef": 0.3}),
    "td3": (
        ["algo_kwargs.policy_delay=3", "algo_kwargs.target_policy_noise=0.4", "algo_kwargs.target_noise_clip=0.7",
         "algo_kwargs.exploration_noise=0.2"],
        {"policy_delay": 3, "target_policy_noise": 0.4, "target_noise_clip": 0.7},
    ),
}  # fmt: skip


@pytest.mark.parametrize("algo", AGENTS)
def test_agent_of_stable_baselines_has_the_settings_of_a_config(algo: str) -> None:
    pytest.importorskip("stable_baselines3")
    overrides, own = AGENTS[algo]
    common = {"batch_size": 32, "gamma": 0.9, "tau": 0.25, "learning_rate": 0.002, "learning_starts": 40}
    sizes = ["algo_kwargs.hidden_sizes=[8, 9]", "algo_kwargs.buffer_capacity=50"]
    given = [f"algo_kwargs.{name}={value}" for name, value in common.items()]
    agent = sb3.agent_of(lean_config(*overrides, *sizes, *given, algo=algo, steps=99), sb3.Still(False))
    assert {name: getattr(agent, name) for name in common | own} == pytest.approx(common | own)
    assert (agent.seed, agent.buffer_size, agent.gradient_steps, agent.train_freq.frequency) == (4, 50, 1, 1)
    for network in (agent.actor, agent.critic):
        widths = [layer.out_features for layer in network.modules() if isinstance(layer, torch.nn.Linear)]
        assert widths[:2] == [8, 9]
    if algo == "td3":
        assert agent.action_noise._sigma.tolist() == [0.2] * cases.ACTION_DIM
    obs = torch.linspace(-1.0, 1.0, 2 * cases.OBS_DIM).view(2, cases.OBS_DIM)
    expected, _ = agent.predict(obs.numpy(), deterministic=True)
    np.testing.assert_allclose(sb3.SB3Policy(agent).mode(obs).detach(), expected, atol=1e-6)


@pytest.mark.parametrize("algo", AGENTS)
def test_stable_baselines_learns_and_is_evaluated_on_the_episodes_of_a_study(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("stable_baselines3")
    agents, make = [], sb3.agent_of
    monkeypatch.setattr(sb3, "agent_of", lambda *given: agents.append(make(*given)) or agents[-1])
    study, task = tmp_path / "some.yaml", {"config": f"{algo}/pendulum"}
    limits = {
        "total_timesteps": 40,
        "learning_starts": 30,
        "eval_interval": 20,
        "eval_episodes": 1,
        "device": "cpu",
    }
    study.write_text(dump_yaml({"set": limits, "seeds": [3], "tasks": [task]}), encoding="utf-8")
    (job,) = learn.jobs(learn.arguments(["sb3", str(study), "--episodes", "2"]))
    assert job.key == f"some/Pendulum-v1/sb3 {algo}/3"
    entry = learn.perform(job)
    assert (entry["steps"], entry["updates"], entry["settings"]) == (40, 10, "ours")
    assert [step for step, _, _ in entry["curve"]] == [20, 40]
    assert entry["final"] == evaluated(job, sb3.SB3Policy(agents[0]).mode)


def test_leanrl_is_compared_on_the_same_problem_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="hidden_sizes"):
        leanrl.arguments(lean_config("algo_kwargs.hidden_sizes=[400, 300]"), settle=2)
    with pytest.raises(SystemExit, match=r"is .* a checkout of LeanRL"):
        leanrl.run(tmp_path, "td3", {})
    folder = lean_checkout(tmp_path, monkeypatch)
    with pytest.raises(RuntimeError, match="unexpected keyword"):
        leanrl.run(folder, "td3", {"planet": 1})
    monkeypatch.setattr(sys, "argv", ["training", "--algo", "redq", "--leanrl", str(folder)])
    with pytest.raises(SystemExit):
        training.arguments()


def test_results_with_leanrl_and_stable_baselines_are_distinguished() -> None:
    pair = measured(
        kind="compare", algo="td3", env="E", config="td3/e", overrides=[], steady=[9.0], whole=[8.0],
        peer_steady=[3.0], peer_whole=[2.0], peer_device="cpu", ratio=3.0, ratio_spread=[3.0, 3.0],
    )  # fmt: skip
    lean = pair | {"peer": "LeanRL", "peer_versions": {"checkout": "abc"}, "how": "its script"}
    (text,) = training.sections({"a": pair, "b": lean}).values()
    several = pair | {"steady": [9.0, 8.0], "whole": [8.0, 8.0], "ratio_spread": [2.0, 4.0]}
    assert "| 3.00 (2.00 to 4.00) |" in training.sections({"a": several})["performance/steps", "training"]
    assert "| 9 (8) | Stable-Baselines3 on cpu | 3 (2) | 3.00 (one pair) |" in text
    assert "| 9 (8) | LeanRL on cpu | 3 (2) | 3.00 (one pair) |" in text
    assert "LeanRL (checkout abc): its script.\n" in text
    overridden = lean | {"overrides": ["num_envs=8", "algo_kwargs.learning_starts=1000"]}
    keys = [training.key_of(entry) for entry in (pair, lean, overridden)]
    assert [key.removeprefix("compare/2 CPU cores/td3/E/") for key in keys] == [
        "cpu",
        "cpu/LeanRL",
        "cpu/LeanRL/num_envs=8",
    ]
