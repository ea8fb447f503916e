"""Gymnasium's vector environments (interface of 1.2 to 1.4), in all three autoreset modes.

SAME_STEP returns the last observation of an episode in `info["final_obs"]`. DISABLED returns it from `step`; rows
that ended are then reset with `options={"reset_mask": …}`. NEXT_STEP would reset them in the next step and ignore
their actions; the same partial reset comes before it, so that every step of every row is a transition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor

from rl_training.environments.adapters.base import Adapter, by_end, copied, flat_box
from rl_training.environments.wrapping import require_no_statistics
from rl_training.errors import ConfigError

_REMEDY = (
    'make it with gymnasium.make_vec(id, num_envs=N, vectorization_mode="sync", '
    'vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP})'
)


class VectorEnvAdapter(Adapter):
    """A `gymnasium.vector.VectorEnv` on the CPU."""

    inexact_remedy = "vector environments do not save their state; pass an id or a class, and num_envs"

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self.name = type(env.unwrapped).__name__
        self.mode = env.metadata.get("autoreset_mode")
        if not isinstance(self.mode, AutoresetMode):
            raise ConfigError(f"{self.name}: metadata['autoreset_mode'] is {self.mode!r}; {_REMEDY}")
        if self.mode is AutoresetMode.NEXT_STEP and not _ends_pending_resets(env.unwrapped):
            raise ConfigError(
                f"{self.name}: its autoreset mode NEXT_STEP cannot be turned into transitions; {_REMEDY}"
            )
        require_no_statistics(env)
        if isinstance(env.unwrapped, SyncVectorEnv):
            for one in env.unwrapped.envs:
                require_no_statistics(one)
            parts = [one.unwrapped for one in env.unwrapped.envs]
            if len({id(part) for part in parts}) < len(parts):
                raise ConfigError(
                    f"{self.name}: several of its environments are one object and would share its episodes; its "
                    "functions must make a new one on each call"
                )
        super().__init__(
            env,
            observation_space=flat_box(
                env.single_observation_space, self.name, "wrap it in gymnasium.wrappers.vector.FlattenObservation"
            ),
            action_space=env.single_action_space,
            device=torch.device("cpu"),
            max_episode_steps=_time_limit(env),
        )

    def actions(self, actions: Tensor) -> Any:
        return actions.numpy()

    def episode_ends(self, after: Tensor, ended: Tensor, info: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        if not ended.any():
            return after, after
        if self.mode is not AutoresetMode.SAME_STEP:
            return self._reset_rows(after, ended), after
        rows = ended.nonzero()[:, 0]
        last: list[Any] = [info["final_obs"][row] for row in rows] if "final_obs" in info else [None]
        if any(obs is None for obs in last):
            raise ConfigError(f"{self.name}: info has no 'final_obs' for an episode that ended; {_REMEDY}")
        final_obs = after.clone()
        final_obs[rows] = copied(np.stack(last), self.device)
        return after, final_obs

    def _reset_rows(self, after: Tensor, ended: Tensor) -> Tensor:
        """Reset the rows that ended; raises if this changed others, for example in a class that resets all."""
        first = copied(self.env.reset(options={"reset_mask": ended.numpy()})[0], self.device)
        if not np.array_equal(first[~ended], after[~ended], equal_nan=True):
            raise ConfigError(
                f"{self.name}: a reset with reset_mask changed rows that it does not mask, in the environment or "
                f"in a wrapper; {_REMEDY}"
            )
        return by_end(ended, first, after)


def _ends_pending_resets(env: Any) -> bool:
    """Whether a partial reset takes the place of the one in the next step.

    Workers of an `AsyncVectorEnv` without shared memory reset a second time.
    """
    return isinstance(env, SyncVectorEnv) or (isinstance(env, AsyncVectorEnv) and bool(env.shared_memory))


def _time_limit(env: Any) -> int | None:
    """The time limit of the first environment in the batch, or of the batch."""
    spec = env.unwrapped.get_attr("spec")[0] if hasattr(env.unwrapped, "get_attr") else env.spec
    return None if spec is None else spec.max_episode_steps
