"""EDAC: action gradients equal autograd's, diversity matches the paper, and without it EDAC is SAC-N."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, tensor

from rl_training.algorithms import EDAC, critic_diversity_loss, edac_loss
from rl_training.errors import ConfigError
from rl_training.models import MLPREDQModel
from rl_training.models.mlp import NetworkConfig
from tests.helpers import ACTIONS, CONTINUOUS, OBS, build, double, member, random_batch, same_noise


def exact(eta: float) -> Any:
    """A learner in float64 and nothing left to rounding."""
    learner = build(EDAC, num_critics=4, eta=eta)
    learner.model.double()
    return learner


def pairwise(gradients: Tensor) -> Tensor:
    """The definition: cosines of all ordered pairs, over N - 1, mean over the batch."""
    units = gradients / gradients.norm(dim=-1, keepdim=True)
    cosines = units @ units.transpose(1, 2)  # [B, N, N]
    n = gradients.shape[1]
    return ((cosines.sum((1, 2)) - n) / (n - 1)).mean()


def test_orthogonal_slopes_cost_nothing_and_equal_ones_cost_n() -> None:
    orthogonal = torch.eye(3).expand(5, 3, 3) * tensor([1.0, 10.0, 0.1])[None, :, None]
    assert critic_diversity_loss(orthogonal) == pytest.approx(0.0, abs=1e-6)
    equal = tensor([[3.0, 4.0]]).expand(7, 6, 2)  # six critics
    assert critic_diversity_loss(equal) == pytest.approx(6.0, rel=1e-6)
    assert critic_diversity_loss(tensor([[[1.0, 0.0], [-5.0, 0.0]]])) == pytest.approx(-2.0)
    assert critic_diversity_loss(tensor([[[3.0, 4.0]]])) == pytest.approx(0.0, abs=1e-6)  # no pair, no cost


def test_the_sum_without_a_matrix_is_the_pairwise_sum() -> None:
    gradients = torch.randn(8, 5, 3, dtype=torch.float64)
    torch.testing.assert_close(critic_diversity_loss(gradients), pairwise(gradients), rtol=1e-8, atol=1e-9)


def test_a_dead_critic_does_not_poison_the_gradient() -> None:
    gradients = torch.randn(4, 3, 2)
    gradients[:, 1] = 0.0
    gradients.requires_grad_()
    (slope,) = torch.autograd.grad(critic_diversity_loss(gradients), gradients)
    assert slope.isfinite().all()


def test_slopes_are_those_of_each_critic_alone() -> None:
    learner, batch = exact(1.0), double(random_batch())
    actions = batch.actions.clone().requires_grad_()
    _, slopes = learner.model.critics.with_action_gradients(batch.obs, batch.actions)
    for i in range(4):
        q = member(learner.model.critics.net, i)(torch.cat([batch.obs, actions], -1))
        torch.testing.assert_close(slopes[i], torch.autograd.grad(q.sum(), actions)[0])


def by_double_backward(learner: Any, batch: Any, noise: Tensor, eta: float) -> tuple[Tensor, list[Tensor]]:
    """The authors' way: N networks, slopes by autograd with a graph, one backward through them."""
    model, config = learner.model, learner.config
    nets = [member(model.critics.net, i) for i in range(4)]
    targets = [member(model.target_critics.net, i) for i in range(4)]
    next_actions, logprobs = model.actor.sample_with_logprob(batch.next_obs, noise)
    next_inputs = torch.cat([batch.next_obs, next_actions], -1)
    next_q = torch.stack([net(next_inputs)[:, 0] for net in targets]).min(0).values
    y = (batch.rewards + config.gamma * (1 - batch.dones) * (next_q - 0.2 * logprobs)).detach()
    actions = batch.actions.clone().requires_grad_()
    q = [net(torch.cat([batch.obs, actions], -1))[:, 0] for net in nets]
    loss = sum(((q_i - y) ** 2).mean() for q_i in q)
    if eta:
        slopes = [torch.autograd.grad(q_i.sum(), actions, create_graph=True)[0] for q_i in q]
        loss = loss + eta * pairwise(torch.stack(slopes, dim=1))
    parameters = [p for net in nets for p in net.parameters()]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return loss, [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found)]


@pytest.mark.parametrize("eta", [0.0, 5.0])
def test_the_critics_gradient_is_that_of_double_backward(eta: float) -> None:
    """With eta 0 the reference is SAC-N: summed squared errors on the minimum of all targets."""
    learner, batch = exact(eta), double(random_batch())
    noise = next(same_noise(0, 2, *batch.actions.shape)).double()
    loss, terms = learner.critic_loss(batch, *noise)
    expected, gradients = by_double_backward(learner, batch, noise[0], eta)
    torch.testing.assert_close(loss, expected, rtol=1e-7, atol=1e-7)
    parameters = dict(learner.model.critics.net.named_parameters())
    found = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values()))))
    per_net = len(gradients) // 4
    for i in range(4):
        mine = []
        for layer in ("hidden.0", "hidden.1", "head"):
            mine += [found[f"{layer}.weight"][i].T, found[f"{layer}.bias"][i, 0]]
        for ours, theirs in zip(mine, gradients[i * per_net : (i + 1) * per_net]):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(terms["critic_loss"], terms["critic_mse_loss"] + eta * terms["diversity_loss"])


def test_the_actor_climbs_the_minimum_of_all_critics() -> None:
    learner, batch = exact(1.0), double(random_batch())
    noise = next(same_noise(0, 2, *batch.actions.shape)).double()
    actions, logprobs = learner.model.actor.sample_with_logprob(batch.obs, noise[1])
    inputs = torch.cat([batch.obs, actions], -1)
    q = torch.stack([member(learner.model.critics.net, i)(inputs)[:, 0] for i in range(4)])
    _, terms = learner.actor_loss(batch, *noise)
    torch.testing.assert_close(terms["actor_loss"], (0.2 * logprobs - q.min(0).values).mean())
    torch.testing.assert_close(terms["q_policy_std"], q.std(0, correction=0).mean())


def test_without_diversity_no_slope_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = build(EDAC, eta=0.0)

    def refuse(*_: Any) -> None:
        raise AssertionError("slopes were computed")

    monkeypatch.setattr(learner.model.critics, "with_action_gradients", refuse)
    metrics = learner.update(random_batch(), global_step=0).metrics
    assert metrics["diversity_loss"] == 0
    assert metrics["critic_loss"] == metrics["critic_mse_loss"]


def test_diversity_pushes_the_slopes_apart() -> None:
    """The same data, with and without: after some updates the diversified critics point less the same way."""
    batch = random_batch(size=64)
    alignment = {}
    for eta in (0.0, 20.0):
        learner = build(EDAC, num_critics=4, eta=eta, learning_rate=3e-3)
        for i in range(60):
            learner.update(batch, global_step=i)
        _, slopes = learner.model.critics.with_action_gradients(batch.obs, batch.actions)
        alignment[eta] = critic_diversity_loss(slopes.transpose(0, 1)).item()
    assert alignment[20.0] < alignment[0.0] - 0.5


def test_every_term_by_hand() -> None:
    terms = edac_loss(
        {
            "critic_q_values": tensor([[1.0, 3.0], [2.0, 2.0]]),  # [B, N]
            "target_q_values": tensor([1.0, 0.0]),
            "sampled_q_values": tensor([[5.0, 1.0], [0.0, 2.0]]),
            "sampled_logprobs": tensor([1.0, -1.0]),
            "alpha": 0.5,
            "diversity_loss": tensor(0.3),
            "eta": 2.0,
        }
    )
    assert terms["critic_mse_loss"] == pytest.approx((0 + 4) / 2 + (4 + 4) / 2)
    assert terms["critic_loss"] == pytest.approx(6.0 + 0.6)
    assert terms["actor_loss"] == pytest.approx(((0.5 - 1.0) + (-0.5 - 0.0)) / 2)
    assert terms["entropy_term"] == pytest.approx(0.0)
    assert terms["q_data_std"] == pytest.approx((1 + 0) / 2)
    assert terms["q_policy_std"] == pytest.approx((2 + 1) / 2)
    assert terms["target_q_mean"] == pytest.approx(0.5)


def test_a_single_critic_cannot_be_diverse() -> None:
    model = MLPREDQModel(OBS, ACTIONS, (8,), 1)
    with pytest.raises(ValueError, match=r"^num_critics must be >= 2 unless eta is 0, got 1 with eta 1.0$"):
        EDAC(model=model)
    metrics = EDAC(model=model, eta=0.0).update(random_batch(), global_step=0).metrics
    assert metrics["q_data_std"] == 0
    with pytest.raises(ValueError, match=r"^eta must be >= 0.0, got -1.0$"):
        EDAC(model=model, eta=-1.0)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ({"layer_norm": True}, "^layer_norm must be false unless"),
        ({"activation": "elu"}, "^activation must be 'relu'"),
        ({"network": "simba"}, "^network must be 'mlp' unless"),
    ],
    ids=["layer_norm", "activation", "network"],
)
def test_diversity_is_refused_where_action_gradients_are_not_defined(network: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build(EDAC, network=network)
    assert "\n" not in str(caught.value)
    build(EDAC, network=network, eta=0.0).update(random_batch(), global_step=0)


def test_the_authors_shapes_are_the_default() -> None:
    network = EDAC.Network()
    assert network.hidden_sizes == (256, 256, 256)
    model = EDAC.build_model(CONTINUOUS, NetworkConfig(hidden_sizes=(8,)), EDAC.Config())
    assert model.num_critics == 10
    assert model.actor.log_std_bounds == (-5.0, 2.0)
