"""CrossQ: batch renormalisation by hand, the whole update against independent ones, and running statistics."""

from __future__ import annotations

import argparse
import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.parity.__main__ import MISTAKE, differences
from benchmarks.parity.cases import CASES, CROSSQ, Case, crossq_model
from benchmarks.parity.lockstep import float64, noises, play, random_batches
from benchmarks.parity.normalizing import play_crossq
from rl_training.algorithms import CrossQ, crossq_loss, sac_loss
from rl_training.errors import ConfigError
from rl_training.models import MLPCrossQModel
from rl_training.models.batch_renorm import EPSILON, WARM_UP, BatchRenorm, EnsembleRenormMLP, RenormMLP
from tests.helpers import ACTIONS, OBS, build, double, random_batch, same_noise, snapshot

SIZES = (16, 12)


def brn(x: Tensor, mean: float, variance: float, warm: bool) -> list[float]:
    """Batch renormalisation of one feature, number by number."""
    values = x.tolist()
    batch_mean = sum(values) / len(values)
    std = (sum((value - batch_mean) ** 2 for value in values) / len(values) + 1e-3) ** 0.5
    running = (variance + 1e-3) ** 0.5
    r = min(max(std / running, 1 / 3), 3.0) if warm else 1.0
    d = min(max((batch_mean - mean) / running, -5.0), 5.0) if warm else 0.0
    return [2.0 * ((value - batch_mean) / std * r + d) + 0.5 for value in values]


@pytest.mark.parametrize(
    ("mean", "variance"), [(0.3, 1.7), (40.0, 1.0), (-40.0, 1.0), (0.0, 1e-4), (0.0, 400.0)], ids=str
)
@pytest.mark.parametrize("batches", [0, WARM_UP - 1, WARM_UP])
def test_batch_renormalisation_by_hand(mean: float, variance: float, batches: int) -> None:
    """Both phases; r and d within their bounds and clipped at either."""
    layer = BatchRenorm(1, 1).double()
    for tensor, value in ((layer.weight, 2.0), (layer.bias, 0.5), (layer.mean, mean), (layer.variance, variance)):
        tensor.data.fill_(value)
    layer.batches.fill_(batches)
    x = torch.tensor([0.1, -1.3, 2.2, 0.4], dtype=torch.float64)
    found, statistics = layer.by_batch(x.view(1, 4, 1))
    assert found.flatten().tolist() == pytest.approx(brn(x, mean, variance, batches >= WARM_UP), rel=1e-12)
    assert float(layer.mean) == mean  # a loss is pure
    torch._foreach_copy_(layer.statistics(), statistics)
    assert float(layer.mean) == pytest.approx(0.99 * mean + 0.01 * float(x.mean()))
    assert float(layer.variance) == pytest.approx(0.99 * variance + 0.01 * float(x.var(correction=0)))
    assert float(layer.batches) == batches + 1


def test_r_and_d_have_no_gradient() -> None:
    """Where neither is clipped the output is (x - running mean) / running std, but its gradient is BatchNorm's."""
    layer = BatchRenorm(1, 1).double()
    layer.batches.fill_(WARM_UP)
    x = torch.tensor([0.1, -1.3, 2.2, 0.4], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([1.0, 2.0, -1.0, 3.0], dtype=torch.float64)
    out = layer.by_batch(x.view(1, 4, 1))[0].flatten()
    torch.testing.assert_close(out, x / (1.0 + EPSILON) ** 0.5)
    found = torch.autograd.grad(out @ weights, x)[0]
    std = (x.var(correction=0) + EPSILON).sqrt()
    r = float(std.detach()) / (1.0 + EPSILON) ** 0.5
    expected = torch.autograd.grad(((x - x.mean()) / std * r) @ weights, x)[0]
    torch.testing.assert_close(found, expected)


def test_a_call_does_not_depend_on_the_other_rows() -> None:
    net = EnsembleRenormMLP(2, OBS, SIZES, 1).double()
    x = torch.randn(8, OBS, dtype=torch.float64)
    torch._foreach_copy_(net.statistics(), net.by_batch(x + 1.0)[1])
    whole = net(x)
    torch.testing.assert_close(net(x[:1]), whole[:, :1])
    assert not torch.allclose(net.by_batch(x[:4])[0], net.by_batch(x)[0][:, :4])
    torch.testing.assert_close(net(x, members=1), whole[:1])
    assert net(x, frozen=True).requires_grad is False


def test_a_unit_that_is_constant_has_finite_gradients() -> None:
    layer = BatchRenorm(1, 2)
    layer.batches.fill_(WARM_UP)
    x = torch.zeros(1, 8, 2, requires_grad=True)
    gradients = torch.autograd.grad(layer.by_batch(x)[0].square().sum(), [x, layer.weight])
    assert all(gradient.isfinite().all() for gradient in gradients)


def norm(layer: BatchRenorm, i: int) -> nn.BatchNorm1d:
    """Member `i` as torch's BatchNorm, for its normalisation of a batch, and with running statistics for calls."""
    own = nn.BatchNorm1d(layer.mean.shape[-1], eps=EPSILON, momentum=0.01, dtype=torch.float64)
    for target, source in zip(
        (own.weight, own.bias, own.running_mean, own.running_var),
        (layer.weight, layer.bias, layer.mean, layer.variance),
    ):
        target.data.copy_(source[i, 0].detach())
    return own


def textbook(net: EnsembleRenormMLP, i: int) -> nn.Sequential:
    """Member `i` as torch would write it."""
    layers: list[nn.Module] = [norm(net.norms[0], i)]
    for j, linear in enumerate((*net.hidden, net.head)):
        own = nn.Linear(*linear.weight.shape[1:], dtype=torch.float64)
        own.weight.data.copy_(linear.weight[i].T.detach())
        own.bias.data.copy_(linear.bias[i, 0].detach())
        layers += [own] if linear is net.head else [own, nn.ReLU(), norm(net.norms[j + 1], i)]
    return nn.Sequential(*layers)


def biased(networks: nn.Module, rows: int) -> None:
    """Undo torch's unbiased variance in the last update of the running one."""
    for part in networks.modules():
        if isinstance(part, nn.BatchNorm1d):
            old = part.before
            batch = (part.running_var - 0.99 * old) * (rows - 1) / rows
            part.running_var.copy_(0.99 * old + batch)


class Reference:
    """CrossQ as a textbook writes it, in the warm-up: torch's BatchNorm and Adam, modes set by hand."""

    def __init__(self, model: MLPCrossQModel, *, learning_rate: float, gamma: float) -> None:
        self.gamma = gamma
        self.actor = textbook(model.actor.net, 0)
        self.critics = nn.ModuleList(textbook(model.critics.net, i) for i in (0, 1))
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.of_actor = torch.optim.Adam(self.actor.parameters(), lr=learning_rate, betas=(0.5, 0.999))
        self.of_critics = torch.optim.Adam(self.critics.parameters(), lr=learning_rate, betas=(0.5, 0.999))
        self.of_alpha = torch.optim.Adam([self.log_alpha], lr=learning_rate)

    @staticmethod
    def trained(networks: nn.Module, call: Any) -> Any:
        """`call` with `networks` in train mode; all others are in eval mode."""
        for part in networks.modules():
            if isinstance(part, nn.BatchNorm1d):
                part.before = part.running_var.clone()  # type: ignore[assignment]
        networks.train()
        result = call()
        networks.eval()
        return result

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(obs).chunk(2, 1)
        std = log_std.clamp(-20, 2).exp()
        action = torch.tanh(mean + std * noise)
        density = torch.distributions.Normal(mean, std).log_prob(mean + std * noise) - torch.log(1 - action**2)
        return action, density.sum(1)

    def q(self, obs: Tensor, actions: Tensor) -> Tensor:
        return torch.stack([critic(torch.cat([obs, actions], 1))[:, 0] for critic in self.critics])

    def update(self, batch: Any, noise: Tensor, delayed: bool) -> dict[str, float]:
        alpha, rows = self.log_alpha.exp().item(), len(batch.obs)
        self.actor.eval()
        with torch.no_grad():
            next_actions, next_logprobs = self.sample(batch.next_obs, noise[0])
        pairs = torch.cat([batch.obs, batch.next_obs]), torch.cat([batch.actions, next_actions])
        q, next_q = self.trained(self.critics, lambda: self.q(*pairs)).split(rows, 1)
        value = next_q.detach().min(0).values - alpha * next_logprobs
        goal = batch.rewards + self.gamma * (1 - batch.dones) * value
        critic_loss = 0.5 * ((q - goal) ** 2).mean(1).sum()
        self.step(self.of_critics, critic_loss)
        biased(self.critics, 2 * rows)
        terms = {"critic_loss": float(critic_loss.detach()), "target_q_mean": float(goal.mean())}
        if delayed:
            return terms
        actions, logprobs = self.trained(self.actor, lambda: self.sample(batch.obs, noise[1]))
        actor_loss = (alpha * logprobs - self.q(batch.obs, actions).min(0).values).mean()
        self.step(self.of_actor, actor_loss)
        biased(self.actor, rows)
        self.step(self.of_alpha, -(self.log_alpha * (logprobs.detach() - ACTIONS)).mean())
        return terms | {"actor_loss": float(actor_loss.detach()), "alpha": alpha}

    @staticmethod
    def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_the_update_equals_an_independent_one() -> None:
    """Order, modes, betas, statistics: six updates with the actor in each second one."""
    model = MLPCrossQModel(OBS, ACTIONS, SIZES).double()
    agent = CrossQ(model=model, learning_rate=3e-3, gamma=0.9, policy_delay=2)
    agent.seed(11)
    reference = Reference(model, learning_rate=3e-3, gamma=0.9)
    for i, noise in zip(range(6), same_noise(11, 2, 16, ACTIONS)):
        batch = double(random_batch(seed=i))
        agent.step(batch)
        expected = reference.update(batch, noise.double(), delayed=i % 2 == 0)
        assert {name: float(agent.terms[name]) for name in expected} == pytest.approx(expected, rel=1e-5, abs=1e-6)
    ours = [textbook(model.actor.net, 0), *(textbook(model.critics.net, i) for i in (0, 1))]
    for mine, other in zip(ours, (reference.actor, *reference.critics)):
        theirs = other.state_dict()
        for name, tensor in mine.state_dict().items():
            if "num_batches" not in name:
                torch.testing.assert_close(tensor, theirs[name], atol=1e-6, rtol=0, msg=name)
    torch.testing.assert_close(agent.temperature.log_alpha, reference.log_alpha, atol=1e-6, rtol=0)
    counts = {name: float(t) for name, t in model.state_dict().items() if name.endswith("batches")}
    assert {value for name, value in counts.items() if name.startswith("actor")} == {3.0}
    assert {value for name, value in counts.items() if name.startswith("critics")} == {6.0}


@pytest.mark.parametrize("case", [case for case in CASES if case.learner == "CrossQ"], ids=lambda case: case.name)
def test_same_updates_as_sb3_contrib(case: Case) -> None:
    pytest.importorskip("sb3_contrib")
    found, seen, _ = differences(case, argparse.Namespace())
    assert found.largest < 1e-11  # measured: 2e-13
    assert seen.keys() == set(case.mistakes)
    assert min(seen.values()) > MISTAKE, seen


def test_same_updates_as_sb3_contrib_with_relu() -> None:
    """Rounding is larger here (see `crossq_model`), so absolute differences are bounded."""
    pytest.importorskip("sb3_contrib")
    case = replace(CROSSQ, model=partial(crossq_model, 0, "relu"))
    with float64():
        agent, batches = case.build(), random_batches()
        inputs = agent.config, agent.state_dict()["networks"], batches, noises(case.draw)
        theirs, ours = play_crossq(False, *inputs, activation=nn.ReLU), play(agent, batches)
    differences_ = [
        abs(mine[name] - value)
        for mine, other in zip(ours.losses, theirs.losses, strict=True)
        for name, value in other.items()
    ]
    differences_ += [float((ours.parameters[name] - t).abs().max()) for name, t in theirs.parameters.items()]
    assert max(differences_) < 1e-10


def test_what_an_update_of_the_critics_leaves_alone() -> None:
    """The actor's statistics change only with the actor, and nothing changes when it acts."""
    agent = build(CrossQ, policy_delay=3)
    start = snapshot(agent)
    agent.update(random_batch(), global_step=0)
    moved = {name for name, tensor in snapshot(agent).items() if not torch.equal(tensor, start[name])}
    assert {name.split(".")[1] for name in moved} == {"critics"}
    assert {name.rpartition(".")[2] for name in moved} == {"weight", "bias", "mean", "variance", "batches"}
    before = snapshot(agent)
    agent.model.policy.mode(torch.randn(9, OBS))
    agent.model.q_values(torch.randn(9, OBS), torch.zeros(9, ACTIONS))
    assert all(torch.equal(tensor, before[name]) for name, tensor in snapshot(agent).items())


def test_an_exception_between_two_steps_leaves_the_learner_torn(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = build(CrossQ, policy_delay=1)
    gradients = agent._gradients

    def fails(names: tuple[str, ...], *arguments: Any) -> Any:
        if "actor" in names:
            raise MemoryError
        return gradients(names, *arguments)

    monkeypatch.setattr(agent, "_gradients", fails)
    with pytest.raises(MemoryError):
        agent.update(random_batch(), global_step=0)
    assert agent.step_interrupted


def test_there_are_no_targets_and_betas_are_as_published() -> None:
    agent = build(CrossQ)
    assert agent.targets() == {}
    assert not any("target" in name for name in agent.state_dict()["networks"])
    assert {name: one.settings[0] for name, one in agent.optimizers.items()} == {
        "critics": (0.5, 0.999),
        "actor": (0.5, 0.999),
        "temperature": (0.9, 0.999),
    }
    assert "temperature" not in build(CrossQ, alpha=0.2).optimizers


def test_defaults_are_those_of_the_paper() -> None:
    config, network = CrossQ.Config(), CrossQ.Network()
    assert (config.learning_rate, config.policy_delay, config.alpha, config.initial_alpha) == (1e-3, 3, "auto", 1.0)
    assert (network.hidden_sizes, network.critic_hidden_sizes) == ((256, 256), (2048, 2048))
    assert build(CrossQ).temperature.target_entropy == -ACTIONS


def test_other_networks_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^network must be 'mlp' for crossq, .*, got 'simba'$"):
        build(CrossQ, network={"network": "simba"})
    with pytest.raises(ConfigError, match=r"^residual_blocks must be 2 for crossq, .*, got 3$"):
        build(CrossQ, network={"residual_blocks": 3})
    with pytest.raises(ConfigError, match=r"^layer_norm_epsilon must be 1e-06 for crossq, .*, got 1e-05$"):
        build(CrossQ, network={"layer_norm_epsilon": 1e-5})


def test_the_exported_operations_are_those_of_a_call() -> None:
    net = RenormMLP(OBS, SIZES, 4).double()
    for part in net.modules():
        if isinstance(part, BatchRenorm):
            nn.init.normal_(part.weight)
            nn.init.normal_(part.bias)
            nn.init.normal_(part.mean)
            nn.init.uniform_(part.variance, 0.1, 10.0)
    obs = torch.randn(7, OBS, dtype=torch.float64)
    x = obs.numpy()
    for step in net.steps(outputs=2):
        x = np.maximum(x, 0.0) if step.operation == "relu" else x @ step.arrays["weight"] + step.arrays["bias"]
    np.testing.assert_allclose(x, net(obs)[:, :2].detach().numpy(), rtol=1e-10)


def test_loss_helper_is_that_of_sac() -> None:
    names = ("q1_values", "q2_values", "target_q_values", "sampled_logprobs", "sampled_q1", "sampled_q2")
    batch: dict[str, Any] = {name: torch.randn(5) for name in names} | {"alpha": 0.5}
    assert crossq_loss(copy.copy(batch)) == sac_loss(batch)
