"""Adam with all of its state in tensors, and Polyak averaging of targets.

Moments, step count and learning rate are on the parameters' device and change in place, so that a CUDA graph can
capture the step while a schedule changes the learning rate. On a CPU torch's fused kernel is fastest. On a GPU that
kernel leaves most of the device idle for networks of this size; there the same arithmetic is written with list
operations, which `torch.compile` merges into one kernel together with the target update. Parameter groups are
independent and step in parallel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rl_training.models.flash import Sphere


class Group(NamedTuple):
    """The tensors that one step of Adam reads and writes."""

    parameters: list[Tensor]
    gradients: Sequence[Tensor]
    exp_avg: list[Tensor]
    exp_avg_sq: list[Tensor]
    step: Tensor  # 0-d like the learning rate; both are `[S]` if the tensors `[S, …]` are of S learners
    learning_rate: Tensor
    betas: tuple[float, float]
    eps: float
    weight_decay: float


# Keywords of `Adam`, with one value for all parameters of a group.
ADAM_SETTINGS = ("betas", "eps", "weight_decay")


class Adam:
    """State of Adam (Kingma & Ba, bias-corrected) for one group of parameters.

    `weight_decay` is decoupled from the gradient, as in AdamW: p <- (1 - rate · decay) p before each step.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        learning_rate: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        self.parameters = list(parameters)
        self.spheres: list[Sphere] = []  # norms that the parameters keep (`project`)
        self.base_learning_rate = learning_rate
        self.settings = betas, eps, weight_decay
        device = self.parameters[0].device
        self.learning_rate = torch.tensor(learning_rate, dtype=torch.float32, device=device)
        self.step = torch.zeros((), dtype=torch.float32, device=device)
        self.exp_avg = [torch.zeros_like(p) for p in self.parameters]
        self.exp_avg_sq = [torch.zeros_like(p) for p in self.parameters]

    def group(self, gradients: Sequence[Tensor]) -> Group:
        """The argument of `apply_fused` and `apply_lists` for these gradients."""
        state = self.exp_avg, self.exp_avg_sq, self.step, self.learning_rate
        return Group(self.parameters, gradients, *state, *self.settings)

    def state_dict(self) -> dict[str, Tensor]:
        """Step count and moments. Learning rate, betas and decay follow from the configuration."""
        state = {"step": self.step}
        for i, (first, second) in enumerate(zip(self.exp_avg, self.exp_avg_sq)):
            state[f"exp_avg.{i}"] = first
            state[f"exp_avg_sq.{i}"] = second
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy in place, because a captured graph refers to these tensors."""
        own = self.state_dict()
        if own.keys() != state.keys():
            raise ValueError(f"optimiser state has {len(state)} entries, expected {len(own)}")
        for name, tensor in own.items():
            tensor.copy_(state[name])


# Target tensors, their sources, and tau (`[S]` if S learners differ in it).
Polyak = tuple[list[Tensor], list[Tensor], float | Tensor]


def targets_by_owner(
    targets: Mapping[nn.Module, nn.Module],
    optimizers: Mapping[str, Adam],
    stepped: Sequence[str],
    tau: float | None,
) -> dict[str | None, list[Polyak]]:
    """The targets to update right after each optimiser of `stepped`; all others are under None."""
    found: dict[str | None, list[Polyak]] = {name: [] for name in (*optimizers, None)}
    if tau is not None:
        for target, source in targets.items():
            sources: list[Tensor] = list(source.parameters())
            parts = {id(p) for p in sources}
            owners = [n for n, o in optimizers.items() if any(id(p) in parts for p in o.parameters)]
            owner = owners[0] if len(owners) == 1 and owners[0] in stepped else None
            found[owner].append((list(target.parameters()), sources, tau))
    return found


def polyak_update(follows: Sequence[Polyak]) -> None:
    """Polyak averaging: target <- target + tau (source - target)."""
    for targets, sources, tau in follows:
        torch._foreach_lerp_(targets, sources, _beside(tau, targets))


def project(spheres: Sequence[Sphere]) -> None:
    """Scale the tensors of each sphere to its radius.

    This is compiled apart from steps: torch 2.11 cannot compile its sums and list operations as one.
    """
    for tensors, axis, radius, epsilon in spheres:
        squares = reduce(torch.add, [tensor.square() for tensor in tensors])
        scale = radius * torch.rsqrt(squares.sum(axis, keepdim=True) + epsilon)
        for tensor in tensors:
            tensor.mul_(scale)


def apply_projected(
    apply: Callable[..., None],
    scale: Callable[..., None],
    stepped: Any,
    spheres: Sequence[Sphere],
    follows: Sequence[Polyak],
) -> None:
    """`apply(stepped, follows)`, with `scale(spheres)` between the step and the target update if there are any."""
    if not spheres:
        apply(stepped, follows)
        return
    apply(stepped, ())
    scale(spheres)
    polyak_update(follows)


def _beside(value: Any, tensors: Sequence[Tensor]) -> Any:
    """A number as it is; one number per learner, `[S]`, as a view for each tensor `[S, …]` to broadcast with."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    return [value.view(-1, *[1] * (tensor.dim() - 1)) for tensor in tensors]


def apply_fused(group: Group, follows: Sequence[Polyak]) -> None:
    """Step a group with torch's fused kernel, then update its targets."""
    group.step.add_(1.0)
    torch._fused_adamw_(
        group.parameters,
        [g.contiguous() for g in group.gradients],  # the kernel ignores strides
        group.exp_avg,
        group.exp_avg_sq,
        [],
        [group.step] * len(group.parameters),
        lr=group.learning_rate,
        beta1=group.betas[0],
        beta2=group.betas[1],
        weight_decay=group.weight_decay,
        eps=group.eps,
        amsgrad=False,
        maximize=False,
    )
    polyak_update(follows)


def _bias_correction(beta: float, step: Tensor) -> Tensor:
    """1 - beta^t in float64, because 1 - 0.999 has few digits in float32.

    Uses expm1: a power, computed by every thread of a GPU, would double the time of a step.
    """
    return -torch.expm1(step.double() * (math.log(beta) if beta > 0 else -math.inf))


def apply_lists(group: Group, follows: Sequence[Polyak]) -> None:
    """`apply_fused` in list operations, eager or compiled into one kernel."""
    parameters, gradients, exp_avg, exp_avg_sq, step, learning_rate, (beta1, beta2), eps, weight_decay = group
    gradients = list(gradients)
    step.add_(1.0)
    dtype = parameters[0].dtype
    step_size = (learning_rate / _bias_correction(beta1, step)).to(dtype)
    correction = _bias_correction(beta2, step).sqrt().to(dtype)
    if weight_decay:
        kept = (1.0 - learning_rate.double() * weight_decay).to(dtype)
        torch._foreach_mul_(parameters, _beside(kept, parameters))
    torch._foreach_lerp_(exp_avg, gradients, 1.0 - beta1)
    torch._foreach_mul_(exp_avg_sq, beta2)
    torch._foreach_addcmul_(exp_avg_sq, gradients, gradients, 1.0 - beta2)
    denominator = torch._foreach_sqrt(exp_avg_sq)
    torch._foreach_div_(denominator, _beside(correction, denominator))
    torch._foreach_add_(denominator, eps)
    change = torch._foreach_div(exp_avg, denominator)
    torch._foreach_mul_(change, _beside(step_size, change))
    torch._foreach_sub_(parameters, change)
    polyak_update(follows)
