"""mjlab (interface of 1.6): `ManagerBasedRlEnv` with `cfg.auto_reset = False`. Run with 1.6.0 on a CPU, not a GPU.

`step` then returns the last observation of an episode, and the adapter resets the rows that ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

from torch import Tensor

from rl_training.environments.adapters.base import ManagerBasedAdapter, by_end, copied
from rl_training.errors import ConfigError


class MjlabAdapter(ManagerBasedAdapter):
    """An environment of mjlab. Its random numbers come from the generators of the process, which a reset seeds."""

    def __init__(self, env: Any, *, group: str = "actor", action_limit: float | None = None) -> None:
        bare = env.unwrapped
        if getattr(bare.cfg, "auto_reset", True):
            raise ConfigError(
                "mjlab: the last observation of an episode is lost; set cfg.auto_reset = False before the "
                "environment is made (mjlab 1.6)"
            )
        if _version() < (1, 6):
            raise ConfigError(
                "mjlab: before 1.6 a reset of some simulations advanced the histories of the others; install "
                "mjlab>=1.6"
            )
        super().__init__(bare, "mjlab", group, action_limit)

    def episode_ends(self, after: Tensor, ended: Tensor, info: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        rows = ended.nonzero()[:, 0]
        if len(rows) == 0:
            return after, after
        first = copied(self.observations(self.env.reset(env_ids=rows)[0]), self.device)
        return by_end(ended, first, after), after


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in metadata.version("mjlab").split(".")[:2])
