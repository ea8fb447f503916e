"""Each formula on numbers worked by hand, and Adam against torch's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, tensor

from rl_training.algorithms import losses
from rl_training.algorithms.cql import conservative_gap
from rl_training.algorithms.dqn import huber_loss
from rl_training.algorithms.iql import expectile_loss
from rl_training.algorithms.optim import Adam, apply_fused, apply_lists
from rl_training.algorithms.soft import temperature_loss
from rl_training.algorithms.tqc import quantile_huber_loss, truncated_atoms


def close(value: Tensor, expected: object) -> None:
    torch.testing.assert_close(value, torch.as_tensor(expected, dtype=value.dtype), atol=1e-6, rtol=1e-6)


def test_a_time_limit_bootstraps_and_a_termination_does_not() -> None:
    target = losses.td_target(tensor([1.0, 1.0]), tensor([0.0, 1.0]), tensor([10.0, 10.0]), 0.9)
    close(target, [10.0, 1.0])


def test_soft_value() -> None:
    close(losses.soft_value(tensor([3.0, 4.0]), tensor([-1.0, 2.0]), 0.5), [3.5, 3.0])


def test_squared_error_is_averaged_over_the_batch_and_summed_over_critics() -> None:
    q = tensor([[1.0, 3.0], [0.0, 0.0]])
    close(losses.squared_error(q, tensor([0.0, 1.0])), (1 + 4) / 2 + (0 + 1) / 2)


def test_soft_policy_loss() -> None:
    close(losses.soft_policy_loss(tensor([1.0, 5.0]), tensor([2.0, -4.0]), 0.5), ((1 - 1) + (-2 - 5)) / 2)


def test_temperature_loss_and_its_slope() -> None:
    log_alpha = tensor(0.3, requires_grad=True)
    logprobs = tensor([1.0, 2.0], requires_grad=True)
    loss = temperature_loss(log_alpha, logprobs, -1.0)
    close(loss, -0.3 * 0.5)
    slope, none = torch.autograd.grad(loss, (log_alpha, logprobs), allow_unused=True)
    close(slope, -0.5)  # entropy -1.5 is below the target -1: descending raises alpha
    assert none is None


def test_weighted_cloning_loss() -> None:
    close(losses.weighted_cloning_loss(tensor([-1.0, -3.0]), tensor([2.0, 0.5])), (2 + 1.5) / 2)


def test_expectile_loss_and_its_minimum() -> None:
    close(expectile_loss(tensor([2.0, -1.0]), 0.9), (0.9 * 4 + 0.1 * 1) / 2)
    samples = tensor([0.0, 1.0])
    grid = torch.linspace(0, 1, 101)
    best = min(grid, key=lambda v: float(expectile_loss(samples - v, 0.9)))
    close(best, 0.9)  # the 0.9-expectile of a fair 0/1 coin: 0.9 (1 - v) = 0.1 v


def test_truncation_is_over_the_pooled_mixture() -> None:
    quantiles = tensor([[[1.0, 2.0, 3.0]], [[10.0, 20.0, 30.0]]])  # [2, 1, 3]
    close(truncated_atoms(quantiles, 1), [[1.0, 2.0, 3.0, 10.0]])  # per critic: 1 2 10 20
    close(truncated_atoms(quantiles, 0), [[1.0, 2.0, 3.0, 10.0, 20.0, 30.0]])
    close(truncated_atoms(quantiles.transpose(0, 1), 2), [[1.0], [10.0]])


def test_quantile_huber_loss_by_brute_force() -> None:
    quantiles = (2 * torch.randn(3, 4, 5, dtype=torch.float64)).requires_grad_()
    atoms = (2 * torch.randn(4, 7, dtype=torch.float64)).sort(-1).values
    total = torch.zeros((), dtype=torch.float64)
    for n, b, m, k in itertools.product(range(3), range(4), range(5), range(7)):
        u = atoms[b, k] - quantiles[n, b, m]
        huber = 0.5 * u * u if u.abs() <= 1 else u.abs() - 0.5
        fraction = (2 * m + 1) / 10
        total = total + (1 - fraction if u < 0 else fraction) * huber
    expected = total / (3 * 4 * 5 * 7)
    loss = quantile_huber_loss(quantiles, atoms)
    close(loss, expected.detach())
    close(torch.autograd.grad(loss, quantiles)[0], torch.autograd.grad(expected, quantiles)[0])


def test_quantile_regression_finds_the_quantiles() -> None:
    atoms = torch.rand(1, 4_000).sort(-1).values
    quantiles = torch.full((1, 1, 4), 0.5, requires_grad=True)
    for _ in range(400):
        (slope,) = torch.autograd.grad(quantile_huber_loss(quantiles * 100, atoms * 100), quantiles)
        quantiles.data -= 0.01 * slope
    torch.testing.assert_close(quantiles[0, 0], tensor([0.125, 0.375, 0.625, 0.875]), atol=0.03, rtol=0)


def test_huber_loss() -> None:
    close(huber_loss(tensor([0.0, 0.0]), tensor([0.5, -3.0])), (0.125 + 2.5) / 2)


def test_exponential_weights_are_capped_even_where_the_exponential_overflows() -> None:
    weights = losses.clipped_exponential(tensor([0.0, 1.0, 1e3, -1e3]), 20.0)
    close(weights, [1.0, math.e, 20.0, 0.0])


def test_cloning_terms() -> None:
    terms = losses.cloning_terms(tensor([-1.0, -3.0]), tensor([0.5, 1.5]), tensor([2.0, 0.5]))
    assert {name: float(term) for name, term in terms.items()} == {
        "actor_loss": 1.75,
        "advantage_mean": 1.0,
        "advantage_weight_mean": 1.25,
        "small_weight_share": 0.0,
        "behavior_logprob_mean": -2.0,
    }


def test_the_share_of_small_weights_counts_those_below_a_hundredth() -> None:
    weights = tensor([0.0, 0.0099, 0.0101, 20.0])
    close(losses.cloning_terms(weights, weights, weights)["small_weight_share"], 0.5)


def test_the_conservative_gap_of_uniform_actions_is_the_log_mean_exp() -> None:
    """Two actions drawn uniformly from [-1, 1] (density 1/2) whose values are 1 and 3, data valued 2."""
    q_sampled = tensor([1.0, 3.0])[None, :, None]  # [1, 2, 1]
    gap = conservative_gap(q_sampled, torch.full((2, 1), math.log(0.5)), tensor([[2.0]]))
    close(gap, [math.log(2 * math.e + 2 * math.e**3) - 2])


@pytest.mark.parametrize("settings", [{}, {"betas": (0.0, 0.9), "eps": 1e-3}, {"weight_decay": 0.5}])
@pytest.mark.parametrize("apply", [apply_fused, apply_lists])
def test_adam_is_torch_s(apply: Callable[..., None], settings: dict[str, Any]) -> None:
    start = [torch.randn(3, 4), torch.randn(5), torch.randn(6, 6)]
    ours = [p.clone() for p in start]
    theirs = [p.clone().requires_grad_() for p in start]
    kind = torch.optim.AdamW if "weight_decay" in settings else torch.optim.Adam
    optimizer, reference = Adam(ours, 1e-2, **settings), kind(theirs, lr=1e-2, **settings)
    target = [torch.zeros_like(p) for p in ours]
    followed = [torch.zeros_like(p) for p in ours]
    for step in range(20):
        if step == 10:
            optimizer.learning_rate.fill_(5e-3)
            reference.param_groups[0]["lr"] = 5e-3
        gradients = [torch.randn_like(p) for p in start]
        gradients[2] = gradients[2].T  # autograd may return any strides
        apply(optimizer.group(gradients), [(target, ours, 0.1)])
        for p, gradient in zip(theirs, gradients):
            p.grad = gradient.clone()
        reference.step()
        followed = [0.9 * t + 0.1 * p.detach() for t, p in zip(followed, theirs)]
    for mine, other, mine_target, other_target in zip(ours, theirs, target, followed):
        torch.testing.assert_close(mine, other.detach(), atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(mine_target, other_target, atol=1e-6, rtol=1e-6)


TRACED = torch.compile(apply_lists, backend="aot_eager", fullgraph=True, dynamic=False)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=["float64", "float32"]
)
@pytest.mark.parametrize("apply", [apply_fused, apply_lists, TRACED], ids=["fused", "lists", "traced"])
def test_the_first_steps_are_as_long_as_torch_s(
    apply: Callable[..., None], dtype: torch.dtype, tolerance: float
) -> None:
    """From zero, so that nothing hides the steps, with a rate that float32 has exactly: 1 - 0.999 has few digits.

    In float32 what is left is the rounding of a handful of operations; the bias corrections are exact.
    """
    ours, theirs = [torch.zeros(50, dtype=dtype)], torch.zeros(50, dtype=torch.float64, requires_grad=True)
    optimizer, reference = Adam(ours, 2.0**-7), torch.optim.Adam([theirs], lr=2.0**-7)
    gradient = torch.rand(50, dtype=dtype) + 0.5
    for _ in range(10):
        before = ours[0].clone()
        ours[0].zero_()
        apply(optimizer.group([gradient]), [])
        length = ours[0].clone()
        ours[0].add_(before)
        start = theirs.detach().clone()
        theirs.grad = gradient.double()
        reference.step()
        torch.testing.assert_close(length.double(), theirs.detach() - start, rtol=tolerance, atol=0)


@pytest.mark.parametrize("apply", [apply_fused, apply_lists])
def test_following_all_the_way_is_a_copy(apply: Callable[..., None]) -> None:
    source, target = [torch.randn(50)], [torch.randn(50)]
    apply(Adam(source, 1e-2).group([torch.randn(50)]), [(target, source, 1.0)])
    assert torch.equal(target[0], source[0])


def test_adam_state_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="3 entries, expected 5"):
        Adam([torch.zeros(1), torch.zeros(2)], 0.1).load_state_dict(Adam([torch.zeros(1)], 0.1).state_dict())
