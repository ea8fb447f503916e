"""Checks of the batch that a caller passes to `Learner.update`, and of a learner's own code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rl_training.data.transitions import TransitionBatch
from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.algorithms.base import Learner, Terms

# Rounding may put an action this far outside [-1, 1].
_ACTION_SLACK = 1e-5


def require_fit(batch: TransitionBatch, learner: Learner) -> None:
    """Raise for too few rows, a column that is missing, elsewhere or of another width, or an action out of range.

    The range is checked on the CPU only: on a GPU each check would wait for the queue.
    """
    model, device, least = learner.model, learner.device, learner.least_batch
    for extra in learner.extras:
        if getattr(batch, extra.name) is None:
            raise ConfigError(f"batch: {learner.name} needs the column {extra.name!r}, {extra.meaning}")
    for name, column in batch._asdict().items():
        if column is not None and column.device != device:
            raise ConfigError(
                f"batch: {name} is on {column.device}, the learner on {device}; move it with .to(device)"
            )
    rows, actions, choices = len(batch.obs), batch.actions, model.num_actions
    if rows < least:
        raise ConfigError(f"batch: needs at least {least} rows, got {rows}")
    if batch.obs.shape[1] != model.obs_dim:
        raise ConfigError(f"batch: obs must have {model.obs_dim} components, got {batch.obs.shape[1]}")
    if choices and actions.dtype != torch.int64:
        raise ConfigError(f"batch: actions must be whole numbers of shape ({rows},), one per row")
    if not choices and tuple(actions.shape) != (rows, model.action_dim):
        shape = (rows, model.action_dim)
        raise ConfigError(f"batch: actions must have shape {shape}, got {tuple(actions.shape)}")
    if device.type == "cpu":
        low, high = (0.0, choices - 1.0) if choices else (-1.0 - _ACTION_SLACK, 1.0 + _ACTION_SLACK)
        lowest, highest = float(actions.min()), float(actions.max())
        if not low <= lowest <= highest <= high:  # also if one of them is NaN
            wanted = f"0..{choices - 1}; number them from 0" if choices else "[-1, 1]; scale them by the bounds"
            raise ConfigError(f"batch: action {highest if highest > high else lowest:g} is outside {wanted}")


def require_optimizers(learner: Learner, objectives: Iterable[str]) -> None:
    """Raise if an objective names an optimiser that the learner does not have."""
    for name in "+".join(objectives).split("+"):
        if name not in learner.optimizers:
            raise ConfigError(f"{learner.name}: no optimiser {name!r}; optimisers: {', '.join(learner.optimizers)}")


def require_saved(learner: Learner) -> None:
    """Raise if `modules()` lacks a network of the learner, which no checkpoint would then contain."""
    saved = {id(tensor) for module in learner.all_modules().values() for tensor in _tensors(module)}
    own = {f"the optimiser {name!r}": optimizer.parameters for name, optimizer in learner.optimizers.items()}
    own |= {name: _tensors(part) for name, part in vars(learner).items() if isinstance(part, nn.Module)}
    for name, tensors in own.items():
        if any(id(tensor) not in saved for tensor in tensors):
            raise ConfigError(
                f"{learner.name}: {name} has parameters of a network that modules() does not return, so no "
                "checkpoint would contain them; return the network there"
            )


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


@contextmanager
def require_own_draws(learner: Learner) -> Iterator[None]:
    """Raise if the block draws from torch's global generator, whose state no checkpoint contains.

    The generators of GPUs are not examined.
    """
    before = torch.get_rng_state()
    yield
    if not torch.equal(before, torch.get_rng_state()):
        raise ConfigError(
            f"{learner.name}: an update draws from torch's global generator, as torch.randn and dropout do, so a "
            "resumed run would draw other numbers; use self.normal or self.uniform in gradient_step"
        )


def require_scalar(learner: Learner, names: Iterable[str], loss: torch.Tensor) -> None:
    """Raise if the loss of the optimisers `names` is not a scalar."""
    if loss.dim():
        raise ConfigError(f"{learner.name}: the loss of {'+'.join(names)} has shape {list(loss.shape)}, not []")


def require_terms(learner: Learner, terms: Any) -> Terms:
    """What `gradient_step` returned; raises if that is not a dictionary of scalars."""
    if not isinstance(terms, dict):
        raise ConfigError(f"{learner.name}: gradient_step must return terms, got {type(terms).__name__}")
    for name, term in terms.items():
        if not isinstance(term, torch.Tensor) or term.dim():
            got = list(term.shape) if isinstance(term, torch.Tensor) else type(term).__name__
            raise ConfigError(f"{learner.name}: the term {name!r} must be a tensor of shape [], got {got}")
    return terms
