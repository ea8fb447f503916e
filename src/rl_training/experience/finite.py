"""The NaN check: every parameter and term must be finite before anything is reported or saved."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.base import Learner
from rl_training.errors import DivergedError


def check_finite(learner: Learner, where: str) -> None:
    """Raise `DivergedError` naming the first tensor that is not finite; one read from the device if all are."""
    state = learner.state_dict()
    named: dict[str, Tensor] = {
        **{f"terms.{name}": term for name, term in learner.terms.items()},
        **state["networks"],
        **state["optimizers"],
    }
    floating = {name: tensor for name, tensor in named.items() if tensor.is_floating_point()}
    # The largest magnitude is finite exactly if every entry is; it takes one pass over all tensors.
    norms = torch.stack(
        [norm.to(torch.float64) for norm in torch._foreach_norm(list(floating.values()), torch.inf)]
    )
    if bool(torch.isfinite(norms).all()):
        return
    bad = next(name for name, norm in zip(floating, norms.tolist()) if not norm < float("inf"))
    raise DivergedError(
        f"{bad} became NaN or infinite {where}; lower learning_rate or check the rewards' scale", first_bad=bad
    )
