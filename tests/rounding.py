"""What an operation returns for one learner and for a stack of learners, compared without a tolerance."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from rl_training.algorithms.cql import conservative_gap
from rl_training.algorithms.dqn import huber_loss
from rl_training.algorithms.iql import expectile_loss
from rl_training.algorithms.losses import clipped_exponential, soft_policy_loss, squared_error, td_target
from rl_training.algorithms.tqc import quantile_huber_loss
from rl_training.models.mlp import _ACTIVATIONS
from rl_training.models.policies import log_tanh_slope, squashed_log_prob, squashed_sample

Operation = Callable[[Tensor], Tensor]
# Activations whose CPU kernels round the last elements of a tensor differently from the others: members with these
# equal their single runs up to rounding only.
SIZE_DEPENDENT = ("elu", "gelu", "silu")
# Rows and columns on both sides of the width of a vector register (8 or 16 numbers), and odd ones.
SHAPES = [(1, 1), (7, 3), (15, 1), (24, 1), (16, 2), (33, 5), (100, 1), (100, 17)]


def activation(name: str) -> Operation:
    return lambda x: _ACTIVATIONS[name](x * 1.0)  # type: ignore[index]  # some work in place


OPERATIONS: dict[str, Operation] = {
    **{f"activation {name}": activation(name) for name in _ACTIVATIONS if name not in SIZE_DEPENDENT},
    "log_tanh_slope": log_tanh_slope,
    "squashed_sample": lambda x: squashed_sample(x, 0.1 * x, x.cos()).logprobs,
    "squashed_log_prob": lambda x: squashed_log_prob(x, 0.1 * x, x.sin()),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:], eps=1e-6),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "mean": lambda x: x.mean(),
    "sum": lambda x: x.sum(-1),
    "std": lambda x: (x - x.mean()) / (x.square().mean().sqrt() + 1e-6),
    "weighted sum": lambda x: (x.unsqueeze(-1) * x.cos().unsqueeze(-1)).sum(-2),
    "huber_loss": lambda x: huber_loss(x, 0.5 * x.cos()),
    "conservative_gap": lambda x: conservative_gap(x.unsqueeze(0), x.cos(), x[:1].sin()),
    "quantile_huber_loss": lambda x: quantile_huber_loss(x.unsqueeze(0), x.cos()),
    "expectile_loss": lambda x: expectile_loss(x, 0.7),
    "squared_error": lambda x: squared_error(x, x[0].cos()),
    "soft_policy_loss": lambda x: soft_policy_loss(x, x.cos(), 0.2),
    "td_target": lambda x: td_target(x, (x > 1).to(x.dtype), x.cos(), 0.99),
    "clipped_exponential": lambda x: clipped_exponential(3.0 * x, 100.0),
}


def differing(operations: dict[str, Operation] = OPERATIONS, members: int = 3) -> list[str]:
    """Operations of which a value or a gradient differs between a learner alone and the same one in a stack."""
    found, generator = set(), torch.Generator().manual_seed(0)
    for name, operation in operations.items():

        def total(x: Tensor, operation: Operation = operation) -> Tensor:
            y = operation(x)
            return (y * torch.linspace(-1.0, 1.0, y.numel()).view(y.shape)).sum()

        for shape in SHAPES:
            x = torch.randn((members, *shape), generator=generator)
            for function in (operation, grad(total)):
                alone = torch.stack([function(own.clone()) for own in x])
                if not torch.equal(alone, torch.vmap(function)(x)):
                    found.add(name)
    return sorted(found)
