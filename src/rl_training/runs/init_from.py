"""Initialise a run with the networks of another run (`init_from`)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch

from rl_training.algorithms.base import Learner
from rl_training.data.loading import DatasetConfig
from rl_training.errors import ConfigError
from rl_training.experience.moments import ObservationConfig
from rl_training.experiment.checkpointing import Checkpoint, checkpoint_errors
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.retention import find_origin
from rl_training.models.mlp import NetworkShape
from rl_training.runs.state import (
    clock_of,
    config_of,
    is_policy_tensor,
    read_run_checkpoint,
    restore_learner,
    spaces_from,
)
from rl_training.spaces import SpaceSpec

# `actor_starts` of a run whose critics start at random and whose actor does not.
ACTOR_STARTS = 5_000
# Settings of networks that may differ without a difference in the shapes of their tensors.
_OF_FUNCTION = ("network", "network_kwargs", "activation")
# Settings that determine the units of values.
_UNITS = ("gamma", "reward_scale", "reward_shift", "reward_range_scaling", "normalize_rewards", "value_limit")

_log = logging.getLogger(__name__)


def starting_point(config: TrainConfig, own: Checkpoint | None) -> Checkpoint | None:
    """The checkpoint that provides the initial networks: the run's own, or that of `init_from`; None if neither."""
    if own is not None or config.init_from is None:
        return own
    return read_run_checkpoint(find_origin(config.init_from, config.seed))


def initialise_from(
    learner: Learner, checkpoint: Checkpoint, spaces: SpaceSpec, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Copy the policy of another run, and every other network whose tensors all fit, into `learner`.

    A target network that is missing or does not fit is initialised from its source network. `settings` are those of
    this run's `algo_kwargs`. Returns those of them that follow from the networks that were copied.
    """
    if difference := spaces.difference(spaces_from(checkpoint), "this run has"):
        raise ConfigError.of("init_from", f"{checkpoint.path} was trained for other spaces ({difference})")
    own, given = learner.state_dict()["networks"], checkpoint.tensors["networks"]
    shapes = _shapes(given)
    differing = [name for name, shape in _shapes(own).items() if shapes.get(name) != shape]
    # A network with additional layers does not fit either.
    differing += sorted(name for name in given.keys() - own.keys() if ".net." in name)
    _require_same_policy(differing, checkpoint, settings)
    _require_same_function(checkpoint, settings)
    _warn_about_distribution(learner, checkpoint)
    mismatched = {_network(name) for name in differing} & {_network(name) for name in own}
    if mismatched and any(_network(name) in mismatched for name in given):
        _log.warning("init_from: not copied, because they do not fit: %s", ", ".join(sorted(mismatched)))
    tensors = {name: tensor if _network(name) in mismatched else given[name] for name, tensor in own.items()}
    learner.load_networks(_with_targets(learner, tensors, mismatched))
    if "temperature" not in mismatched:
        _warn_about_temperature(learner, settings, checkpoint)
    if "model.critics" not in mismatched:
        _warn_about_units(learner, settings, checkpoint)
    if "model.critics" not in mismatched or getattr(learner.config, "actor_starts", 0) is not None:
        return {}
    learner.config = learner.config.model_copy(update={"actor_starts": ACTOR_STARTS})
    return {"actor_starts": ACTOR_STARTS}


def _require_same_policy(differing: Iterable[str], checkpoint: Checkpoint, settings: Mapping[str, Any]) -> None:
    """Raise if a tensor of the policy is among those that differ."""
    if name := next(filter(is_policy_tensor, differing), None):
        there, here = config_of(checkpoint).algo_kwargs.get("hidden_sizes"), settings.get("hidden_sizes")
        sizes = f", hidden_sizes {there} there and {here} here" if there != here else ""
        raise ConfigError.of(
            "init_from",
            f"the {checkpoint.records['config']['algo']} policy of {checkpoint.path} does not fit "
            f"(first difference: {name}{sizes}); use the same network, hidden_sizes, kind of actor and "
            "normalize_observations",
        )


def _with_targets(
    learner: Learner, tensors: dict[str, torch.Tensor], mismatched: Collection[str]
) -> dict[str, torch.Tensor]:
    """`tensors` with each mismatched target network replaced by its source network."""
    paths = {
        module: f"{name}.{path}".rstrip(".")
        for name, root in learner.all_modules().items()
        for path, module in root.named_modules()
    }
    for target, source in learner.targets().items():
        if paths[target] in mismatched:
            tensors |= {f"{paths[target]}.{key}": tensors[f"{paths[source]}.{key}"] for key in source.state_dict()}
    return tensors


def _require_same_function(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> None:
    """Raise if networks with fitting tensors would compute something else."""
    before = config_of(checkpoint).algo_kwargs
    normalised = all(one.get("layer_norm") or one.get("network") == "simba" for one in (before, settings))
    for name in (*_OF_FUNCTION, *(("layer_norm_epsilon",) if normalised else ())):
        usual = NetworkShape.model_fields[name].get_default(call_default_factory=True)
        was, value = before.get(name, usual), settings.get(name, usual)
        if was != value:
            raise ConfigError.of(
                f"algo_kwargs.{name}",
                f"{value!r} differs from the {was!r} of the networks in {checkpoint.path}; use it for init_from",
            )


def continue_offline_run(learner: Learner, checkpoint: Checkpoint, config: TrainConfig) -> dict[str, Any]:
    """Restore optimisers, counters and random state too, if `checkpoint` is an offline run of the same algorithm.

    A run with another seed has its own random numbers. Returns settings that follow from what cannot be restored.
    """
    before = config_of(checkpoint)
    with checkpoint_errors(checkpoint):
        offline = clock_of(checkpoint.records["trainer"]).phase == "offline"
    if before.algo != config.algo or not offline:
        return {}
    if "optimizers" not in checkpoint.tensors:
        _log.warning("init_from: %s has no optimisers; they and the count of updates start anew", checkpoint.path)
        return _remaining_cloning(learner, checkpoint)
    own = learner.state_dict()
    if any(_shapes(own[part]) != _shapes(checkpoint.tensors[part]) for part in ("networks", "optimizers")):
        _log.warning(
            "init_from: %s has other optimisers or networks; its optimisers are not copied", checkpoint.path
        )
        return _remaining_cloning(learner, checkpoint)
    random = learner.generator.get_state()
    with checkpoint_errors(checkpoint):
        restore_learner(learner, checkpoint)
    if before.seed != config.seed:
        learner.generator.set_state(random)
    return {}


def _remaining_cloning(learner: Learner, checkpoint: Checkpoint) -> dict[str, Any]:
    """`bc_steps` without the updates of `checkpoint`, if the learner starts with cloning."""
    if not (steps := getattr(learner.config, "bc_steps", 0)):
        return {}
    with checkpoint_errors(checkpoint):
        left = {"bc_steps": max(0, steps - int(checkpoint.records["trainer"]["counters"]["updates"]))}
    learner.config = learner.config.model_copy(update=left)
    return left


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _warn_about_distribution(learner: Learner, checkpoint: Checkpoint) -> None:
    """Warn if `policy_distribution` differs: the policy then has the same mode, but another spread."""
    now, config = getattr(learner.model.actor, "distribution", None), config_of(checkpoint)
    before = config.algo_kwargs.get("policy_distribution", "gaussian" if config.algo == "iql" else "tanh")
    if now is not None and now != before:
        message = "init_from: the policy of %s is %r and this run's %r: its mode is the same, its spread differs"
        _log.warning(message, checkpoint.path, before, now)


def _warn_about_units(learner: Learner, settings: Mapping[str, Any], checkpoint: Checkpoint) -> None:
    """Warn if the copied critics were trained with rewards or values in other units."""
    fields = DatasetConfig.model_fields | ObservationConfig.model_fields | learner.Config.model_fields
    usual = {name: fields[name].default for name in _UNITS if name in fields}
    old, new = usual | dict(config_of(checkpoint).algo_kwargs), usual | dict(settings)
    if changed := ", ".join(f"{name} {old[name]} -> {new[name]}" for name in usual if old[name] != new[name]):
        _log.warning("init_from: the critics of %s have values in other units: %s", checkpoint.path, changed)


def _warn_about_temperature(learner: Learner, settings: Mapping[str, Any], checkpoint: Checkpoint) -> None:
    """Warn about `initial_alpha` if the learned alpha was copied."""
    name = "initial_alpha"
    if name not in settings or "temperature.log_alpha" not in learner.state_dict()["networks"]:
        return
    value, usual = settings[name], learner.Config.model_fields[name].default
    if value not in (usual, config_of(checkpoint).algo_kwargs.get(name)):
        message = "algo_kwargs.initial_alpha: %s has no effect; the learned alpha of %s is copied"
        _log.warning(message, value, checkpoint.path)


def _network(name: str) -> str:
    """The network of a tensor: `model.critics` for `model.critics.net.hidden.0.weight`."""
    parts = name.split(".")
    return ".".join(parts[: 2 if parts[0] == "model" else 1])
