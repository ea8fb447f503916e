"""Starting a run from the networks another run learned (`init_from`)."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from rl_training.algorithms.base import Learner
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import Checkpoint, find_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.runs.state import acts, config_of, read_run_checkpoint, spaces_from
from rl_training.spaces import SpaceSpec

_log = logging.getLogger(__name__)


def starting_point(config: TrainConfig, own: Checkpoint | None) -> Checkpoint | None:
    """The checkpoint a run's networks come from: its own, or the one another run left (`init_from`)."""
    if own is not None or config.init_from is None:
        return own
    return read_run_checkpoint(find_origin(config.init_from, config.seed))


def find_origin(init_from: str, seed: int | None) -> Path:
    """The checkpoint that `init_from` means for a run of that seed, which `{seed}` in it stands for."""
    return find_checkpoint(Path(init_from.replace("{seed}", str(seed))))


def initialise_from(learner: Learner, checkpoint: Checkpoint, spaces: SpaceSpec) -> None:
    """Copy the networks another run learned into this learner: the policy, and every other network that fits whole.

    A target that the other run did not have, or that does not fit, starts equal to what it follows.
    """
    if difference := spaces.difference(spaces_from(checkpoint), "this run has"):
        raise ConfigError(
            f"init_from: {checkpoint.path} was trained for other spaces ({difference})", key="init_from"
        )
    own = learner.state_dict()["networks"]
    given = checkpoint.tensors["networks"]
    misfits = [name for name, tensor in own.items() if not _fits(given.get(name), tensor)]
    # Layers the other network has beyond these make it another network, though all of these fit.
    misfits += sorted(name for name in given.keys() - own.keys() if ".net." in name)
    for name in misfits:
        if acts(name):
            raise ConfigError(
                f"init_from: the {checkpoint.records['config']['algo']} policy of {checkpoint.path} does not fit "
                f"(first difference: {name}); use the same hidden_sizes, kind of actor and normalize_observations",
                key="init_from",
            )
    _tell_other_distribution(learner, checkpoint)
    strange = {_network(name) for name in misfits} & {_network(name) for name in own}
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


def _tell_other_distribution(learner: Learner, checkpoint: Checkpoint) -> None:
    """Say that a network which fits means another policy: its mode is the same, its spread is not."""
    now, config = getattr(learner.model.actor, "distribution", None), config_of(checkpoint)
    before = config.algo_kwargs.get("policy_distribution", "gaussian" if config.algo == "iql" else "tanh")
    if now is not None and now != before:
        words = "init_from: the policy of %s is %r and this run's %r: its mode is the same, its spread is not"
        _log.warning(words, checkpoint.path, before, now)


def _network(name: str) -> str:
    """The network a tensor belongs to: `model.critics` of `model.critics.net.hidden.0.weight`."""
    parts = name.split(".")
    return ".".join(parts[: 2 if parts[0] == "model" else 1])


def _fits(given: torch.Tensor | None, own: torch.Tensor) -> bool:
    return given is not None and given.shape == own.shape
