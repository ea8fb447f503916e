"""Isaac Lab (interface of 3.0): `ManagerBasedRLEnv` and `DirectRLEnv`. Not run against the real simulator.

With `cfg.compute_final_obs = True` (its default is False) the observations before the resets are in
`extras["final_obs"]`, for all rows. They stay there, out of date, in steps without resets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rl_training.environments.adapters.base import ManagerBasedAdapter, by_end, copied
from rl_training.errors import ConfigError

_REMEDY = "set cfg.compute_final_obs = True before the environment is made (Isaac Lab 3.0)"


class IsaacLabAdapter(ManagerBasedAdapter):
    """An environment of Isaac Lab, made with `gymnasium.make(id, cfg=cfg)`."""

    def __init__(self, env: Any, *, group: str = "policy", action_limit: float | None = None) -> None:
        if not getattr(env.unwrapped.cfg, "compute_final_obs", False):
            raise ConfigError(f"Isaac Lab: the last observation of an episode is lost; {_REMEDY}")
        super().__init__(env, "Isaac Lab", group, action_limit)

    def episode_ends(self, after: Tensor, ended: Tensor, info: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        if "final_obs" in info:
            return after, by_end(ended, copied(self.observations(info["final_obs"]), self.device), after)
        if ended.any():
            raise ConfigError(f"Isaac Lab: an episode ended without extras['final_obs']; {_REMEDY}")
        return after, after
