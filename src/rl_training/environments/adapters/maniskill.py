"""ManiSkill (interface of 3.0.1) in its `ManiSkillVectorEnv`. Not run against the real simulator.

The wrapper resets the rows that ended and returns, only if there are some, the observations before these resets as
`info["final_observation"]`, for all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_training.environments.adapters.base import Adapter, by_end, copied, flat_box
from rl_training.errors import ConfigError


class ManiSkillAdapter(Adapter):
    """A `ManiSkillVectorEnv` with `auto_reset=True` and `obs_mode="state"`."""

    def __init__(self, env: Any) -> None:
        if not getattr(env, "auto_reset", False):
            raise ConfigError(
                "ManiSkill: only ManiSkillVectorEnv keeps the last observation of an episode; pass "
                "ManiSkillVectorEnv(env, auto_reset=True)"
            )
        super().__init__(
            env,
            observation_space=flat_box(
                env.single_observation_space, "ManiSkill", 'make the environment with obs_mode="state"'
            ),
            action_space=env.single_action_space,
            device=torch.device(env.device),
            max_episode_steps=None if env.spec is None else env.spec.max_episode_steps,
        )

    def episode_ends(self, after: Tensor, ended: Tensor, info: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        if "final_observation" not in info:
            return after, after
        return after, by_end(ended, copied(info["final_observation"], self.device), after)
