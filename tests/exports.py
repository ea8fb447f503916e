"""Small policies to export, and ways to run the exported files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

from rl_training.algorithms.base import LearnerConfig
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.export.observations import Observations
from rl_training.export.policy_runner import Policy as NumpyPolicy
from rl_training.models.mlp import NetworkShape
from rl_training.runs.session import TrainResult
from rl_training.runtime.loading import LoadedPolicy
from rl_training.spaces import SpaceSpec
from tests.runs import TINY, owned, tiny, train

Run = Callable[..., NDArray[Any]]
BOX = gym.spaces.Box(np.float32([-1.0, 0.1]), np.float32([3.0, 0.4]))
CHOICES = gym.spaces.Discrete(3, start=5)
SKEWED = SpaceSpec(3, tuple(BOX.low.tolist()), tuple(BOX.high.tolist()))


class Skewed(gym.Env[Any, Any]):
    """Observations far from zero and of unequal scale; bounds that are not symmetric; 5 steps."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(self, discrete: bool = False) -> None:
        self.action_space = CHOICES if discrete else BOX

    def _look(self) -> NDArray[np.float32]:
        return (self.np_random.normal(size=3) * [0.1, 1.0, 20.0] + [5.0, 0.0, -30.0]).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._look(), float(np.sum(action)), self.t == 5, False, {}


if "Skewed-v0" not in gym.registry:
    gym.register("Skewed-v0", entry_point=f"{__name__}:Skewed")


def trained(algo: str, folder: Path, *, discrete: bool | None = None, **kwargs: Any) -> TrainResult:
    """A run of 25 steps in the skewed world that sees observations through a normaliser."""
    settings = owned(algo, {"normalize_observations": True}) | kwargs
    spec = get_algorithm_spec(algo)
    discrete = spec.learner.discrete if discrete is None else discrete
    config = tiny(
        algo,
        folder,
        kwargs=settings,
        env_id="Skewed-v0",
        env_kwargs={"discrete": discrete},
        total_timesteps=25,
        eval_episodes=0,
    )
    if discrete and spec.sections.discrete is not None:
        meant = spec.sections.discrete.owners()
        config = config.replace(algo_kwargs={k: v for k, v in config.algo_kwargs.items() if k in meant})
    return train(config)


def untrained(algo: str, spaces: SpaceSpec = SKEWED, *, normalize: bool = False, **kwargs: Any) -> LoadedPolicy:
    """A policy as returned by `load_policy`, with freshly initialised networks."""
    sections = get_algorithm_spec(algo).sections
    resolved = sections.resolve(owned(algo, TINY) | kwargs)
    torch.manual_seed(0)
    model = sections.learner.build_model(
        spaces, resolved[NetworkShape], resolved[LearnerConfig], normalize_observations=normalize
    )
    config = TrainConfig(algo=algo, env_id=None, total_timesteps=1)
    return LoadedPolicy(model.policy.requires_grad_(False).eval(), spaces, config)


def looks(count: int = 50, width: int = 3, scale: float = 1.0) -> Observations:
    """Normal observations, and some outliers."""
    rng = np.random.default_rng(7)
    seen, beyond = (rng.normal(size=(count, width)) * scale for scale in (scale, 1e3))
    return Observations(seen.astype(np.float32), beyond.astype(np.float32), "a test")


def run_file(path: Path) -> Run:
    """Run an exported policy as a user would: with onnxruntime or the numpy runner."""
    if path.suffix == ".npz":
        return NumpyPolicy(path)
    session = onnxruntime.InferenceSession(path)

    def run(observation: NDArray[np.float32], noise: NDArray[np.float32] | None = None) -> NDArray[Any]:
        given = {"observation": observation} | ({} if noise is None else {"noise": noise})
        action: NDArray[Any] = session.run(["action"], given)[0]
        return action

    return run
