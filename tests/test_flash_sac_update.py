"""FlashSAC: layers and projection by hand, the whole update against an independent one, order and constraints."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.parity.lockstep import LEARNING_RATE, float64, random_batches
from rl_training.algorithms import FlashSAC, flash_sac_loss
from rl_training.algorithms.flash_sac import categorical_target, projected
from rl_training.errors import ConfigError
from rl_training.models import MLPFlashSACModel
from rl_training.models.batch_norm import BatchNorm, Moments
from rl_training.models.flash import EnsembleFlash, Flash
from rl_training.updates.schedules import OptimizationConfig
from rl_training.updates.updater import Updater
from tests.exports import SKEWED, untrained
from tests.helpers import ACTIONS, OBS, build, random_batch, snapshot
from tests.reliability.test_export import compared

UPDATES = 8


def scattered(net: Any) -> Any:
    """`net` in float64 with parameters and statistics that differ from their first values."""
    for tensor in (*net.double().parameters(), *net.buffers()):
        tensor.data += 0.3 * torch.rand_like(tensor)
    return net


def test_batch_normalisation_is_that_of_torch() -> None:
    layer = scattered(BatchNorm(2, 5))
    x = 3.0 * torch.randn(2, 8, 5, dtype=torch.float64) + 1.0
    before = [tensor.clone() for tensor in layer.statistics()]
    out, statistics = layer.by_batch(x)
    assert all(torch.equal(old, new) for old, new in zip(before, layer.statistics(), strict=True))  # a loss is pure
    for i in (0, 1):
        mean, variance, gain, shift = (t[i, 0].detach().clone() for t in (*before, layer.weight, layer.bias))
        torch.testing.assert_close(
            layer(x, lambda parameter: parameter)[i], F.batch_norm(x[i], mean, variance, gain, shift, eps=1e-5)
        )
        expected = F.batch_norm(x[i], mean, variance, gain, shift, training=True, momentum=0.01, eps=1e-5)
        torch.testing.assert_close(out[i], expected)
        torch.testing.assert_close([new[i, 0] for new in statistics], [mean, variance])


class Block(nn.Module):
    """One member of a network as torch would write it, with copies of its tensors."""

    def __init__(self, net: EnsembleFlash, i: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(*one.weight.shape[1:], bias=False) for one in net.linears)
        self.norms = nn.ModuleList(nn.BatchNorm1d(one.mean.shape[-1], momentum=0.01) for one in net.norms)
        self.head, self.gain = nn.Linear(*net.head.weight.shape[1:]), nn.Parameter(net.norm.weight[i, 0].detach())
        for own, other in zip((*self.linears, self.head), (*net.linears, net.head), strict=True):
            own.weight.data = other.weight[i].T.detach().clone()
        self.head.bias.data = net.head.bias[i, 0].detach().clone()
        self.gain.data = self.gain.data.clone()
        for own, other in zip(self.norms, net.norms, strict=True):
            for name, source in zip(("weight", "bias", "running_mean", "running_var"), of_norm(other)):
                getattr(own, name).data = source[i, 0].detach().clone()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = self.linears[0](self.norms[0](x))
        for i in range(1, len(self.linears), 2):
            inner = torch.relu(self.norms[i](self.linears[i](x)))
            x = x + torch.relu(self.norms[i + 1](self.linears[i + 1](inner)))
        return self.head(self.gain * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt())

    @torch.no_grad()
    def project(self) -> None:
        for linear in (*self.linears, self.head):
            linear.weight.div_(linear.weight.norm(dim=1, keepdim=True))
        for norm in self.norms:
            square = norm.weight.square().sum() + norm.bias.square().sum()
            for tensor in (norm.weight, norm.bias):
                tensor.mul_(math.sqrt(len(tensor)) / (square + 1e-8).sqrt())
        self.gain.mul_(math.sqrt(len(self.gain)) / (self.gain.square().sum() + 1e-8).sqrt())


def of_norm(norm: Any) -> list[Tensor]:
    return [norm.weight, norm.bias, norm.mean, norm.variance]


@pytest.mark.parametrize("blocks", [1, 3])
def test_the_formula_of_the_networks(blocks: int) -> None:
    """An ensemble is several networks, and a single one is an ensemble of one; in train mode, too."""
    with float64():
        several = scattered(EnsembleFlash(2, 5, (6, 6), 3, residual_blocks=blocks))
        x = torch.randn(9, 5)
        alone = [Block(several, i) for i in (0, 1)]
        torch.testing.assert_close(several(x), torch.stack([one(x) for one in alone]))
        torch.testing.assert_close(several(x[:1]), several(x)[:, :1])
        single = scattered(Flash(5, (6,), 3, residual_blocks=blocks))
        torch.testing.assert_close(single(x), Block(single, 0)(x))
        torch.testing.assert_close(single.by_batch(x)[0], Block(single, 0).train()(x))
        trained = torch.stack([one.train()(x) for one in alone])
        torch.testing.assert_close(several.by_batch(x)[0], trained)
    assert several(x, frozen=True).requires_grad is False


def by_hand(probs: list[float], values: list[float], low: float, high: float) -> list[float]:
    """Each probability goes to the two bins next to its value, number by number."""
    found, step = [0.0] * len(probs), (high - low) / (len(probs) - 1)
    for probability, value in zip(probs, values):
        place = (min(max(value, low), high) - low) / step
        for j in range(len(probs)):
            found[j] += probability * max(0.0, 1.0 - abs(place - j))
    return found


@pytest.mark.parametrize(("reward", "discount"), [(0.03, 0.99), (-1.7, 0.5), (9.0, 0.99), (0.31, 0.0), (0.25, 1.0)])
def test_the_projection_by_hand(reward: float, discount: float) -> None:
    """Beyond either end, on a bin, between two, and all at one place, as after a termination."""
    bins = torch.linspace(-2.0, 2.0, 9, dtype=torch.float64)
    logits = torch.randn(2, 4, 9, dtype=torch.float64)
    values = (reward + discount * bins).expand(4, -1)
    found = categorical_target(logits, bins, values)
    for row in range(4):
        probs = logits[:, row].softmax(-1)
        least = probs[int((probs @ bins).argmin())]
        assert found[row].tolist() == pytest.approx(by_hand(least.tolist(), values[row].tolist(), -2.0, 2.0))
    torch.testing.assert_close(found.sum(-1), torch.ones(4, dtype=torch.float64))


def test_the_projection_keeps_its_type_and_is_exact_to_rounding() -> None:
    probs, places = torch.rand(64, 101).softmax(-1), 100.0 * torch.rand(64, 101)
    found = projected(probs, places)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), projected(probs.double(), places.double()), rtol=0, atol=1e-7)


def test_a_nan_value_in_the_projection_affects_only_its_row() -> None:
    """An out-of-range index would end the process of a whole population on a GPU."""
    places = torch.tensor([[0.5, float("nan"), 1.0], [0.5, 1.5, 2.0]])
    found = projected(torch.full((2, 3), 1.0 / 3.0), places)
    assert found[0].isnan().any()
    assert found[1].tolist() == pytest.approx([1 / 6, 1 / 3, 1 / 2])


class Reference:
    """FlashSAC as a textbook writes it: torch's BatchNorm and Adam, modes and order set by hand."""

    def __init__(self, model: MLPFlashSACModel, *, gamma: float) -> None:
        self.gamma = gamma
        self.actor = Block(model.actor.net, 0)
        self.critics, self.targets = (
            nn.ModuleList(Block(critics.net, i) for i in (0, 1))
            for critics in (model.critics, model.target_critics)
        )
        self.log_alpha = torch.tensor(math.log(0.01), requires_grad=True)
        self.bins = torch.linspace(-5.0, 5.0, 101)
        parameters = {"actor": [*self.actor.parameters(), self.log_alpha], "critics": self.critics.parameters()}
        self.adam = {name: torch.optim.Adam(own) for name, own in parameters.items()}
        self.steps = dict.fromkeys(self.adam, 0)

    def sample(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = outputs.chunk(2, 1)
        std = torch.exp(-10.0 + 12.0 * 0.5 * (1.0 + torch.tanh(raw)))
        u = mean + std * noise
        slope = 2.0 * (math.log(2.0) - torch.logaddexp(u, -u))  # log(1 - tanh(u)^2) = -2 log cosh u
        return torch.tanh(u), (torch.distributions.Normal(mean, std).log_prob(u) - slope).sum(1)

    def logits(self, critics: nn.ModuleList, obs: Tensor, actions: Tensor) -> Tensor:
        return torch.stack([critic(torch.cat([obs, actions], 1)) for critic in critics])

    def step(self, name: str, loss: Tensor, *networks: Any) -> None:
        """Cosine from the rate to half of it over `UPDATES` steps of this optimiser."""
        factor = 0.5 + 0.5 * 0.5 * (1.0 + math.cos(math.pi * self.steps[name] / UPDATES))
        self.adam[name].param_groups[0]["lr"] = float(np.float32(LEARNING_RATE * factor))
        self.steps[name] += 1
        self.adam[name].zero_grad()
        loss.backward()
        self.adam[name].step()
        for network in networks:
            network.project()

    def update(self, batch: Any, noise: Tensor, with_actor: bool) -> dict[str, float]:
        terms, rows = {}, len(batch.obs)
        if with_actor:
            outputs = self.actor.train()(torch.cat([batch.obs, batch.next_obs]))[:rows]
            self.actor.eval()
            actions, logprobs = self.sample(outputs, noise[1])
            q = (self.logits(self.critics, batch.obs, actions).softmax(-1) * self.bins).sum(-1)
            alpha = self.log_alpha.exp()
            actor_loss = (alpha.detach() * logprobs - q.min(0).values).mean()
            goal = 0.5 * ACTIONS * math.log(2 * math.pi * math.e * 0.15**2)
            self.step("actor", actor_loss + alpha * (-logprobs.detach().mean() - goal), self.actor)
            terms |= {"actor_loss": float(actor_loss.detach()), "alpha": float(alpha.detach())}
        with torch.no_grad():
            next_actions, next_logprobs = self.sample(self.actor(batch.next_obs), noise[0])
            pairs = torch.cat([batch.obs, batch.next_obs]), torch.cat([batch.actions, next_actions])
            probs = self.logits(self.targets.train(), *pairs)[:, rows:].softmax(-1)
            lower = (probs * self.bins).sum(-1).argmin(0)
            entropy = self.log_alpha.exp() * next_logprobs
            moved = batch.rewards[:, None] + self.gamma * (1 - batch.dones[:, None]) * (
                self.bins - entropy[:, None]
            )
            target = torch.tensor(
                [by_hand(probs[lower[i], i].tolist(), moved[i].tolist(), -5.0, 5.0) for i in range(rows)]
            )
        logits = self.logits(self.critics.train(), *pairs)[:, :rows]
        self.critics.eval()
        critic_loss = -(target * logits.log_softmax(-1)).sum(-1).mean()
        self.step("critics", critic_loss, *self.critics)
        for old, new in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
            old.data.lerp_(new.data, 0.01)
        return terms | {"critic_loss": float(critic_loss.detach())}


def test_the_update_equals_an_independent_one() -> None:
    """Order, modes, constraints, statistics, schedule: eight updates with the actor in each second one."""
    schedule = OptimizationConfig.parse({"learning_rate_schedule": {"type": "cosine", "final_factor": 0.5}})
    with float64():
        torch.manual_seed(0)
        model = MLPFlashSACModel(OBS, ACTIONS, (8,), critic_hidden_sizes=(16,))
        agent = FlashSAC(model=model, learning_rate=LEARNING_RATE, gamma=0.9)
        agent.seed(11)
        updater = Updater(agent, _NoSource(), 16, schedule=schedule, total_updates=UPDATES)  # type: ignore[arg-type]
        reference, noise = Reference(model, gamma=0.9), torch.Generator().manual_seed(11)
        for i, batch in zip(range(UPDATES), random_batches()):
            updater._set_rates(updater._rates(i))
            agent.step(batch)
            draws = torch.randn(2, 16, ACTIONS, generator=noise)
            expected = reference.update(batch, draws, with_actor=i % 2 == 0)
            found = {name: float(agent.terms[name]) for name in expected}
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)
        ours = [
            Block(model.actor.net, 0),
            *(Block(c.net, i) for c in (model.critics, model.target_critics) for i in (0, 1)),
        ]
        for mine, other in zip(ours, (reference.actor, *reference.critics, *reference.targets), strict=True):
            theirs = other.state_dict()
            for name, tensor in mine.state_dict().items():
                if "num_batches" not in name:
                    torch.testing.assert_close(tensor, theirs[name], atol=1e-9, rtol=0, msg=name)
        torch.testing.assert_close(agent.temperature.log_alpha, reference.log_alpha, atol=1e-9, rtol=0)


class _NoSource:
    """An `Updater` that only computes learning rates draws no rows."""

    device, arrivals = torch.device("cpu"), ()


def constrained(net: EnsembleFlash) -> bool:
    """Whether matrices have columns of norm 1, and gains and shifts the norm sqrt(features)."""
    columns = [layer.weight.norm(dim=-2) for layer in (*net.linears, net.head)]
    gains = [
        torch.cat([norm.weight, norm.bias], -1).norm(dim=-1) / norm.weight.shape[-1] ** 0.5 for norm in net.norms
    ]
    gains.append(net.norm.weight.norm(dim=-1) / net.norm.weight.shape[-1] ** 0.5)
    return all(bool((norm - 1.0).abs().max() < 1e-5) for norm in (*columns, *gains))


def test_constraints_hold_from_the_start_and_after_each_step() -> None:
    """Those of the targets, which are averages, only at the start; 101 bins are more than the width."""
    agent = build(FlashSAC, learning_rate=0.01)
    nets = [agent.model.actor.net, agent.model.critics.net]
    assert all(map(constrained, (*nets, agent.model.target_critics.net)))
    for seed in range(4):
        agent.update(random_batch(seed=seed), global_step=0)
        assert all(map(constrained, nets))
    assert not constrained(agent.model.target_critics.net)


def test_initial_matrices_are_orthogonal_and_those_of_mean_and_log_std_separate() -> None:
    model = MLPFlashSACModel(OBS, 4, (16,))
    for matrix in (
        *model.actor.net.head.weight.detach().chunk(2, -1),
        model.critics.net.linears[2].weight.detach(),
    ):
        torch.testing.assert_close(matrix[0].T @ matrix[0], torch.eye(matrix.shape[-1]), atol=1e-5, rtol=0)
    mean, log_std = model.actor.net.head.weight.detach()[0].chunk(2, -1)
    assert (mean.T @ log_std).abs().max() > 1e-3


def test_what_each_update_leaves_alone() -> None:
    """The actor and its statistics change in even updates only, targets in every one, and nothing by acting."""
    agent = build(FlashSAC)
    for update in range(4):
        before = snapshot(agent)
        agent.update(random_batch(seed=update), global_step=0)
        moved = {name for name, tensor in snapshot(agent).items() if not torch.equal(tensor, before[name])}
        parts = {name.split(".")[1] for name in moved}
        assert parts == {"critics", "target_critics"} | ({"actor", "log_alpha"} if update % 2 == 0 else set())
        for part in {"critics", "target_critics"} | ({"actor"} & parts):
            ends = {name.rpartition(".")[2] for name in moved if name.startswith(f"model.{part}.")}
            assert ends == {"weight", "bias", "mean", "variance"}
    before = snapshot(agent)
    agent.model.policy.mode(torch.randn(9, OBS))
    agent.model.q_values(torch.randn(9, OBS), torch.zeros(9, ACTIONS))
    assert all(torch.equal(tensor, before[name]) for name, tensor in snapshot(agent).items())


def test_next_observations_enter_the_statistics_of_the_actor_but_not_its_loss() -> None:
    one, other = random_batch(), random_batch()._replace(next_obs=random_batch().next_obs.flip(0))
    found = []
    for batch in (one, other, one._replace(next_obs=7.0 * one.next_obs)):
        agent = build(FlashSAC)
        loss, _, statistics = agent.actor_loss(batch, torch.zeros(16, ACTIONS))
        found.append((float(loss.detach()), float(statistics[0].norm())))
    assert found[0] == pytest.approx(found[1])
    assert found[0][1] != pytest.approx(found[2][1])


@pytest.mark.parametrize("delay", [1, 2, 3])
@pytest.mark.parametrize("starts", [None, 0, 1, 4])
def test_the_schedule_counts_the_steps_of_each_optimiser(delay: int, starts: int | None) -> None:
    agent = build(FlashSAC, policy_delay=delay, actor_starts=starts)
    for update in range(12):
        made = sum(agent.variant(earlier) for earlier in range(update))
        assert agent.schedule_step(agent.optimizers["actor"], update) == made
        assert agent.schedule_step(agent.optimizers["critics"], update) == update
    assert agent.variant(0) == (not starts)


def test_defaults_are_those_of_the_authors() -> None:
    config, network = FlashSAC.Config(), FlashSAC.Network()
    assert (config.learning_rate, config.tau, config.alpha, config.initial_alpha) == (3e-4, 0.01, "auto", 0.01)
    assert (config.policy_delay, config.num_bins, config.value_limit, config.longest_noise) == (2, 101, 5.0, 16)
    assert (network.hidden_sizes, network.critic_hidden_sizes, network.residual_blocks) == ((128,), (256,), 2)
    entropy = torch.distributions.Normal(0.0, 0.15).entropy()
    assert build(FlashSAC).temperature.target_entropy == pytest.approx(ACTIONS * float(entropy))
    assert build(FlashSAC, target_entropy=-7.0).temperature.target_entropy == -7.0


def test_other_networks_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^network must be 'mlp' for flash_sac, .*, got 'simba'$"):
        build(FlashSAC, network={"network": "simba"})
    with pytest.raises(ConfigError, match=r"^layer_norm_epsilon must be 1e-06 for flash_sac, .*, got 1e-05$"):
        build(FlashSAC, network={"layer_norm_epsilon": 1e-5})
    with pytest.raises(ConfigError, match=r"^hidden_sizes .* one width, got \[8, 16\]; use one size"):
        build(FlashSAC, network={"hidden_sizes": (8, 16)})
    with pytest.raises(ConfigError, match=r"^num_bins must equal the model's 101, got 11$"):
        FlashSAC(model=MLPFlashSACModel(OBS, ACTIONS, (8,)), num_bins=11)


def test_values_are_within_the_bins() -> None:
    agent = build(FlashSAC, value_limit=3.0, num_bins=7)
    agent.model.critics.net.head.bias.data[0, 0, -1] = 50.0
    q = agent.model.action_values(torch.randn(5, OBS), torch.zeros(5, ACTIONS))
    assert q.shape == (2, 5)
    torch.testing.assert_close(q[0], torch.full((5,), 3.0))
    assert q[1].abs().max() < 3.0


@pytest.mark.parametrize("suffix", [".onnx", ".npz"])
@pytest.mark.parametrize("sampled", [False, True])
def test_policies_are_written(sampled: bool, suffix: str) -> None:
    for blocks in (1, 3):
        loaded = untrained("flash_sac", SKEWED, residual_blocks=blocks, hidden_sizes=[8], activation="silu")
        for part in loaded.policy.actor.modules():
            if isinstance(part, BatchNorm):
                for tensor in (part.weight, part.bias, part.mean, part.variance):
                    tensor.data += 0.5 * torch.rand_like(tensor)
        assert compared(loaded, suffix, sampled=sampled).largest <= 1e-5


def test_loss_helper() -> None:
    bins = torch.linspace(-1.0, 1.0, 3)
    log_probs, target = torch.randn(5, 2, 3).log_softmax(-1), torch.rand(5, 3).softmax(-1)
    batch: dict[str, Any] = {name: torch.randn(5) for name in ("sampled_logprobs", "sampled_q1", "sampled_q2")}
    terms = flash_sac_loss(batch | {"log_probs": log_probs, "target_probs": target, "bins": bins, "alpha": 0.5})
    entropies = [-float((target[i] * log_probs[i, k]).sum()) for i in range(5) for k in (0, 1)]
    assert float(terms["critic_loss"]) == pytest.approx(sum(entropies) / 10)
    assert float(terms["target_q_mean"]) == pytest.approx(float((target @ bins).mean()))
    least = torch.minimum(batch["sampled_q1"], batch["sampled_q2"])
    assert float(terms["actor_loss"]) == pytest.approx(float((0.5 * batch["sampled_logprobs"] - least).mean()))


@pytest.mark.parametrize("offset", [0.0, 1e4, -3e6])
def test_moments_keep_their_digits_far_from_zero(offset: float) -> None:
    """Values and gradients; squares of such float32 numbers would have lost the variance."""
    x = (offset + torch.randn(2, 512, 5, generator=torch.Generator().manual_seed(1))).requires_grad_()
    exact = x.detach().double().requires_grad_()
    moments = Moments.of(x)
    expected_moments = torch.var_mean(exact, -2, correction=0, keepdim=True)
    for found, expected in zip((moments.variance, moments.mean), expected_moments):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    (found,) = torch.autograd.grad(Moments.of(x).variance.sum(), x)
    (expected,) = torch.autograd.grad(torch.var_mean(exact, -2, correction=0)[0].sum(), exact)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-6)
    normal, weights = moments.scaled(moments.variance.rsqrt(), torch.zeros(())), exact.detach().float().sin()
    exact_normal = (exact - expected_moments[1]) / expected_moments[0].sqrt()
    torch.testing.assert_close(normal.double(), exact_normal, rtol=1e-4, atol=1e-5)
    (found,) = torch.autograd.grad((normal * weights).sum(), x)
    (expected,) = torch.autograd.grad((exact_normal * weights).sum(), exact)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4)
    constant = torch.full((1, 8, 1), 0.1, requires_grad=True)
    assert float(Moments.of(constant).variance.detach()) == 0.0
    assert torch.autograd.grad(Moments.of(constant).variance.sum(), constant)[0].abs().max() == 0.0
