"""The settings that define an environment, and `EnvOrder`, which creates it in another process.

A new process has only Gymnasium's own registrations and none of the user's modules, so an order contains both.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, parse_env_id

from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.environments.user_environments import UserEnvironments
    from rl_training.experiment.config import TrainConfig


@dataclass(frozen=True)
class EnvRecipe:
    """The settings that `make_env` reads, as plain data that can be unpickled without pydantic."""

    env_id: str | None
    env_kwargs: Mapping[str, Any]
    wrappers: tuple[Any, ...]
    given_envs: tuple[str, ...]
    allow_import: bool

    @classmethod
    def of(cls, config: EnvSettings) -> EnvRecipe:
        return cls(config.env_id, config.env_kwargs, config.wrappers, config.given_envs, config.allow_import)


EnvSettings: TypeAlias = "EnvRecipe | TrainConfig"


@dataclass(frozen=True)
class EnvOrder:
    """Everything that another process needs to create an environment as this process would."""

    recipe: EnvRecipe
    given: UserEnvironments | None = None
    specs: tuple[EnvSpec, ...] = ()  # registrations of the environment in this process
    modules: tuple[str, ...] = ()  # imported modules that define wrappers

    @classmethod
    def of(cls, config: EnvSettings, given: UserEnvironments | None) -> EnvOrder:
        by_user = given is not None and given.env is not None
        specs = () if by_user else _registered(config.env_id or "")
        return cls(EnvRecipe.of(config), given, specs, _modules_of(config, given))

    def packed(self) -> tuple[bytes, bool]:
        """The order as bytes, and whether the main script must be imported before they are unpickled.

        A registration that cannot be pickled is left out; importing the main script registers it again.
        """
        try:
            data = pickle.dumps(self)
            main = b"__main__" in data
        except Exception:
            data, main = pickle.dumps(replace(self, specs=())), True
        if main and not _main_is_a_file():
            raise ConfigError.of(
                "environments",
                f"{self.recipe.env_id} is defined in an interactive session, which another process cannot import; "
                "put it into a module, or set environments to local",
            )
        return data, main

    def prepare(self) -> None:
        """In the other process: import the modules and register the environment."""
        for module in self.modules:
            importlib.import_module(module)
        for spec in self.specs:
            if gym.registry.get(spec.id) == spec:
                continue
            if isinstance(spec.entry_point, str):
                with suppress(Exception):  # it may register the environment; `make_env` reports errors
                    importlib.import_module(spec.entry_point.partition(":")[0])
            gym.registry[spec.id] = spec


def _registered(env_id: str) -> tuple[EnvSpec, ...]:
    """The registrations of all versions of an id; importing its module registers `module:Id`."""
    if ":" in env_id:
        return ()
    try:
        namespace, name, _ = parse_env_id(env_id)
    except gym.error.Error:
        return ()
    return tuple(spec for spec in gym.registry.values() if (spec.namespace, spec.name) == (namespace, name))


def _modules_of(config: EnvSettings, given: UserEnvironments | None) -> tuple[str, ...]:
    objects = {} if given is None else given.wrappers
    names = [entry if isinstance(entry, str) else next(iter(entry)) for entry in config.wrappers]
    modules = dict.fromkeys(name.partition(":")[0] for name in names if ":" in name and name not in objects)
    return tuple(module for module in modules if config.allow_import and module in sys.modules)


def _main_is_a_file() -> bool:
    main = sys.modules["__main__"]
    return main.__spec__ is not None or Path(getattr(main, "__file__", None) or "").is_file()
