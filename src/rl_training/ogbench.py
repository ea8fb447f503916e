"""OGBench's single tasks by the names of its data sets: `cube-single-play-singletask-task2-v0`.

The package `ogbench` registers its environments when it is imported, without the kind of the data (`play`).
"""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym

from rl_training.errors import MissingDependencyError

PREFIX = "ogbench/"


def require_ogbench() -> Any:
    """The package `ogbench`; importing it registers its environments."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # GLFW warns if there is no display
            import ogbench
            import ogbench.manipspace.envs.env

            return ogbench
    except ImportError as error:
        raise MissingDependencyError(
            f"OGBench needs a package that is not installed ({error}); pip install ogbench", key="env_id"
        ) from error


def registered_id(env_id: str) -> str:
    """The id in Gymnasium's registry of `ogbench/NAME`, where NAME may contain the kind of the data."""
    if not env_id.startswith(PREFIX):
        return env_id
    require_ogbench()
    name = env_id.removeprefix(PREFIX)
    words = name.split("-")
    if name not in gym.registry and "singletask" in words[1:]:
        del words[words.index("singletask") - 1]
    return "-".join(words)
