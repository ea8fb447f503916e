"""The wrappers of a configuration: Gymnasium's by name, the user's own as `module:Class` or as Python objects.

Only wrappers without state across episodes and without files of their own are available by name, so that a resumed
run can replay an episode.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import vector

from rl_training.environments.recipe import EnvSettings
from rl_training.errors import ConfigError, cause_of, nearest
from rl_training.importing import find_named, would_import

Env = gym.Env[Any, Any]
Wrapping = Callable[..., Any]

_BY_NAME = (
    "AtariPreprocessing",
    "ClipAction",
    "ClipReward",
    "DelayObservation",
    "DiscretizeAction",
    "DiscretizeObservation",
    "FilterObservation",
    "FlattenObservation",
    "FrameStackObservation",
    "GrayscaleObservation",
    "MaxAndSkipObservation",
    "OrderEnforcing",
    "RepeatAction",
    "RescaleAction",
    "RescaleObservation",
    "ReshapeObservation",
    "ResizeObservation",
    "StickyAction",
    "TimeAwareObservation",
    "TimeLimit",
)
_WHY_NOT = {
    "NormalizeObservation": "it keeps statistics that no checkpoint holds; set normalize_observations: true",
    "NormalizeReward": "it keeps statistics that no checkpoint holds; online, set normalize_rewards: true",
    "RecordVideo": "it writes files of its own",
    "Autoreset": "episodes are reset by the run",
}


# Arguments of Gymnasium's wrappers that must not be lists.
_TUPLES = ("shape", "screen_size", "repeat_action_duration")
_WITH_STATISTICS = (
    gym.wrappers.NormalizeObservation,
    gym.wrappers.NormalizeReward,
    vector.NormalizeObservation,
    vector.NormalizeReward,
)


def require_no_statistics(env: Any) -> None:
    """Raise if a wrapper updates statistics: environments of training and evaluation would each have their own."""
    while isinstance(env, gym.Wrapper | gym.vector.VectorWrapper):
        for kind in _WITH_STATISTICS:
            if isinstance(env, kind) and env.update_running_mean:
                raise _refusal(kind.__name__)
        env = env.env
    if isinstance(env, gym.vector.AsyncVectorEnv):  # its workers answer for their environments
        for name, statistics in (("NormalizeObservation", "obs_rms"), ("NormalizeReward", "return_rms")):
            if all(env.call("has_wrapper_attr", statistics)) and any(env.call("update_running_mean")):
                raise _refusal(name)


def _refusal(name: str) -> ConfigError:
    return ConfigError.of("wrappers", f"{name} cannot be used here: {_WHY_NOT[name]}")


class _Bounded(gym.ActionWrapper[Any, Any, Any]):
    """Declares bounds for an unbounded action space; does not change actions."""

    def __init__(self, env: Env, low: Any, high: Any) -> None:
        super().__init__(env)
        box = env.action_space
        assert isinstance(box, gym.spaces.Box)
        self.action_space = gym.spaces.Box(
            np.where(np.isfinite(box.low), box.low, low).astype(box.dtype),
            np.where(np.isfinite(box.high), box.high, high).astype(box.dtype),
            dtype=box.dtype.type,
        )

    def action(self, action: Any) -> Any:
        return action


def _rescale_action(env: Env, min_action: Any, max_action: Any) -> Env:
    """Gymnasium's RescaleAction; an environment without bounds gets `min_action` and `max_action` as bounds."""
    box = env.action_space
    if isinstance(box, gym.spaces.Box) and not (np.isfinite(box.low).all() and np.isfinite(box.high).all()):
        env = _Bounded(env, min_action, max_action)
    return gym.wrappers.RescaleAction(env, min_action, max_action)


def _clip_action(env: Env) -> Env:
    """Gymnasium's ClipAction, which removes the declared bounds, with the bounds of `env`."""
    box, clipped = env.action_space, gym.wrappers.ClipAction(env)
    return _Bounded(clipped, box.low, box.high) if isinstance(box, gym.spaces.Box) else clipped


def wrap(env: Env, config: EnvSettings, given: Mapping[str, Wrapping]) -> Env:
    """Apply the configured wrappers to `env`, the first one innermost; `given`: Python objects by name."""
    for entry in config.wrappers:
        name, arguments = parts_of(entry)
        wrapper = given.get(name) or _find(name, config)
        try:
            own = copy.deepcopy(dict(arguments))  # a wrapper may change them
            env = wrapper(env, **{key: _argument(key, value) for key, value in own.items()})
        except Exception as error:
            problem = f"{name} with {arguments} does not fit {config.env_id}: {cause_of(error)}"
            raise ConfigError.of("wrappers", problem) from error
        if not isinstance(env, gym.Env):
            raise ConfigError.of("wrappers", f"{name} made a {type(env).__name__}, not a gymnasium.Env")
    require_no_statistics(env)
    return env


_REPLACED: dict[str, Wrapping] = {"ClipAction": _clip_action, "RescaleAction": _rescale_action}


def parts_of(entry: str | Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Name and arguments of one entry of `wrappers`."""
    if isinstance(entry, str):
        return entry, {}
    ((name, arguments),) = entry.items()
    return name, arguments or {}


def _find(name: str, config: EnvSettings) -> Wrapping:
    if ":" in name:
        if "<" in name:
            raise ConfigError.of(
                "wrappers",
                f"{name!r} was given in Python and cannot be imported; give it again, as in "
                "ManagedAlgorithm.load(path, wrappers=[…])",
            )
        if not config.allow_import:
            raise would_import(name, "wrappers")
        return find_named(name, "wrappers")
    if name in _REPLACED:
        return _REPLACED[name]
    if name in _BY_NAME:
        return getattr(gym.wrappers, name)
    if name in _WHY_NOT:
        raise _refusal(name)
    raise ConfigError.of(
        "wrappers", f"unknown wrapper {name!r}{nearest(name, _BY_NAME)} (one of your own is module:Class)"
    )


def _argument(name: str, value: Any) -> Any:
    """An argument in the type that wrappers expect: bounds as arrays, some lists as tuples."""
    if name.startswith(("min_", "max_")) and isinstance(value, list | float) and not isinstance(value, bool):
        return np.asarray(value, np.float32) if isinstance(value, list) else np.float32(value)
    return tuple(value) if name in _TUPLES and isinstance(value, list) else value


def time_limit_of(wrappers: Sequence[Any]) -> int | None:
    """The smallest time limit of the configured wrappers."""
    limits = [
        dict(arguments).get("max_episode_steps")
        for name, arguments in map(parts_of, wrappers)
        if name == "TimeLimit"
    ]
    return min((limit for limit in limits if isinstance(limit, int)), default=None)


def name_wrappers(wrappers: Any) -> tuple[list[Any], dict[str, Wrapping]]:
    """Split a list of wrappers from Python into entries of the configuration and callables by name."""
    if isinstance(wrappers, str | Mapping) or not isinstance(wrappers, Sequence):
        raise ConfigError("wrappers must be a list", key="wrappers")
    entries: list[Any] = []
    given: dict[str, Wrapping] = {}
    for wrapper in wrappers:
        if isinstance(wrapper, str | Mapping) or not callable(wrapper):
            entries.append(wrapper)  # the configuration checks it
            continue
        if (entry := _by_name(wrapper)) is not None:
            entries.append(entry)
            continue
        name = _place_of(wrapper)
        while name in given and given[name] is not wrapper:
            name += "'"
        given[name] = wrapper
        entries.append(name)
    return entries, given


def _by_name(wrapper: Any) -> str | dict[str, Any] | None:
    """The configuration's entry for one of Gymnasium's classes or a `partial` of it; None for others."""
    kind, arguments = wrapper, {}
    if isinstance(wrapper, functools.partial) and not wrapper.args:
        kind, arguments = wrapper.func, wrapper.keywords
    name = getattr(kind, "__name__", "")
    if name not in _BY_NAME or getattr(gym.wrappers, name) is not kind:
        return None
    if not arguments:
        return str(name)
    try:
        return {name: json.loads(json.dumps(arguments))}
    except TypeError:  # the arguments are not plain data
        return None


def _place_of(wrapper: Any) -> str:
    """`module:Name`; contains `<…>` if it cannot be imported."""
    module, name = getattr(wrapper, "__module__", None), getattr(wrapper, "__qualname__", None)
    return f"{module}:{name}" if module and name else f"python:<{type(wrapper).__name__}>"
