"""Stable-Baselines3 and sb3-contrib: `train()` on their own replay buffer, and whole runs of SAC and TD3."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.protocol import ROOT, Evaluated, Orders, Process, with_paths
from benchmarks.speed import cases
from benchmarks.speed.cases import ACTION_DIM, OBS_DIM, Case
from benchmarks.speed.timing import wait
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import resolve
from rl_training.runs.building import choose_device
from rl_training.runtime.online import OnlineConfig

MODULES = {"sb3": "stable_baselines3", "sb3_contrib": "sb3_contrib"}


def installed(library: str = "sb3") -> bool:
    return library in MODULES and importlib.util.find_spec(MODULES[library]) is not None


class Still(gym.Env[Any, Any]):
    """An environment with spaces only, to construct an agent."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (OBS_DIM,), np.float32)

    def __init__(self, discrete: bool) -> None:
        self.action_space = (
            gym.spaces.Discrete(ACTION_DIM) if discrete else gym.spaces.Box(-1.0, 1.0, (ACTION_DIM,), np.float32)
        )


class SB3Updates(Process):
    """Gradient steps of an agent on a full replay buffer of the case's random rows."""

    def __init__(self, case: Case, device: torch.device, batch: int) -> None:
        super().__init__(sys.executable, "benchmarks.peers.sb3", with_paths(ROOT, ROOT / "src"))
        order = {"case": case.name, "hidden": case.hidden, "device": str(device), "batch": batch}
        self.ask(order | {"threads": torch.get_num_threads()})


class SB3Policy(Evaluated):
    """An actor of Stable-Baselines3 as a policy for this package's evaluator."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent

    def mode(self, obs: Tensor) -> Tensor:
        actions: Tensor = self.agent.actor._predict(obs.to(self.agent.device), deterministic=True)
        return actions.cpu()


def rounds_of(config: TrainConfig) -> tuple[int, int]:
    """Vector steps between rounds of updates, and updates per round, so that updates per environment step equal
    ours.

    There are no updates if ours start after the last step.
    """
    online, count = resolve(config)[OnlineConfig], config.num_envs
    every = online.train_frequency
    if max(every, count) % min(every, count):
        raise SystemExit(f"train_frequency {every} and num_envs {count}: one must be a multiple of the other")
    updates = 0 if online.first_steps >= config.total_timesteps else online.together(count)
    return max(1, every // count), updates


def own_settings(algo: str, settings: dict[str, Any], action_shape: tuple[int, ...]) -> dict[str, Any]:
    """Settings that only SAC or TD3 has; noise is relative to the action range [-1, 1] on both sides."""
    if algo == "sac":
        entropy = settings["target_entropy"]
        return {"ent_coef": settings["alpha"], "target_entropy": "auto" if entropy is None else entropy}
    from stable_baselines3.common.noise import NormalActionNoise

    noise = NormalActionNoise(np.zeros(action_shape), np.full(action_shape, settings["exploration_noise"]))
    same = ("policy_delay", "target_policy_noise", "target_noise_clip")
    return {"action_noise": noise} | {name: settings[name] for name in same}


def agent_of(config: TrainConfig, env: Any, **options: Any) -> Any:
    """SAC or TD3 with the settings of one of our configurations."""
    import stable_baselines3 as sb3

    settings = resolve(config).to_dict()
    every, updates = rounds_of(config)
    random_steps = resolve(config)[OnlineConfig].acts_randomly_until(config)
    return getattr(sb3, config.algo.upper())(
        "MlpPolicy",
        env,
        learning_rate=settings["learning_rate"],
        buffer_size=settings["buffer_capacity"],
        learning_starts=settings["learning_starts"] if updates else random_steps,
        batch_size=settings["batch_size"],
        tau=settings["tau"],
        gamma=settings["gamma"],
        train_freq=every,
        gradient_steps=updates,
        policy_kwargs={"net_arch": list(settings["hidden_sizes"])},
        device=str(choose_device(config.device)),
        seed=config.seed,
        **own_settings(config.algo, settings, env.action_space.shape),
        **options,
    )


# The process of the library.


def filled_agent(case: Case, device: str, batch: int) -> Any:
    library, _, name = (case.peer or "").partition(":")
    settings = dict(case.peer_settings)
    policy = {"net_arch": list(case.hidden)} | settings.pop("policy_kwargs", {})
    rows = cases.random_rows(case.layout)
    agent = getattr(importlib.import_module(MODULES[library]), name)(
        "MlpPolicy",
        Still(case.spaces.discrete),
        buffer_size=len(rows),
        batch_size=batch,
        policy_kwargs=policy,
        device=device,
        seed=0,
        **settings,
    )
    columns, buffer = case.layout.unpack(rows), agent.replay_buffer
    buffer.observations[:] = columns.obs[:, None]
    buffer.next_observations[:] = columns.next_obs[:, None]
    buffer.actions[:] = columns.actions.reshape(len(rows), 1, -1)
    buffer.rewards[:] = columns.rewards[:, None]
    buffer.dones[:] = columns.dones[:, None]
    buffer.full = True
    agent.set_logger(importlib.import_module("stable_baselines3.common.logger").Logger(None, []))
    return agent


def main() -> None:
    orders = Orders()
    order = orders.order
    torch.set_num_threads(order["threads"])
    (case,) = cases.find([order["case"]], tuple(order["hidden"]))
    agent = filled_agent(case, order["device"], order["batch"])
    orders.answer("ready")

    def run(count: int) -> None:
        agent.train(gradient_steps=count, batch_size=order["batch"])
        wait()

    orders.serve(run)


if __name__ == "__main__":
    main()
