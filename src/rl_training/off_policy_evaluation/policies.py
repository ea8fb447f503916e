"""Find and load the policies to evaluate, and check that they fit the data."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_training.data.columns import Columns
from rl_training.data.datasets import TransitionDataset
from rl_training.data.formats import read_columns
from rl_training.data.validation import declared_spaces
from rl_training.errors import ConfigError, DatasetError
from rl_training.experience.fqe_data import acts
from rl_training.experiment.config import TrainConfig
from rl_training.models.policies import Policy
from rl_training.runtime.loading import load_policy, open_checkpoint
from rl_training.settings import at_home
from rl_training.spaces import SpaceSpec

Place = str | os.PathLike[str]
Data = TransitionDataset | Place


@dataclass(frozen=True)
class Candidate:
    """A policy to evaluate: the name the caller gave, its checkpoint, its spaces and its run's configuration."""

    name: str
    checkpoint: Path
    policy: Policy
    spaces: SpaceSpec
    config: TrainConfig


def candidates(
    places: Place | Iterable[Place],
    warn: Callable[[str], None] = warnings.warn,
    *,
    allow_import: bool = False,
    stochastic: bool = False,
) -> list[Candidate]:
    """Load the policies of checkpoints or run folders (their newest checkpoint); raise if a path is given twice.

    `stochastic` raises if none of them can be sampled.
    """
    given: list[Any] = list(places) if isinstance(places, Iterable) and not isinstance(places, str) else [places]
    names = [_path(place, "runs: give run folders or checkpoints (run_dir of a model)") for place in given]
    if not names:
        raise ConfigError("give at least one run folder or checkpoint to evaluate")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"{twice[0]}: is given twice; each policy is evaluated once")
    found = []
    for place in given:
        checkpoint = open_checkpoint(os.fspath(place), warn)
        loaded = load_policy(checkpoint, allow_import=allow_import)
        config = loaded.config.replace(allow_import=allow_import)
        found.append(Candidate(str(place), checkpoint.path, loaded.policy, loaded.spaces, config))
    if stochastic and not any(one.policy.stochastic for one in found):
        raise ConfigError(f"stochastic: has no effect on deterministic policies such as {names[0]}; leave it out")
    return found


def _path(place: Any, wanted: str) -> str:
    """`place` as text; raises if it is not a path."""
    if not isinstance(place, str | os.PathLike):
        raise ConfigError(f"{wanted}, got {type(place).__name__}")
    return os.fspath(place)


def load_data(place: Data, found: Sequence[Candidate]) -> TransitionDataset:
    """Load the data; a file that does not declare its spaces gets those of the policies."""
    if isinstance(place, TransitionDataset):
        dataset = place
        if dataset.n_step > 1:
            steps = f"rows of {dataset.n_step} steps"
            raise DatasetError(f"{dataset.name}: {steps} cannot be evaluated on; use the data before with_n_step")
    else:
        path = _path(place, "dataset: give a TransitionDataset, a file (.npz, .hdf5) or a Minari id")
        with read_columns(at_home(path)) as columns:
            dataset = TransitionDataset.from_columns(columns, spaces=_spaces_for(columns, found[0]))
    for candidate in found:
        _require_fit(candidate, dataset.name, dataset.spaces)
    return dataset


def _spaces_for(columns: Columns, first: Candidate) -> SpaceSpec | None:
    if declared_spaces(columns) is not None:
        return None
    _require_fit(first, columns.name, replace(first.spaces, obs_dim=columns.obs_dim, observation=None))
    return first.spaces


def _require_fit(candidate: Candidate, name: str, data: SpaceSpec) -> None:
    """Raise if the data have other spaces; action bounds may differ by rounding."""
    policy = candidate.spaces
    bounds = (policy.low, policy.high), (data.low, data.high)
    if len(policy.low) == len(data.low):
        own, other = (torch.tensor(bound, dtype=torch.float64) for bound in bounds)
        if torch.allclose(own, other, rtol=1e-5, atol=1e-8):
            data = SpaceSpec(**data.record() | {"low": policy.low, "high": policy.high})
    if difference := data.difference(policy, "the data have"):
        raise ConfigError(f"{candidate.name}: its policy does not fit {name} ({difference})")


@torch.no_grad()
def probabilities(policy: Policy, obs: Tensor, num_actions: int, *, sampled: bool) -> Tensor:
    """pi(a|s) of every discrete action, `[n, K]`, in float64: one-hot if the policy acts deterministically."""
    if not (sampled and policy.stochastic):
        chosen = acts(policy, obs)[:, 0].long()
        return torch.nn.functional.one_hot(chosen, num_actions).double()
    seen, actor = policy.normalizer(obs), policy.actor
    every = [torch.full((len(obs),), action, device=obs.device) for action in range(num_actions)]
    return torch.stack([actor.log_prob(seen, one) for one in every], dim=-1).double().exp()  # type: ignore[operator]
