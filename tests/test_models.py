"""Networks: an ensemble is N networks, a frozen one passes gradients through, densities are densities."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from torch import nn
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from rl_training.algorithms import Learner
from rl_training.experiment.registry import list_algorithm_specs
from rl_training.models import (
    MLP,
    EnsembleLinear,
    EnsembleMLP,
    MLPDDPGModel,
    MLPQNetwork,
    MLPREDQModel,
    MLPSACModel,
    MLPTD3Model,
    MLPTQCModel,
    TanhGaussianActor,
    mlp,
    networks,
)
from rl_training.models.mlp import frozen_copy
from rl_training.models.policies import log_tanh_slope
from tests.helpers import constant_outputs, label, member, sequential
from tests.runs import mostly_slow


@pytest.fixture(params=[False, True], ids=["plain", "layer_norm"])
def ensemble(request: pytest.FixtureRequest) -> EnsembleMLP:
    net = EnsembleMLP(4, 5, (8, 6), 3, layer_norm=request.param).double()
    for norm in net.norms:
        nn.init.normal_(norm.weight, 1.0, 0.3)
        nn.init.normal_(norm.bias, 0.0, 0.3)
    return net


def test_an_ensemble_is_n_separate_networks(ensemble: EnsembleMLP) -> None:
    x = torch.randn(7, 5, dtype=torch.float64)
    out = ensemble(x)
    assert out.shape == (4, 7, 3)
    weights = torch.randn_like(out)
    (out * weights).sum().backward()
    for i in range(4):
        alone = member(ensemble, i)
        value = alone(x)
        torch.testing.assert_close(out[i], value)
        (value * weights[i]).sum().backward()
        ours = [p.grad[i].squeeze(0) if p.grad[i].shape[0] == 1 else p.grad[i].T for p in _in_order(ensemble)]
        for ours_i, theirs in zip(ours, alone.parameters()):
            torch.testing.assert_close(ours_i, theirs.grad)


def _in_order(net: EnsembleMLP) -> list[nn.Parameter]:
    layers = [layer for pair in net._layers() for layer in pair if layer is not None]
    return [p for layer in (*layers, net.head) for p in (layer.weight, layer.bias)]


def test_frozen_critics_have_the_same_input_gradient_and_no_weight_gradient(ensemble: EnsembleMLP) -> None:
    x = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    (free,) = torch.autograd.grad(ensemble(x).square().sum(), x)
    frozen_out = ensemble(x, frozen=True)
    (frozen,) = torch.autograd.grad(frozen_out.square().sum(), x, retain_graph=True)
    torch.testing.assert_close(frozen, free, rtol=0, atol=0)
    reached = torch.autograd.grad(frozen_out.sum(), list(ensemble.parameters()), allow_unused=True)
    assert all(gradient is None for gradient in reached)
    assert not ensemble(x.detach(), frozen=True).requires_grad


def test_the_first_members_can_be_asked_alone(ensemble: EnsembleMLP) -> None:
    x = torch.randn(7, 5, dtype=torch.float64)
    torch.testing.assert_close(ensemble(x, members=1), ensemble(x)[:1])
    torch.testing.assert_close(ensemble(x, members=3), ensemble(x)[:3])


def test_named_members_can_be_asked_in_any_order(ensemble: EnsembleMLP) -> None:
    x = torch.randn(7, 5, dtype=torch.float64)
    torch.testing.assert_close(ensemble(x, members=torch.tensor([3, 1])), ensemble(x)[[3, 1]])


@pytest.mark.parametrize("compiling", mostly_slow([False, True], False))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_few_outputs_as_a_compiled_sum_are_the_product(
    dtype: torch.dtype, compiling: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only a GPU is given when compiled, forced here; traced without a compiler, or as if it were."""
    network = EnsembleMLP(3, 5, (7,), 6).to(dtype)
    x = torch.randn(4, 5, dtype=dtype, requires_grad=True)
    asked = []

    def always(x: torch.Tensor, weight: torch.Tensor) -> bool:
        asked.append(weight.shape)
        return True

    monkeypatch.setattr(mlp, "_better_as_sum", always)
    members = torch.tensor([2, 0])
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True) if compiling else network
    for options in ({}, {"frozen": True}, {"members": 2}, {"members": members}):
        eager = network(x, **options)
        with monkeypatch.context() as as_if:
            if not compiling:
                as_if.setattr(torch.compiler, "is_compiling", lambda: True)
            traced = compiled(x, **options)
        torch.testing.assert_close(traced, eager)
        wanted = [x] if "frozen" in options else [x, *network.parameters()]
        expected = torch.autograd.grad(eager.sum(), wanted)
        for ours, theirs in zip(torch.autograd.grad(traced.sum(), wanted), expected):
            torch.testing.assert_close(ours, theirs)
    assert asked


def test_a_single_network_is_an_ensemble_of_one_without_its_axis() -> None:
    net, x = MLP(5, (8, 6), 3), torch.randn(7, 5)
    assert net(x).shape == (7, 3)
    torch.testing.assert_close(net(x), sequential(net)(x))


@pytest.mark.parametrize("activation", get_args(mlp.Activation))
def test_every_activation_is_torch_s(activation: mlp.Activation) -> None:
    net, x = EnsembleMLP(2, 5, (8, 6), 3, layer_norm=True, activation=activation).double(), torch.randn(7, 5)
    for i in range(2):
        torch.testing.assert_close(net(x.double())[i], member(net, i)(x.double()))


def test_the_epsilon_of_layer_norm_is_a_setting() -> None:
    assert mlp.NetworkConfig().layer_norm_epsilon == 1e-6
    x = 1e-3 * torch.randn(7, 5, dtype=torch.float64)
    outputs = []
    for epsilon in (1e-6, 1e-2):
        torch.manual_seed(0)
        net = MLP(5, (8,), 3, layer_norm=True, layer_norm_epsilon=epsilon).double()
        torch.testing.assert_close(net(x), sequential(net)(x))
        outputs.append(net(x))
    assert not torch.allclose(*outputs)


@pytest.mark.parametrize("hidden", [(8,), (8, 6), (8, 6, 4)])
def test_slopes_are_autograd_s_and_so_are_their_gradients(hidden: tuple[int, ...]) -> None:
    net = EnsembleMLP(3, 5, hidden, 1).double()
    x = torch.randn(6, 5, dtype=torch.float64)
    inputs = x.clone().requires_grad_()
    q, slopes = net.with_action_gradients(x, 2)
    expected_q = net(inputs)
    expected = torch.stack(
        [torch.autograd.grad(q_i.sum(), inputs, create_graph=True)[0][:, -2:] for q_i in expected_q]
    )
    torch.testing.assert_close(q, expected_q)
    torch.testing.assert_close(slopes, expected)
    weights = [layer.weight for layer in (*net.hidden, net.head)]  # biases move no slope, only masks
    once = torch.autograd.grad(slopes.pow(3).sum(), weights)
    twice = torch.autograd.grad(expected.pow(3).sum(), weights)
    for ours, theirs in zip(once, twice):
        torch.testing.assert_close(ours, theirs)


def test_slopes_of_networks_that_have_none_are_refused() -> None:
    plain = EnsembleMLP(2, 5, (8,), 1, activation="elu")
    for net in (EnsembleMLP(2, 5, (8,), 1, layer_norm=True), EnsembleMLP(2, 5, (8,), 3), plain):
        with pytest.raises(ValueError, match="plain ReLU critics"):
            net.with_action_gradients(torch.zeros(4, 5), 2)


@pytest.mark.parametrize("init", ["torch", "xavier", "orthogonal"])
def test_initial_weights_follow_the_rule_by_fan_in_and_differ_between_members(init: str) -> None:
    layer = EnsembleLinear(2, 30, 50, init=init)
    a, b = layer.weight.data
    assert not torch.equal(a, b)
    if init == "torch":
        bound = 1 / math.sqrt(30)
        assert 0.95 * bound < layer.weight.abs().max() <= bound
        assert layer.bias.abs().max() <= bound
    elif init == "xavier":
        bound = math.sqrt(6 / (30 + 50))
        assert 0.95 * bound < layer.weight.abs().max() <= bound
    else:
        torch.testing.assert_close(a @ a.T, 2 * torch.eye(30), atol=1e-4, rtol=0)
    assert init == "torch" or not layer.bias.any()


def wide_actor(mean: float, log_std: float, bounds: tuple[float, float] = (-20.0, 2.0)) -> TanhGaussianActor:
    """An actor of one action whose distribution does not depend on what it sees, in float64."""
    actor = TanhGaussianActor(1, 1, (4,), log_std_bounds=bounds).double()
    constant_outputs(actor.net, [[mean, log_std]])
    return actor


def test_tanh_logprob_is_that_of_the_transformed_distribution() -> None:
    actor = TanhGaussianActor(3, 2, (16,)).double()
    obs = torch.randn(200, 3, dtype=torch.float64)
    noise = torch.randn(200, 2, dtype=torch.float64)
    mean, log_std = actor(obs)
    reference = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform(cache_size=1))
    actions, logprobs = actor.sample_with_logprob(obs, noise)
    torch.testing.assert_close(actions, torch.tanh(mean + log_std.exp() * noise))
    torch.testing.assert_close(logprobs, reference.log_prob(actions).sum(-1), atol=1e-6, rtol=1e-7)
    torch.testing.assert_close(actor.log_prob(obs, actions), logprobs, atol=1e-6, rtol=1e-7)


def test_the_log_slope_of_tanh_is_right_in_far_tails() -> None:
    near = torch.linspace(-5, 5, 41, dtype=torch.float64)
    torch.testing.assert_close(log_tanh_slope(near), torch.log(1 - torch.tanh(near) ** 2), atol=1e-8, rtol=1e-7)
    for u in (20.0, 100.0, 1e4):  # where 1 - tanh(u)^2 underflows: log 4 - 2|u|
        for sign in (-1.0, 1.0):
            slope = float(log_tanh_slope(torch.tensor(sign * u)))
            assert slope == pytest.approx(math.log(4) - 2 * u, rel=1e-6)


def test_the_log_slope_of_tanh_has_the_gradient_of_softplus_s_form() -> None:
    """At 0 too, where |u| has none."""
    ends = torch.tensor([0.0, 1e-30, 50.0, -50.0, 1e4, -1e4], dtype=torch.float64)
    points = torch.cat([torch.linspace(-30, 30, 1_201, dtype=torch.float64), ends]).requires_grad_(True)

    def by_softplus(u: torch.Tensor) -> torch.Tensor:
        return 2.0 * (math.log(2.0) - u - torch.nn.functional.softplus(-2.0 * u, threshold=600.0))

    (ours,) = torch.autograd.grad(log_tanh_slope(points).sum(), points)
    (theirs,) = torch.autograd.grad(by_softplus(points).sum(), points)
    torch.testing.assert_close(log_tanh_slope(points), by_softplus(points), atol=1e-13, rtol=1e-14)
    torch.testing.assert_close(ours, theirs, atol=1e-14, rtol=1e-14)


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.8, -1.0), (-1.5, 0.3)])
def test_the_density_of_actions_integrates_to_one(mean: float, log_std: float) -> None:
    edges = torch.tanh(torch.linspace(-7, 7, 20_001, dtype=torch.float64))  # ends where log_prob clips
    middle = (0.5 * (edges[1:] + edges[:-1]))[:, None]
    density = wide_actor(mean, log_std).log_prob(torch.zeros_like(middle), middle).exp()
    assert (density * edges.diff()).sum().item() == pytest.approx(1.0, abs=1e-4)


def test_log_std_is_clamped() -> None:
    obs = torch.zeros(1, 1, dtype=torch.float64)
    assert wide_actor(0.0, 9.0)(obs)[1].item() == 2.0
    assert wide_actor(0.0, -99.0)(obs)[1].item() == -20.0
    assert wide_actor(0.0, -99.0, bounds=(-5.0, 2.0))(obs)[1].item() == -5.0


def test_actions_at_the_bound_have_a_finite_logprob_and_gradient() -> None:
    model = MLPSACModel(3, 2, (16,))
    logprobs = model.action_logprobs(torch.randn(3, 3), torch.tensor([[1.0, -1.0], [1.0, 1.0], [-1.0, 0.0]]))
    assert logprobs.shape == (3,)
    assert logprobs.isfinite().all()
    gradients = torch.autograd.grad(logprobs.sum(), list(model.actor.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_sampled_actions_are_legal_and_carry_their_logprobs() -> None:
    model = MLPSACModel(3, 2, (16,))
    obs = torch.randn(50, 3)
    sample = model.sample_actions(obs)
    assert sample.actions.shape == (50, 2)
    assert sample.actions.abs().max() <= 1
    torch.testing.assert_close(model.action_logprobs(obs, sample.actions), sample.logprobs, atol=1e-3, rtol=1e-4)


def test_shapes_of_values() -> None:
    obs, actions = torch.randn(5, 3), torch.rand(5, 2)
    q1, q2 = MLPSACModel(3, 2, (8,)).q_values(obs, actions)
    assert q1.shape == q2.shape == (5,)
    redq = MLPREDQModel(3, 2, (8,), 4)
    assert redq.q_values(obs, actions).shape == (5, 4)
    assert redq.q_values(obs[0], actions[0]).shape == (1, 4)
    torch.testing.assert_close(redq.q_values(obs[0], actions[0])[0], redq.q_values(obs, actions)[0])
    assert MLPTD3Model(3, 2, (8,)).q_values(obs, actions).shape == (5, 2)
    assert MLPDDPGModel(3, 2, (8,)).q_values(obs, actions).shape == (5, 1)
    assert MLPQNetwork(3, 4, (8,)).q_values(obs).shape == (5, 4)
    for quantiles in (1, 7):
        assert MLPTQCModel(3, 2, (8,), 4, quantiles).quantiles(obs, actions).shape == (5, 4, quantiles)


def test_critics_may_have_sizes_of_their_own() -> None:
    model = MLPSACModel(3, 2, (8,), critic_hidden_sizes=(5, 6))
    assert [layer.weight.shape[-1] for layer in model.critics.net.hidden] == [5, 6]
    assert [layer.out_features for layer in sequential(model.actor.net) if isinstance(layer, nn.Linear)] == [8, 4]


def test_a_target_is_equal_apart_and_out_of_reach_of_gradients() -> None:
    source = nn.Linear(2, 3)
    target = frozen_copy(source)
    torch.testing.assert_close(target.weight, source.weight, rtol=0, atol=0)
    assert target.weight.data_ptr() != source.weight.data_ptr()
    assert not any(p.requires_grad for p in target.parameters())


def test_the_policy_sees_through_the_normaliser_and_shares_the_actor() -> None:
    model = MLPSACModel(3, 2, (8,), normalize_observations=True)
    mean, std = torch.tensor([1.0, -2.0, 0.0]), torch.tensor([2.0, 0.5, 0.0])
    model.normalizer.set_moments(mean, std)
    obs = torch.randn(4, 3)
    torch.testing.assert_close(model.policy.mode(obs), model.actor.mode((obs - mean) / (std + 1e-3)))
    constant_outputs(model.actor.net, [0.7])
    torch.testing.assert_close(model.policy.mode(obs), torch.full((4, 2), math.tanh(0.7)))


# CrossQ and FlashSAC have one kind of network each.
@pytest.mark.parametrize(
    "learner",
    [one for spec in list_algorithm_specs() for one in spec.learners if one.name not in ("crossq", "flash_sac")],
    ids=label,
)
def test_every_network_of_a_model_is_of_the_kind_that_its_options_name(
    learner: type[Learner], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Single(MLP):
        pass

    class Ensemble(EnsembleMLP):
        pass

    monkeypatch.setitem(networks.KINDS, "own", networks.NetworkKind(Single, Ensemble))
    shape = learner.Network.parse({"hidden_sizes": (4,)})
    options = dict(shape) | learner.model_options(learner.Config()) | {"network": "own"}
    model = learner.Model(3, 2, **options)
    found = [type(module) for module in model.modules() if isinstance(module, EnsembleMLP)]
    assert found
    assert set(found) <= {Single, Ensemble}
