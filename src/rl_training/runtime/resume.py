"""Taking up what a checkpoint holds: a run of one's own, or the networks another run learned (`init_from`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.base import Learner
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import Checkpoint, find_checkpoint, read_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.spaces import SpaceSpec

_log = logging.getLogger(__name__)
_LONGEST_REASON = 300


def has_normalizer(checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint's networks look at normalised observations."""
    return "model.normalizer.shift" in checkpoint.tensors["networks"]


def starting_point(config: TrainConfig, own: Checkpoint | None) -> Checkpoint | None:
    """The checkpoint a run's networks come from: its own, or the one another run left (`init_from`)."""
    if own is not None or config.init_from is None:
        return own
    return read_run_checkpoint(find_checkpoint(Path(config.init_from)))


def read_run_checkpoint(path: Path) -> Checkpoint:
    """A verified checkpoint that holds what every run of this package saves."""
    checkpoint = read_checkpoint(path)
    for name in ("trainer", "config", "spaces", "dataset"):
        if not isinstance(checkpoint.records.get(name), dict):
            raise CheckpointError(f"{path}: not the checkpoint of a run: {name}.json is missing or no mapping")
    if "networks" not in checkpoint.tensors:
        raise CheckpointError(f"{path}: not the checkpoint of a run: networks.safetensors is missing")
    return checkpoint


def initialise_from(learner: Learner, checkpoint: Checkpoint, spaces: SpaceSpec) -> None:
    """Copy the networks another run learned into this learner: the policy, and every other network that fits whole.

    A target that the other run did not have, or that does not fit, starts equal to what it follows.
    """
    if difference := spaces.difference(spaces_from(checkpoint)):
        raise ConfigError(
            f"init_from: {checkpoint.path} was trained for other spaces ({difference})", key="init_from"
        )
    own = learner.state_dict()["networks"]
    given = checkpoint.tensors["networks"]
    for name, tensor in own.items():
        if name.startswith(("model.actor.", "model.normalizer.")) and not _fits(given.get(name), tensor):
            raise ConfigError(
                f"init_from: the {checkpoint.records['config']['algo']} policy of {checkpoint.path} does not fit "
                f"(first difference: {name}); use the same hidden_sizes, kind of actor and normalize_observations",
                key="init_from",
            )
    strange = {_network(name) for name, tensor in own.items() if not _fits(given.get(name), tensor)}
    if strange and any(_network(name) in strange for name in given):
        _log.warning("init_from: starting anew, because they do not fit: %s", ", ".join(sorted(strange)))
    taken = {name: tensor if _network(name) in strange else given[name] for name, tensor in own.items()}
    places = {
        module: f"{name}.{path}".rstrip(".")
        for name, root in learner.modules().items()
        for path, module in root.named_modules()
    }
    for target, source in learner.targets().items():
        if places[target] in strange:
            taken |= {f"{places[target]}.{key}": taken[f"{places[source]}.{key}"] for key in source.state_dict()}
    learner.load_networks(taken)


def _network(name: str) -> str:
    """The network a tensor belongs to: `model.critics` of `model.critics.net.hidden.0.weight`."""
    parts = name.split(".")
    return ".".join(parts[: 2 if parts[0] == "model" else 1])


def _fits(given: torch.Tensor | None, own: torch.Tensor) -> bool:
    return given is not None and given.shape == own.shape


def _tuples(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in record.items()}


def spaces_from(checkpoint: Checkpoint) -> SpaceSpec:
    """The spaces a checkpoint was trained for."""
    try:
        spaces = SpaceSpec(**_tuples(checkpoint.records["spaces"]))
        for name in ("obs_dim", "num_actions", "start"):
            if type(getattr(spaces, name)) is not int:
                raise ValueError(f"{name} must be a whole number, got {getattr(spaces, name)!r}")
        np.dtype(spaces.action_dtype)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{checkpoint.path}: spaces.json is not understood: {error}") from None
    return spaces


@contextmanager
def understood(checkpoint: Checkpoint, part: str = "contents") -> Iterator[None]:
    """What is whole may still not be ours: a checkpoint whose contents make no sense is one clear error."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        raise CheckpointError(
            f"{checkpoint.path}: its {part} do not fit this configuration: {type(error).__name__}: {reason}"
        ) from error


def restore_learner(learner: Learner, checkpoint: Checkpoint) -> list[str]:
    """Networks, optimisers, counters, terms and random numbers; returns what could not be exact."""
    trainer = checkpoint.records["trainer"]
    learner.load_state_dict(
        {
            "networks": checkpoint.tensors["networks"],
            "optimizers": checkpoint.tensors["optimizers"],
            "counters": trainer["counters"],
        }
    )
    device = learner.device
    learner.terms.update({k: torch.tensor(v, device=device) for k, v in trainer["terms"].items()})
    state = checkpoint.tensors["random"]["updates"]
    if state.numel() != learner.generator.get_state().numel():
        return ["the checkpoint was written on another kind of device; its random numbers start anew"]
    learner.generator.set_state(state)
    return []
