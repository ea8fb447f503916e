"""REDQ on Pendulum-v1: a training loop around the package's learner, model and replay buffer.

It shows what the parts do. To train, use `rl-training train --config redq/pendulum`, which adds checkpoints,
evaluation, logging and acceleration to the same update.

    python examples/redq_pendulum_reference.py --steps 6000 --seed 0
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import gymnasium as gym
import numpy as np
import torch

from rl_training.algorithms import REDQ
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.transitions import RowLayout
from rl_training.models import MLPREDQModel
from rl_training.spaces import SpaceSpec

LEARNING_STARTS = 500  # steps of random actions
UPDATES_PER_STEP = 4
BATCH_SIZE = 128


def spaces_of(env: gym.Env) -> SpaceSpec:
    """Dimensions and action bounds; inside, actions are in [-1, 1]."""
    box = env.action_space
    assert isinstance(box, gym.spaces.Box)
    assert env.observation_space.shape is not None
    return SpaceSpec(env.observation_space.shape[0], tuple(box.low.tolist()), tuple(box.high.tolist()))


def make_learner(spaces: SpaceSpec, seed: int) -> REDQ:
    """Return a learner with five critics; each target is the minimum of two random critics."""
    torch.manual_seed(seed)
    model = MLPREDQModel(spaces.obs_dim, spaces.action_dim, (128, 128), num_critics=5)
    learner = REDQ(
        model=model,
        learning_rate=1e-3,
        alpha=0.2,
        subset_size=2,
        policy_delay=UPDATES_PER_STEP,
        gamma=0.99,
        tau=0.005,
    )
    learner.seed(seed)
    return learner


def train(
    steps: int, seed: int = 0, report: Callable[[str], None] = print, learning_starts: int = LEARNING_STARTS
) -> tuple[REDQ, list[float]]:
    """Learn for `steps` environment steps; returns the learner and the return of each finished episode."""
    env = gym.make("Pendulum-v1")
    spaces = spaces_of(env)
    learner = make_learner(spaces, seed)
    layout = RowLayout.of(spaces)
    buffer = ReplayBuffer(max(steps, 1), layout, learner.generator)
    rng = np.random.default_rng(seed)
    returns: list[float] = []
    episode_return = 0.0
    obs, _ = env.reset(seed=seed)
    for step in range(1, steps + 1):
        if step <= learning_starts:
            action = rng.uniform(-1.0, 1.0, (1, spaces.action_dim)).astype(np.float32)
        else:
            with torch.no_grad():
                policy, inputs = learner.model.policy, torch.from_numpy(obs)[None]
                action = learner.explore(policy, inputs, rng, step / steps).numpy()
        next_obs, reward, terminated, truncated, _ = env.step(spaces.to_env(action)[0])
        # A time limit (truncated) is not a termination: the target bootstraps from the last state.
        done = np.array([terminated])
        buffer.add(layout.pack(obs[None], action, np.array([reward]), next_obs[None], done))
        episode_return += float(reward)
        obs = next_obs
        if terminated or truncated:
            returns.append(episode_return)
            report(f"step {step:>6}  episode {len(returns):>3}  return {episode_return:8.1f}")
            episode_return = 0.0
            obs, _ = env.reset()
        if step >= learning_starts:
            for _ in range(UPDATES_PER_STEP):
                batch = layout.unpack(buffer.sample_rows(BATCH_SIZE))
                learner.update(batch, global_step=step)
    env.close()
    return learner, returns


def evaluate(learner: REDQ, episodes: int, seed: int = 10_000) -> float:
    """Mean return of the deterministic policy."""
    env = gym.make("Pendulum-v1")
    spaces = spaces_of(env)
    total = 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        ended = False
        while not ended:
            with torch.no_grad():
                action = learner.model.policy.mode(torch.from_numpy(obs)[None]).numpy()
            obs, reward, terminated, truncated, _ = env.step(spaces.to_env(action)[0])
            total += float(reward)
            ended = terminated or truncated
    env.close()
    return total / episodes


def main() -> None:
    parser = argparse.ArgumentParser(description="REDQ on Pendulum-v1 with its own loop.")
    parser.add_argument("--steps", type=int, default=6_000, help="environment steps (default: 6000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eval-episodes", type=int, default=10)
    options = parser.parse_args()
    learner, _ = train(options.steps, options.seed)
    mean = evaluate(learner, options.eval_episodes)
    print(f"mean return over {options.eval_episodes} evaluation episodes: {mean:.1f}")


if __name__ == "__main__":
    main()
