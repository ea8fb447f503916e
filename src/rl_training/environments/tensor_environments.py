"""Finding the `TensorEnv` that a configuration names or a user has given."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rl_training.environments.recipe import EnvSettings
from rl_training.environments.user_environments import TensorEnvMaker, UserEnvironments, is_tensor_class
from rl_training.errors import ConfigError
from rl_training.importing import find_optional

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig

# Classes of `torch_envs` by their ids.
BUILT_IN = {"torch/Pendulum-v1": "TorchPendulum", "torch/CartPole-v1": "TorchCartPole"}
_CLASS = re.compile(r"[\w.]+:[A-Za-z_][\w.]*")


def tensor_maker(config: EnvSettings, given: UserEnvironments | None = None) -> TensorEnvMaker | None:
    """The maker of the configured tensor environment; None if the environment is not one."""
    maker = _maker(config, given)
    if maker is not None and config.wrappers:
        raise ConfigError(
            f"wrappers: they apply to one Gymnasium environment, and {maker.name} steps tensors; leave them out",
            key="wrappers",
        )
    return maker


def _maker(config: EnvSettings, given: UserEnvironments | None) -> TensorEnvMaker | None:
    if given is not None and given.env is not None:
        return given.env if isinstance(given.env, TensorEnvMaker) else None
    env_id = config.env_id or ""
    if "env_id" in config.given_envs:
        return None
    if env_id in BUILT_IN:
        from rl_training.environments import torch_envs

        return TensorEnvMaker(env_id, getattr(torch_envs, BUILT_IN[env_id]))
    found = find_optional(env_id) if config.allow_import and _CLASS.fullmatch(env_id) else None
    return TensorEnvMaker(env_id, found) if is_tensor_class(found) else None


def require_tensor_settings(config: TrainConfig, maker: TensorEnvMaker) -> None:
    """Raise if the configuration asks for something that a tensor environment cannot do."""
    if config.environments in ("batched", "processes", "ray"):
        raise ConfigError(
            f"environments: {config.environments}: {maker.name} steps its simulations itself; set it to auto",
            key="environments",
        )
