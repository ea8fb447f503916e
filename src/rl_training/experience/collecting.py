"""Collect a data set from one environment, with random actions or a policy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training import seeding
from rl_training.data.datasets import TransitionDataset
from rl_training.environments.pool import make_pool
from rl_training.environments.running import not_finite
from rl_training.environments.user_environments import UserEnvironments
from rl_training.errors import MemoryLimitError
from rl_training.experience.collector import LARGEST_REWARD, random_actions
from rl_training.experiment.config import TrainConfig
from rl_training.memory import available_memory, human_bytes
from rl_training.spaces import SpaceSpec

# Memory per number: rows are lists of small arrays until they are packed.
_BYTES_PER_NUMBER = 32


def collect_random(
    config: TrainConfig, spaces: SpaceSpec, size: int, seed: int, given: UserEnvironments | None = None
) -> TransitionDataset:
    """Collect `size` transitions with uniformly random actions; reproducible by `seed`."""
    rng = seeding.random_data(seed)

    def act(obs: NDArray[Any]) -> Any:
        return random_actions(rng, spaces, len(obs))

    return collect_dataset(config, spaces, size, seed, act, name=f"random actions in {config.env_id}", given=given)


def collect_dataset(
    config: TrainConfig,
    spaces: SpaceSpec,
    size: int,
    seed: int,
    act: Any,
    *,
    name: str,
    given: UserEnvironments | None = None,
) -> TransitionDataset:
    """Collect `size` transitions of one environment; `act(obs [1, O])` returns internal actions."""
    needed, free = size * _BYTES_PER_NUMBER * (2 * spaces.obs_dim + spaces.action_dim + 3), available_memory()
    if needed > free:
        raise MemoryLimitError(
            f"algo_kwargs.dataset_size {size} needs {human_bytes(needed)} and {human_bytes(free)} are available; "
            f"the largest that fits is {size * free // needed}",
            key="algo_kwargs.dataset_size",
        )
    pool = make_pool(config.replace(num_envs=1, seed=seed), purpose=seeding.COLLECTION, given=given)
    columns: dict[str, list[Any]] = {
        key: [] for key in ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
    }
    try:
        obs = pool.reset(0)
        for _ in range(size):
            (action,) = actions = spaces.to_env(act(obs[None]))
            steps = pool.step(actions)
            if not (abs(steps.rewards[0]) <= LARGEST_REWARD and np.isfinite(steps.obs).all()):
                when = f" (seed {pool.seeds[0]}, step {pool.lengths[0]}) while data were collected"
                raise not_finite(str(config.env_id), "observation or reward", when=when)
            row = (obs, action, steps.rewards[0], steps.obs[0], steps.terminated[0], steps.truncated[0])
            for values, value in zip(columns.values(), row):
                values.append(value)
            obs = pool.reset(0) if steps.terminated[0] or steps.truncated[0] else steps.obs[0]
    finally:
        pool.close()
    columns["timeouts"][-1] = not columns["terminals"][-1]
    arrays: dict[str, Any] = {key: np.asarray(values) for key, values in columns.items()}
    return TransitionDataset.from_arrays(**arrays, spaces=spaces, name=name)
