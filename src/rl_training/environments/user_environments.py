"""Environments given as an object, a class or a callable instead of a Gymnasium id, and tensor environments.

The configuration is plain data and contains only their names; `UserEnvironments` contains their makers.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from rl_training.environments.recipe import EnvSettings
from rl_training.environments.wrapping import Wrapping
from rl_training.errors import ConfigError, cause_of
from rl_training.importing import find_optional, is_importable

if TYPE_CHECKING:
    from rl_training.environments.tensor_env import TensorEnv
    from rl_training.experiment.config import TrainConfig

Env = gym.Env[Any, Any]
# Classes of `torch_envs` by their ids.
BUILT_IN = {"torch/Pendulum-v1": "TorchPendulum", "torch/CartPole-v1": "TorchCartPole"}
_CLASS = re.compile(r"[\w.]+:[A-Za-z_][\w.]*")
# Attributes by which a `TensorEnv` is recognised.
_OF_TENSOR_ENV = ("num_envs", "device", "single_observation_space", "single_action_space", "step")


class EnvMaker:
    """Creates environments from a user's object, class or callable."""

    def __init__(
        self, name: str, make: Callable[..., Any], *, instance: Env | None = None, probed: bool = False
    ) -> None:
        """`instance`: an object that cannot be constructed again. `probed`: `make` returns new environments."""
        self.name = name
        self.instance = None if instance is None else instance.unwrapped
        self.time_limit: int | None = None  # of the last environment
        self._make = make
        self._probed = probed or self.single_instance
        self._unused: list[Env] = []

    @property
    def single_instance(self) -> bool:
        """Whether all environments made here are one object, or wrappers of one object."""
        return self.instance is not None

    def __call__(self, kwargs: Mapping[str, Any]) -> Env:
        try:
            env: Any = self._unused.pop() if self._unused else self._make(**own_copy(kwargs))
        except Exception as error:
            clash = kwargs and isinstance(error, TypeError) and "keyword argument" in str(error)
            remedy = "; give others with env_kwargs={…}" if clash else ""
            raise not_made(self.name, kwargs, error, remedy) from error
        if not isinstance(env, gym.Env):
            raise not_made(self.name, kwargs, TypeError(f"it made a {type(env).__name__}, not a gymnasium.Env"))
        self.time_limit = _limit_of(env)
        return env

    def probe(self, kwargs: Mapping[str, Any]) -> None:
        """Call the factory twice to check that it returns distinct environments; both are used later."""
        if not self._probed:
            first, second = self(kwargs), self(kwargs)
            self._probed = True
            if first.unwrapped is second.unwrapped:  # two wrappers of one object share its episode
                self.instance = first.unwrapped
            else:
                self._unused = [second, first]

    @property
    def importable(self) -> bool:
        """Whether another process can create such environments."""
        if isinstance(self._make, _Registered):
            entry = self._make.spec.entry_point
            return _is_plain(self._make.spec.kwargs) and (isinstance(entry, str) or is_importable(entry))
        return not self.single_instance and is_importable(self._make)

    def with_render_mode(self, mode: str) -> EnvMaker:
        """A maker of the same environments with a render mode; `self` if they do not accept one."""
        if self.single_instance or not _accepts(self._make, "render_mode"):
            return self
        return EnvMaker(self.name, functools.partial(self._make, render_mode=mode), probed=True)

    def close(self, env: Env) -> None:
        """Close an environment made here, unless it is the user's own object."""
        if not self.single_instance:
            close_or_warn(env)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_unused": []}


class TensorEnvMaker:
    """Creates a `TensorEnv` from its class, or returns the user's only instance."""

    importable = False

    def __init__(self, name: str, make: Any, *, single_instance: bool = False) -> None:
        """`make`: a class that is called with `num_envs`, `device` and `env_kwargs`, or an instance."""
        self.name, self._make, self.single_instance = name, make, single_instance
        self.instance: Any = make if single_instance else None

    @property
    def time_limit(self) -> int | None:
        """The limit that the instance or its class declares."""
        return getattr(self._make, "max_episode_steps", None)

    def number(self, configured: int) -> int:
        """The number of simulations: that of an instance, or `configured`; raises if they contradict each other."""
        number = int(self._make.num_envs) if self.single_instance else configured
        if configured not in (1, number):
            raise ConfigError.of(
                "num_envs",
                f"{self.name} has {number} simulations, got {configured}; leave it out, or give an environment "
                "with as many",
            )
        return number

    def __call__(self, num_envs: int, device: Any, kwargs: Mapping[str, Any]) -> TensorEnv:
        if self.single_instance:
            env: TensorEnv = self._make
        else:
            try:
                env = self._make(num_envs=num_envs, device=device, **own_copy(kwargs))
            except Exception as error:
                raise not_made(self.name, kwargs, error) from error
            if (made := getattr(env, "num_envs", num_envs)) != num_envs:
                raise not_made(self.name, kwargs, ValueError(f"its num_envs is {made!r}, not {num_envs}"))
        return env

    def probe(self, kwargs: Mapping[str, Any]) -> None:
        """Nothing to probe: a class makes new environments, an instance does not."""

    def with_render_mode(self, mode: str) -> TensorEnvMaker:
        return self

    def close(self, env: TensorEnv) -> None:
        """Close an environment made here, unless it is the user's own object."""
        if not self.single_instance and hasattr(env, "close"):  # `require_valid` raises if there is none
            close_or_warn(env)


def own_copy(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for one environment, which may change them."""
    return copy.deepcopy(dict(kwargs))


def close_or_warn(env: Any) -> None:
    """Close an environment; an error there must not hide its results or an earlier error."""
    try:
        env.close()
    except (Exception, SystemExit) as error:
        name = type(getattr(env, "unwrapped", env)).__name__
        warnings.warn(f"{name} could not be closed: {cause_of(error)}; correct its method close", stacklevel=2)


def _is_tensor_class(found: Any) -> bool:
    """Whether `found` is a class that may make a `TensorEnv`: it steps, and is not one of Gymnasium's."""
    if not isinstance(found, type) or issubclass(found, gym.Env | gym.vector.VectorEnv):
        return False
    steps = all(callable(getattr(found, name, None)) for name in ("reset", "step"))
    return steps and any(hasattr(found, name) for name in ("close", "single_observation_space"))


def not_made(name: str | None, kwargs: Mapping[str, Any], error: Exception, remedy: str = "") -> ConfigError:
    """The error for an environment that could not be created."""
    return env_error(f"{name} could not be made with env_kwargs {dict(kwargs)}: {cause_of(error)}{remedy}")


def env_error(text: str, key: str = "env_id") -> ConfigError:
    """The error for a setting `env_id`, or `eval_env`, that cannot be used."""
    return ConfigError.of(key, text)


@dataclass(frozen=True)
class UserEnvironments:
    """The user's environments and wrappers that a configuration cannot contain."""

    env: EnvMaker | TensorEnvMaker | None = None
    eval_env: EnvMaker | TensorEnvMaker | None = None
    wrappers: Mapping[str, Wrapping] = field(default_factory=dict)
    argument: str = "env"  # of `load`, for messages: `eval_env` if `env` is the run's `eval_env`

    def evaluation(self, config: TrainConfig) -> tuple[TrainConfig, UserEnvironments]:
        """Configuration and makers for evaluation: `eval_env`, if set, replaces `env_id`."""
        if config.eval_env is None:
            return config, self
        names = ("env_id",) if "eval_env" in config.given_envs else ()
        own = config.replace(env_id=config.eval_env, env_kwargs={}, eval_env=None, given_envs=names)
        return own, UserEnvironments(self.eval_env, wrappers=self.wrappers, argument="eval_env")

    def check(self, config: TrainConfig, *, evaluated: bool) -> None:
        """Raise if an environment cannot be created in another process or several times, as the run needs."""
        for maker in (self.env, self.eval_env):
            if maker is not None and not config.in_this_process:
                _require_importable(maker.name, maker.importable)
        for name, wrapper in self.wrappers.items():
            if not config.in_this_process:
                _require_importable(name, is_importable(wrapper))
        if self.env is not None and (config.num_envs > 1 or (evaluated and config.eval_env is None)):
            self.env.probe(config.env_kwargs)
        if self.eval_env is not None and evaluated:
            self.eval_env.probe({})
            if self.env is not None and self.eval_env.single_instance:
                self.env.probe(config.env_kwargs)
        self.require_apart()
        if isinstance(self.env, EnvMaker) and self.env.single_instance and config.num_envs > 1:
            raise ConfigError.of(
                "num_envs",
                f"{self.env.name} cannot be made again; set num_envs to 1, or give its class or a callable that "
                "makes a new one",
            )

    def require_apart(self) -> None:
        """Raise if evaluation would reset the episodes of training, because both have the same object."""
        if self.env is None or self.eval_env is None or self.env.instance is None:
            return
        if self.env.instance is self.eval_env.instance:
            problem = "eval_env: an evaluation would reset the episodes of training; pass another object or a class"
            raise ConfigError(problem, key="eval_env")


def tensor_maker(config: EnvSettings, given: UserEnvironments | None = None) -> TensorEnvMaker | None:
    """The maker of the configured tensor environment; None if the environment is not one."""
    maker = _maker(config, given)
    if maker is not None and config.wrappers:
        raise ConfigError.of(
            "wrappers", f"they apply to one Gymnasium environment, and {maker.name} steps tensors; leave them out"
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
    return TensorEnvMaker(env_id, found) if _is_tensor_class(found) else None


def require_tensor_settings(config: TrainConfig, maker: TensorEnvMaker) -> None:
    """Raise if the configuration asks for something that a tensor environment cannot do."""
    if config.environments in ("batched", "processes", "ray"):
        raise ConfigError.of(
            "environments", f"{config.environments}: {maker.name} steps its simulations itself; set it to auto"
        )


@dataclass(frozen=True)
class _Registered:
    """Creates an environment from its spec; picklable if its entry point is importable."""

    spec: EnvSpec

    def __call__(self, **kwargs: Any) -> Env:
        return gym.make(self.spec, disable_env_checker=True, **kwargs)


@dataclass(frozen=True)
class EnvSource:
    """A user's environment: its maker, and the fields for the configuration."""

    name: str | None
    maker: EnvMaker | TensorEnvMaker | None = None
    by_name: bool = True  # whether the name is enough to create it
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def resolve_env(env: Any, key: str = "env_id") -> EnvSource:
    """Resolve an environment given as id, object, class or callable."""
    if env is None or isinstance(env, str):
        return EnvSource(env)
    if isinstance(env, gym.Env):
        if getattr(env.unwrapped, "num_envs", 1) != 1:
            raise ConfigError.of(
                key,
                f"{type(env.unwrapped).__name__} steps several simulations in one call; wrap it in an adapter of "
                "rl_training.environments.adapters",
            )
        return _from_object(env, key)
    if isinstance(env, type) and issubclass(env, gym.Env):
        place = _place_of(env)
        maker = EnvMaker(env.__name__, env, probed=True)
        return EnvSource(place or env.__name__, maker, by_name=place is not None)
    if _is_tensor_class(env):
        place = _place_of(env)
        return EnvSource(place or env.__name__, TensorEnvMaker(env.__name__, env), by_name=place is not None)
    bare = getattr(env, "unwrapped", env)
    if isinstance(env, gym.vector.VectorEnv):
        from rl_training.environments.adapters.gymnasium_vector import VectorEnvAdapter

        env = VectorEnvAdapter(env)
    if all(hasattr(env, name) for name in _OF_TENSOR_ENV):
        name = getattr(env, "name", type(env).__name__)
        only = TensorEnvMaker(name, env, single_instance=True)
        only.instance = bare
        return EnvSource(name, only, by_name=False)
    if callable(env) and not isinstance(env, type):
        name = _name_of(env)
        return EnvSource(name, EnvMaker(name, env), by_name=False)
    kind = env.__name__ if isinstance(env, type) else type(env).__name__
    raise ConfigError(
        f"{key} must be a Gymnasium id, a gymnasium.Env, its class or a callable that makes one, or a TensorEnv, "
        f"got {kind}",
        key=key,
    )


def _place_of(env: type[Any]) -> str | None:
    """`module:Class`, if another process can import this class under that name; else None.

    Gymnasium would interpret the name as an id if one is registered, in any version.
    """
    name = env.__qualname__
    if env.__module__ in ("__main__", "__mp_main__") or not is_importable(env):
        return None
    return None if any(spec.name == name for spec in gym.registry.values()) else f"{env.__module__}:{name}"


def _from_object(env: Env, key: str) -> EnvSource:
    spec = env.spec
    if spec is None or any(wrapper.kwargs is None for wrapper in spec.additional_wrappers):
        name = type(env.unwrapped).__name__
        return EnvSource(name, EnvMaker(name, lambda **_: env, instance=env), by_name=False)
    maker = EnvMaker(spec.id, _Registered(spec), probed=True)
    registered = gym.registry.get(spec.id)
    if registered is None or spec.additional_wrappers:
        return EnvSource(spec.id, maker, by_name=False)
    kwargs = {
        name: value
        for name, value in spec.kwargs.items()
        if not _is_plain(value) or name not in registered.kwargs or registered.kwargs[name] != value
    }
    if spec.max_episode_steps != registered.max_episode_steps:
        kwargs["max_episode_steps"] = -1 if spec.max_episode_steps is None else spec.max_episode_steps
    if not _is_plain(kwargs) or (kwargs and key == "eval_env"):  # `env_kwargs` are not passed to `eval_env`
        return EnvSource(spec.id, maker, by_name=False)
    return EnvSource(spec.id, maker, kwargs=kwargs)


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)


def _accepts(make: Callable[..., Any], name: str) -> bool:
    """Whether `make` accepts a keyword argument of that name."""
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return False
    return name in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def _name_of(make: Any) -> str:
    while isinstance(make, functools.partial):
        make = make.func
    name: str = getattr(make, "__name__", type(make).__name__)
    return name.strip("<>")


def _limit_of(env: Env) -> int | None:
    """The `TimeLimit` of an environment."""
    inner: Any = env
    while isinstance(inner, gym.Wrapper):
        if isinstance(inner, gym.wrappers.TimeLimit):
            return int(inner._max_episode_steps)
        inner = inner.env
    return None


def _require_importable(name: str, importable: bool) -> None:
    if not importable:
        raise ConfigError.of(
            "environments",
            f"{name} cannot be made in another process; give a class or function of a module, or set environments "
            "to local",
        )
