"""Hints for attributes, arguments and settings that the classes here do not have, many from other libraries."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

import gymnasium as gym

from rl_training.errors import ConfigError, argument_hints, setting_hint

_ATTRIBUTES = {
    "save_model": "use save(path)",
    "save_policy": "use export(path)",
    "logger": "use session.log(name, value) in a callback",
    "policy": "use predict(obs), predict_value(obs) or export(path)",
    "actor": "use predict(obs), predict_value(obs) or export(path)",
    "env": "see config.env_id",
    "get_env": "see config.env_id",
    "set_env": "use resume(env=…) or load(path, env=…)",
    "num_timesteps": "see metrics['global_step'] of the result of learn()",
    "replay_buffer": "rl-training dataset from-run RUN -o FILE writes it",
    "save_replay_buffer": "every checkpoint has the replay buffer, and resume() uses it",
    "fit": "use learn(total_timesteps, dataset=…)",
    "fit_online": "rl-training finetune RUN continues an offline run in the environment",
}
_SETTINGS = (
    *("eval_interval", "eval_episodes", "early_stopping", "checkpoint_interval", "max_hours", "num_envs", "device"),
    *("learning_rate", "batch_size", "gamma"),
)
_ARGUMENTS = {
    "n_steps": "use total_timesteps=…",
    "n_steps_per_epoch": "log_interval, eval_interval and checkpoint_interval are settings of the class",
    "evaluators": "eval_interval is a setting of the class",
    "callback": "use callbacks=…",
    "reset_num_timesteps": "a new model starts anew, and a trained one continues",
    "tb_log_name": "use run_suffix=…",
    "log_interval": "it is a setting of the class",
    "eval_env": "it is a setting of the class",
    "eval_freq": "eval_interval is a setting of the class",
    "n_eval_episodes": "use evaluate(num_episodes=…)",
    **dict.fromkeys(_SETTINGS, "it is a setting of the class; rl-training resume RUN --set changes that of a run"),
    **dict.fromkeys(("state", "episode_start"), "policies here are not recurrent; leave it out"),
}
with_argument_hints = argument_hints(_ARGUMENTS)


def attribute_hint(name: str) -> str:
    """The remedy for a missing attribute, or an empty string."""
    return f"; {_ATTRIBUTES[name]}" if name in _ATTRIBUTES else ""


def require_known(managed: str, settings: Mapping[str, Any], known: Collection[str], env: Any) -> None:
    """Raise for an unknown setting of the class `managed`, which `env` may take, and for a function."""
    for name in (name for name in settings if name not in known):
        hint = f"; pass env_kwargs={{{name!r}: …}}" if _takes(env, name) else setting_hint(name, known)
        raise ConfigError(f"{managed}: unknown setting {name!r}{hint}", key=name)
    if callable(settings.get("learning_rate")):
        raise ConfigError("learning_rate must be a number; use learning_rate_schedule", key="learning_rate")


def _takes(env: Any, name: str) -> bool:
    """Whether the constructor of an environment (an id, a class or a function) has an argument `name`."""
    try:
        make: Any = gym.spec(env).entry_point if isinstance(env, str) else env
        make = gym.envs.registration.load_env_creator(make) if isinstance(make, str) else make
        return name in inspect.signature(make).parameters
    except Exception:  # not an environment: this is reported elsewhere
        return False
