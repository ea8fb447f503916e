"""Creating an environment from a configuration or a user's object; its spaces and its time limit."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.environments.recipe import EnvSettings
from rl_training.environments.user_environments import (
    EnvMaker,
    UserEnvironments,
    close_or_warn,
    env_error,
    not_made,
    own_copy,
    tensor_maker,
)
from rl_training.environments.wrapping import time_limit_of, wrap
from rl_training.errors import ConfigError, MissingDependencyError, nearest
from rl_training.importing import current_folder, not_importable, would_import
from rl_training.observation_spaces import Flattening, Image, Misfit, describe
from rl_training.ogbench import registered_id
from rl_training.spaces import SpaceSpec

_D4RL = re.compile(r"[a-z0-9]+-(random|medium|expert|full-replay|umaze|large)")
GIVE_CLASS = "or give the class in Python"
_TENSOR_ENV = (
    *("num_envs", "device", "single_observation_space", "single_action_space", "max_episode_steps"),
    *("reset", "step", "close"),
)


def make_env(config: EnvSettings, given: UserEnvironments | None = None) -> gym.Env[Any, Any]:
    """Create and wrap `config.env_id`, or the environment in `given`; raises one-line errors."""
    env = _bare(config, given)
    try:
        return wrap(env, config, {} if given is None else given.wrappers)
    except BaseException:
        close_env(env, given)
        raise


def _bare(config: EnvSettings, given: UserEnvironments | None) -> gym.Env[Any, Any]:
    env_id = config.env_id
    if tensor_maker(config, given) is not None:
        raise env_error(f"{env_id} is a TensorEnv; it trains and evaluates, and this needs a Gymnasium environment")
    if given is not None and isinstance(given.env, EnvMaker):
        return given.env(config.env_kwargs)
    if env_id is None:
        raise env_error("this needs an environment; set env_id")
    argument = "env" if given is None else given.argument
    key = "env_id" if argument == "env" else argument
    if "env_id" in config.given_envs:
        raise env_error(
            f"{env_id} was given as a Python object and cannot be made by its name; give it again, as in "
            f"rl_training.load(path, {argument}=…), or name its class: --set {key}=module:Class --allow-import",
            key,
        )
    if ":" in env_id and not config.allow_import:
        ways = f", {GIVE_CLASS}, as in Algorithm({argument}=…) or rl_training.load(path, {argument}=…)"
        raise would_import(env_id, key, ways)
    try:
        with current_folder() if config.allow_import else nullcontext():
            return _make(env_id, own_copy(config.env_kwargs))
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        raise _missing(env_id, error) from error
    except MissingDependencyError:
        raise
    except gym.error.UnregisteredEnv:
        raise _unknown(env_id) from None
    except Exception as error:
        raise not_made(env_id, config.env_kwargs, error) from error


def _make(env_id: str, kwargs: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """Create a registered id; `module:Name` may also name a class, if the module registers no such id."""
    try:
        return gym.make(registered_id(env_id), disable_env_checker=True, **kwargs)
    except gym.error.UnregisteredEnv:
        module, _, name = env_id.rpartition(":")
        found: Any = sys.modules.get(module)  # imported by `gym.make`
        for part in name.split("."):
            found = getattr(found, part, None)
        if not (isinstance(found, type) and issubclass(found, gym.Env)):
            raise
        return found(**kwargs)


def _unknown(env_id: str) -> ConfigError:
    """The error for an id that is not registered, with a remedy."""
    if env_id.startswith("ALE/"):
        return env_error(f"{env_id}: Atari is not supported, its observations are images")
    if env_id.endswith(".py"):
        hint = f"; a class in a file is {Path(env_id).stem}:CLASS, with --allow-import, from the file's folder"
    elif ":" in env_id:
        hint = "; its module neither registers such an id nor has a gymnasium.Env of that name"
    elif _D4RL.match(env_id):
        hint = "; that is a data set of D4RL; rl-training configs lists presets, such as iql/hopper-medium"
    else:
        hint = nearest(env_id, gym.registry) or "; see gymnasium.registry for the known ones"
    return env_error(f"unknown environment {env_id!r}{hint}")


def _missing(env_id: str, error: Exception) -> MissingDependencyError:
    """The error for an environment whose package is missing; the remedy follows from its entry point."""
    module, _, name = env_id.rpartition(":")
    if module:
        return not_importable(module, error, "env_id")
    spec = gym.registry.get(name)
    entry = str(spec.entry_point) if spec is not None else ""
    if "gymnasium-robotics" in str(error):
        remedy = f"use {env_id.rpartition('-v')[0]}-v5"
    elif entry.startswith("gymnasium.envs.mujoco"):
        remedy = "pip install 'gymnasium[mujoco]'"
    elif entry.startswith("gymnasium.envs.box2d"):
        remedy = "pip install 'gymnasium[box2d]'"
    else:
        remedy = "is it importable from here?"
    cause = " ".join(str(error).split())
    return MissingDependencyError(
        f"env_id: {env_id} needs a package that is not installed ({cause}); {remedy}", key="env_id"
    )


def close_env(env: gym.Env[Any, Any], given: UserEnvironments | None = None) -> None:
    """Close an environment made by `make_env`, unless it is the user's own object."""
    if given is not None and isinstance(given.env, EnvMaker):
        given.env.close(env)
    else:
        close_or_warn(env)


def read_spaces(env: gym.Env[Any, Any], *, discrete: bool | None = None) -> SpaceSpec:
    """The spaces of `env`; raises if they are not supported. `discrete`: what the algorithm needs, None for any."""
    name = env.spec.id if env.spec is not None else type(env).__name__
    for attribute in ("observation_space", "action_space"):
        if not isinstance(space := getattr(env, attribute, None), gym.Space):
            raise env_error(f"{name} has the {attribute} {space!r:.60}; set it to a gymnasium.Space in __init__")
    if not discrete:
        _require_bounds(name, env)
    return SpaceSpec(**_observations(name, env.observation_space), **_actions(name, env.action_space, discrete))


def _observations(name: str, space: gym.Space[Any]) -> dict[str, Any]:
    """The length of a flat observation, and the description of the space if it is not a flat vector."""
    try:
        flattening = flattening_of(space)
    except Image:
        raise env_error(
            f"{name} has images among its observations, which no network here supports; leave them out "
            "with FilterObservation, or use their pixels as numbers: wrappers: [FlattenObservation]"
        ) from None
    except Misfit:
        kind = f"{type(space).__name__} of shape {space.shape}" if space.shape else type(space).__name__
        remedy = (
            "use FlattenObservation: wrappers: [FlattenObservation]"
            if space.is_np_flattenable
            else "their length varies, so they need a wrapper of your own: wrappers: [module:Class]"
        )
        raise env_error(f"{name} has observations of type {kind}; flat vectors are needed: {remedy}") from None
    if flattening is not None:
        return {"obs_dim": flattening.size, "observation": flattening.description}
    assert space.shape is not None
    return {"obs_dim": int(space.shape[0])}


def _actions(name: str, space: gym.Space[Any], discrete: bool | None) -> dict[str, Any]:
    """The number of discrete actions, or the bounds of continuous ones."""
    if isinstance(space, gym.spaces.Discrete):
        if discrete is False:
            raise env_error(
                f"{name} has discrete actions and this algorithm needs continuous ones; use dqn, or with "
                "data bc, cql or iql"
            )
        return {"num_actions": int(space.n), "start": int(space.start), "action_dtype": str(space.dtype)}
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
        raise env_error(
            f"{name} has actions {' '.join(str(space).split())}; a flat Box or Discrete is needed: use an action "
            "wrapper of your own: wrappers: [module:Class]"
        )
    if discrete:
        raise env_error(f"{name} has continuous actions and dqn needs discrete ones; use sac or td3")
    if not np.issubdtype(space.dtype, np.floating):
        raise env_error(f"{name} has actions of type {space.dtype}; a floating-point Box is needed")
    low, high = (tuple(float(x) for x in bound) for bound in (space.low, space.high))
    return {"low": low, "high": high, "action_dtype": str(space.dtype)}


def _require_bounds(name: str, env: gym.Env[Any, Any]) -> None:
    """Raise for continuous actions without bounds; the message contains the wrapper that sets bounds."""
    space = env.action_space
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1 or _is_bounded(space):
        return
    layer: Any = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, gym.wrappers.ClipAction) and _is_bounded(layer.env.action_space):
            raise env_error(
                f"{name} has unbounded actions because ClipAction takes their bounds away; leave it out, "
                "or write wrappers: [ClipAction], which keeps them: no action here is beyond its bounds"
            )
        layer = layer.env
    low, high = np.nan_to_num(space.low, neginf=-1.0), np.nan_to_num(space.high, posinf=1.0)
    arguments = "min_action: -1, max_action: 1"
    if np.any(low >= high):  # only one finite bound, beyond ±1
        low = np.where(np.isfinite(space.low), low, high - 2.0)
        high = np.where(np.isfinite(space.high), high, low + 2.0)
        arguments = f"min_action: {low.tolist()}, max_action: {high.tolist()}"
    raise env_error(
        f"{name} has unbounded actions; wrap it in RescaleAction or give it finite bounds: "
        f"wrappers: [{{RescaleAction: {{{arguments}}}}}]"
    )


def _is_bounded(space: gym.Space[Any]) -> bool:
    return isinstance(space, gym.spaces.Box) and bool(np.all(np.isfinite(space.low) & np.isfinite(space.high)))


def flattening_of(space: gym.Space[Any]) -> Flattening | None:
    """The flattening of `space`; None if its observations are flat vectors. Raises `Misfit` if it is not supported.

    A Box of several dimensions is not flattened implicitly, because this would discard its spatial structure.
    """
    description = describe(space)
    if description["kind"] != "Box":
        return Flattening(description)
    if len(description["shape"]) != 1:
        raise Misfit("Box")
    return None


def spaces_of(
    config: EnvSettings, *, discrete: bool | None = None, given: UserEnvironments | None = None
) -> SpaceSpec:
    """The spaces of the configured environment."""
    if (maker := tensor_maker(config, given)) is not None:
        tensor_env = maker(1, "cpu", config.env_kwargs)
        try:
            return require_valid(tensor_env, maker.name, discrete=discrete)
        finally:
            maker.close(tensor_env)
    env = make_env(config, given)
    try:
        return read_spaces(env, discrete=discrete)
    finally:
        close_env(env, given)


def require_valid(env: Any, name: str, *, discrete: bool | None = None) -> SpaceSpec:
    """The spaces of a `TensorEnv`; raises if an attribute is missing or not supported. It takes no step."""
    problem, limit = None, getattr(env, "max_episode_steps", None)
    if missing := [attribute for attribute in _TENSOR_ENV if not hasattr(env, attribute)]:
        problem = (
            f"is not a TensorEnv, it has no {', '.join(missing)}; environments of other libraries need an adapter "
            "of rl_training.environments.adapters"
        )
    elif not isinstance(env.num_envs, int) or env.num_envs < 1:
        problem = f"has num_envs {env.num_envs!r}; make it the number of simulations"
    elif not hasattr(env.device, "type"):
        problem = f"has the device {env.device!r}; make it a torch.device"
    elif limit is not None and (not isinstance(limit, int) or limit < 1):
        problem = f"has max_episode_steps {limit!r}; make it a number of steps or None"
    elif not isinstance(space := env.single_observation_space, gym.spaces.Box) or len(space.shape) != 1:
        problem = (
            f"has observations {space}; a TensorEnv needs flat vectors, a Box of one dimension: concatenate them "
            "in step"
        )
    if problem is not None:
        raise env_error(f"{name} {problem}")
    size = env.single_observation_space.shape[0]
    return SpaceSpec(int(size), **_actions(name, env.single_action_space, discrete))


def time_limit(config: EnvSettings, given: UserEnvironments | None = None) -> int | None:
    """The time limit in steps that the configured environment or a wrapper declares; None if none does."""
    limits = time_limit_of(config.wrappers), _own_time_limit(config, given)
    return min((limit for limit in limits if limit is not None), default=None)


def _own_time_limit(config: EnvSettings, given: UserEnvironments | None) -> int | None:
    """The time limit without wrappers."""
    if given is not None and given.env is not None:
        return given.env.time_limit
    if config.env_id is None:
        return None
    declared = config.env_kwargs.get("max_episode_steps")
    if declared is None:
        spec = gym.registry.get(registered_id(config.env_id.rpartition(":")[2]))
        declared = None if spec is None else spec.max_episode_steps
    return declared if isinstance(declared, int) and declared > 0 else None
