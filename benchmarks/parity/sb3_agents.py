"""Agents of Stable-Baselines3 and sb3-contrib that train on given batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.parity.lockstep import ACTIONS, BATCH, CHOICES, LEARNING_RATE, OBS, Losses


class Still(gym.Env[Any, Any]):
    """An environment with spaces only, which the agents need to be constructed."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)

    def __init__(self, discrete: bool) -> None:
        self.action_space = (
            gym.spaces.Discrete(CHOICES) if discrete else gym.spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)
        )


def agent_of(algorithm: Callable[..., Any], net_arch: Any, **settings: Any) -> Any:
    """Their agent, without a logger's output."""
    import stable_baselines3 as sb3

    policy = {"net_arch": net_arch} | settings.pop("policy_kwargs", {})
    agent = algorithm(
        "MlpPolicy",
        Still(algorithm is sb3.DQN),
        learning_rate=LEARNING_RATE,
        device="cpu",
        buffer_size=1,
        policy_kwargs=policy,
        **settings,
    )
    agent.set_logger(sb3.common.logger.Logger(None, []))
    return agent


def train_on(agent: Any, batch: Any) -> Losses:
    """Make one gradient step on `batch` instead of a sampled one; return the logged values."""
    from stable_baselines3.common.type_aliases import ReplayBufferSamples

    samples = ReplayBufferSamples(
        observations=batch.obs,
        actions=batch.actions.reshape(BATCH, -1),
        next_observations=batch.next_obs,
        dones=batch.dones[:, None],
        rewards=batch.rewards[:, None],
    )
    agent.replay_buffer.sample = lambda *_args, **_kwargs: samples
    agent.logger.name_to_value.clear()
    agent.train(gradient_steps=1, batch_size=BATCH)
    names = {"loss": "loss", "critic_loss": "critic_loss", "actor_loss": "actor_loss", "ent_coef": "alpha"}
    logged = {theirs.removeprefix("train/"): float(value) for theirs, value in agent.logger.name_to_value.items()}
    return {ours: logged[theirs] for theirs, ours in names.items() if theirs in logged}
