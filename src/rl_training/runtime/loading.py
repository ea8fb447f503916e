"""Load the policy or the value functions of a checkpoint on the CPU; no environment is needed."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from rl_training.algorithms.base import LearnerConfig
from rl_training.errors import ConfigError
from rl_training.experience.acting import LoadedPolicy as LoadedPolicy
from rl_training.experiment.checkpointing import Checkpoint, checkpoint_errors, find_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import spec_of
from rl_training.importing import bind_name
from rl_training.models.actor_critic import Model
from rl_training.models.mlp import NETWORK, PACKAGED_KINDS, NetworkShape
from rl_training.models.policies import Policy
from rl_training.runs.state import (
    clips_observations,
    config_of,
    has_normalizer,
    is_policy_alone,
    read_run_checkpoint,
    spaces_from,
)
from rl_training.spaces import SpaceSpec


class Values(NamedTuple):
    """Mean and standard deviation (0 for a single critic) over the critics: `[B]` each, or scalars."""

    mean: NDArray[np.float64]
    spread: NDArray[np.float64]


@dataclass(frozen=True)
class LoadedValues:
    """The value functions of a checkpoint, on the CPU."""

    model: Model
    spaces: SpaceSpec

    def predict(self, obs: ArrayLike, action: ArrayLike | None = None) -> Values:
        """Q of `action`, in the environment's units, or V if it is None; for one observation or a batch.

        One observation may be combined with a batch of actions.
        """
        batch, single = self.spaces.observations(obs), self.spaces.is_single(obs)
        with torch.inference_mode():
            if action is None:
                found = self.model.state_values(torch.from_numpy(batch))  # [N, B]
            else:
                actions = self.spaces.actions(action)
                if single:
                    batch = np.repeat(batch, len(actions), axis=0)
                    single = np.ndim(action) == (0 if self.spaces.discrete else 1)
                if len(actions) != len(batch):
                    raise ConfigError(f"action: {len(actions)} for {len(batch)} observations; give one for each")
                internal = torch.from_numpy(actions)
                found = self.model.action_values(
                    torch.from_numpy(batch), internal.long() if self.spaces.discrete else internal
                )
        values = found.double().numpy()
        mean, spread = values.mean(0), values.std(0)
        return Values(mean[0], spread[0]) if single else Values(mean, spread)


def load_values(checkpoint: Checkpoint) -> LoadedValues:
    """Rebuild the value functions of a checkpoint; raises `ConfigError` if it has none."""
    model, spaces, config = _build_model(checkpoint)
    if not model.has_values:
        raise ConfigError(f"{config.algo} learns no value function; predict_value needs an algorithm with critics")
    if is_policy_alone(checkpoint):
        raise ConfigError(
            f"{checkpoint.path}: holds a policy without its critics; predict_value needs those of a run"
        )
    _load_networks(model, checkpoint)
    return LoadedValues(model.requires_grad_(False).eval(), spaces)


def load_policy(checkpoint: Checkpoint, *, allow_import: bool = False) -> LoadedPolicy:
    """Rebuild the policy of a checkpoint; `allow_import` permits to import the module of a plug-in."""
    model, spaces, config = _build_model(checkpoint, allow_import)
    _load_networks(model.policy if is_policy_alone(checkpoint) else model, checkpoint)
    policy = copy.deepcopy(model.policy).requires_grad_(False)
    return LoadedPolicy(policy.eval(), spaces, config)


def _build_model(checkpoint: Checkpoint, allow_import: bool = False) -> tuple[Model, SpaceSpec, TrainConfig]:
    """The model of a checkpoint with untrained networks, its spaces and its configuration."""
    config, spaces = config_of(checkpoint), spaces_from(checkpoint)
    kinds = spec_of(config.replace(allow_import=allow_import)).chosen(config.regime)[1]
    with checkpoint_errors(checkpoint):
        sections, resolved = kinds.resolve_for(spaces, str(checkpoint.path), config.algo_kwargs)
    resolved[NetworkShape].import_own(allow_import)
    with torch.random.fork_rng(devices=[]), checkpoint_errors(checkpoint, "networks"):
        model = sections.learner.build_model(
            spaces,
            resolved[NetworkShape],
            resolved[LearnerConfig],
            normalize_observations=has_normalizer(checkpoint),
        )
        if clips_observations(checkpoint):
            model.normalizer.clip()
    return model, spaces, config


def use_network(config: TrainConfig, factory: Callable[..., Any]) -> None:
    """Use `factory` for the networks of a run of this configuration, under the name that the run has recorded."""
    name = config.algo_kwargs.get("network", PACKAGED_KINDS[0])
    if name in PACKAGED_KINDS:
        raise ConfigError(f"network: the run has the network {name!r} of this package; leave it out")
    bind_name(name, factory, NETWORK)


def _load_networks(part: Model | Policy, checkpoint: Checkpoint) -> None:
    """Load the networks of a model or of a policy; raises if one is missing or left over."""
    names = checkpoint.tensors["networks"]
    with checkpoint_errors(checkpoint, "networks"):
        part.load_state_dict({k.removeprefix("model."): v for k, v in names.items() if k.startswith("model.")})


def open_checkpoint(path: str | Path, warn: Callable[[str], None] = warnings.warn) -> Checkpoint:
    """Read and verify a checkpoint; `path` is its folder, a run folder (newest valid checkpoint) or `best`."""
    return read_run_checkpoint(find_checkpoint(Path(path).expanduser(), warn))
