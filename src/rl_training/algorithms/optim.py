"""Adam whose whole state is tensors, and the one place where parameters and targets move.

Moments, step count and learning rate live on the parameters' device and change in place, so a CUDA graph can
record the step and a schedule can still turn the learning rate. On a CPU torch's fused kernel is fastest; on a
GPU that kernel keeps most of the device idle for networks of this size, so there the same arithmetic is written
with list operations that `torch.compile` merges into one kernel together with the target update; groups do not
depend on each other and step side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8

# One group: parameters, gradients, first and second moments, step count, learning rate.
Group = tuple[list[Tensor], Sequence[Tensor], list[Tensor], list[Tensor], Tensor, Tensor]


class Adam:
    """State of Adam (Kingma & Ba, bias-corrected, no weight decay) for one group of parameters."""

    def __init__(self, parameters: Sequence[Tensor], learning_rate: float) -> None:
        self.parameters = list(parameters)
        self.base_learning_rate = learning_rate
        device = self.parameters[0].device
        self.learning_rate = torch.tensor(learning_rate, dtype=torch.float32, device=device)
        self.step = torch.zeros((), dtype=torch.float32, device=device)
        self.exp_avg = [torch.zeros_like(p) for p in self.parameters]
        self.exp_avg_sq = [torch.zeros_like(p) for p in self.parameters]

    def group(self, gradients: Sequence[Tensor]) -> Group:
        """What `apply_fused` or `apply_lists` needs to take one step."""
        return self.parameters, gradients, self.exp_avg, self.exp_avg_sq, self.step, self.learning_rate

    def state_dict(self) -> dict[str, Tensor]:
        """Step count and moments. The learning rate is not state: it follows from configuration and schedule."""
        state = {"step": self.step}
        for i, (first, second) in enumerate(zip(self.exp_avg, self.exp_avg_sq)):
            state[f"exp_avg.{i}"] = first
            state[f"exp_avg_sq.{i}"] = second
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy in place: a recorded graph keeps pointing at this state."""
        own = self.state_dict()
        if own.keys() != state.keys():
            raise ValueError(f"optimiser state has {len(state)} entries, expected {len(own)}")
        for name, tensor in own.items():
            tensor.copy_(state[name])


# Target tensors, the tensors they follow, and the share of the way they go.
Follow = tuple[list[Tensor], list[Tensor], float]


def follow(follows: list[Follow]) -> None:
    """Move targets their share of the way."""
    for targets, sources, tau in follows:
        torch._foreach_lerp_(targets, sources, tau)


def apply_fused(group: Group, follows: list[Follow]) -> None:
    """Step a group with torch's fused kernel, then move the targets that follow it."""
    parameters, gradients, exp_avg, exp_avg_sq, step, learning_rate = group
    step.add_(1.0)
    torch._fused_adam_(
        parameters,
        [g.contiguous() for g in gradients],  # the kernel reads memory in order, whatever the strides say
        exp_avg,
        exp_avg_sq,
        [],
        [step] * len(parameters),
        lr=learning_rate,
        beta1=BETA1,
        beta2=BETA2,
        weight_decay=0.0,
        eps=EPS,
        amsgrad=False,
        maximize=False,
    )
    follow(follows)


def apply_lists(group: Group, follows: list[Follow]) -> None:
    """The same in list operations, eager or compiled into one kernel."""
    parameters, gradients, exp_avg, exp_avg_sq, step, learning_rate = group
    step.add_(1.0)
    step_size = learning_rate / (1.0 - BETA1**step)
    correction = (1.0 - BETA2**step).sqrt()
    torch._foreach_lerp_(exp_avg, list(gradients), 1.0 - BETA1)
    torch._foreach_mul_(exp_avg_sq, BETA2)
    torch._foreach_addcmul_(exp_avg_sq, list(gradients), list(gradients), 1.0 - BETA2)
    denominator = torch._foreach_sqrt(exp_avg_sq)
    torch._foreach_div_(denominator, correction)
    torch._foreach_add_(denominator, EPS)
    change = torch._foreach_div(exp_avg, denominator)
    torch._foreach_mul_(change, step_size)
    torch._foreach_sub_(parameters, change)
    follow(follows)
