"""Start a population, and check which runs may be trained together."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rl_training.algorithms.base import LearnerConfig
from rl_training.environments.user_environments import UserEnvironments
from rl_training.errors import ConfigError
from rl_training.experiment import files
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import resolve, spec_of
from rl_training.runs.callbacks import Callback
from rl_training.runs.fleet import train
from rl_training.runs.session import TrainResult
from rl_training.runs.spec import RunOptions

# Settings that do not affect the result of a run; members may differ in them.
_MAY_DIFFER = TrainConfig.affecting("run")
T = TypeVar("T")


def structure(config: TrainConfig) -> dict[str, Any]:
    """The settings that must be equal in a population: all but seeds, paths and float hyperparameters."""
    resolved, spec = resolve(config), spec_of(config)
    fields = {key: value for key, value in config.to_dict().items() if key not in _MAY_DIFFER}
    hyperparameters = resolved[LearnerConfig]
    others = {key: value for key, value in resolved.to_dict().items() if key not in dict(hyperparameters)}
    if "dataset_kind" in others and others.get("n_step", 1) > 1:  # members share the rows, which depend on gamma
        others["gamma"] = hyperparameters.gamma
    return fields | {"algo_kwargs": others | spec.learner.structure(hyperparameters)}


def signature(config: TrainConfig) -> str:
    """`structure` as text; runs with the same signature may be trained together."""
    return files.encode_json(structure(config)).decode()


def members_of(config: TrainConfig) -> list[TrainConfig]:
    """One configuration for each of `seeds`."""
    return [config.replace(seed=seed, seeds=None) for seed in config.seeds or ()]


def train_population(
    configs: Sequence[TrainConfig],
    *,
    callbacks: Sequence[Callback] | None = None,
    given: UserEnvironments | None = None,
    options: RunOptions | None = None,
    run_suffix: str | None = None,
    **others: Any,
) -> list[TrainResult]:
    """Train all configurations, as many at a time as `population` and the memory allow; results in their order.

    If there are several, each gets its own copy of `callbacks` and loggers. `given` are environments without an id;
    `others` are further fields of `RunSpec`.
    """
    _require_alike(configs)
    _require_enough_environments(configs, given)
    spec, shared = spec_of(configs[0]), dict[str, Any]()
    options, watching = replace(options or RunOptions(), suffix=run_suffix), tuple(callbacks or ())
    runs = []
    for config in configs:
        own = options
        if len(configs) > 1:
            own = replace(options, loggers=copied(options.loggers, "loggers"))
            watching = copied(callbacks or (), "callbacks")
        runs.append(spec.run_spec(config, callbacks=watching, given=given, options=own, shared=shared, **others))
    return train(runs)


def _require_alike(configs: Sequence[TrainConfig]) -> None:
    first = structure(configs[0])
    for config in configs[1:]:
        other = structure(config)
        flat = [{**one, **one["algo_kwargs"], "algo_kwargs": None} for one in (first, other)]
        for key in {**flat[0], **flat[1]}:
            if flat[0].get(key) != flat[1].get(key):
                raise ConfigError.of(
                    key,
                    f"members of a population may differ in seed and in float hyperparameters, not in "
                    f"this: {flat[0].get(key)} and {flat[1].get(key)}",
                )


def _require_enough_environments(configs: Sequence[TrainConfig], given: UserEnvironments | None) -> None:
    """Raise if the caller's only environment instance would be shared by several members."""
    maker, first = None if given is None else given.env, configs[0]
    steps = spec_of(first).chosen(first.regime)[0].name != "offline"
    if maker is None or not steps or first.population == "off" or len(configs) < 2:
        return
    maker.probe(first.env_kwargs)
    if maker.single_instance:
        raise ConfigError.of(
            "seeds",
            f"{maker.name} cannot be duplicated for every member; pass its class or a callable that "
            "creates a new one",
        )


def copied(things: Sequence[T], what: str) -> tuple[T, ...]:
    """Copies of stateful objects, which members cannot share; `what` names them in an error."""
    copies = []
    for thing in things:
        try:
            copies.append(copy.deepcopy(thing))
        except Exception as error:
            name = type(thing).__name__
            raise ConfigError.of(what, f"{name} cannot be copied for each member: {error}") from error
    return tuple(copies)
