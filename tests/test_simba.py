"""SimBa: its formula and initial weights; an ensemble is N networks; every learner, run and export can use it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rl_training import load
from rl_training.algorithms import EDAC, IQL, SAC, Learner
from rl_training.errors import ConfigError
from rl_training.models import MLPSACModel
from rl_training.models.arrays import fits_arrays
from rl_training.models.mlp import EnsembleMLP, EnsembleNetwork, NetworkConfig
from rl_training.models.simba import EnsembleSimBa, SimBa
from rl_training.spaces import SpaceSpec
from tests.exports import SKEWED, run_file, trained, untrained
from tests.helpers import ACTIVATIONS, all_learners, build, label, random_batch, snapshot
from tests.reliability.test_export import compared
from tests.runs import interrupted, mostly_slow, resume, tiny, train
from tests.test_exact_resume import assert_exact, eventful
from tests.test_population_updates import SHORT, assert_members_equal

SIMBA: dict[str, Any] = {"network": "simba", "hidden_sizes": [8]}


def scattered(net: EnsembleSimBa) -> EnsembleSimBa:
    """`net` in float64, with gains, shifts and biases that differ from 1 and 0."""
    for parameter in net.double().parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return net


def normal(x: Tensor, layer: Any, i: int) -> Tensor:
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(variance + layer.epsilon) * layer.weight[i] + layer.bias[i]


def linear(x: Tensor, layer: Any, i: int) -> Tensor:
    return x @ layer.weight[i] + layer.bias[i]


def by_hand(net: Any, x: Tensor, i: int = 0) -> Tensor:
    """Member `i` as the paper writes it."""
    x = linear(x, net.embed, i)
    for block in net.blocks:
        inner = ACTIVATIONS[net.activation]()(linear(normal(x, block.norm, i), block.expand, i))
        x = x + linear(inner, block.contract, i)
    return linear(normal(x, net.norm, i), net.head, i)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("blocks", [1, 3])
def test_the_formula(blocks: int, activation: Any) -> None:
    x = torch.randn(7, 5, dtype=torch.float64)
    options: dict[str, Any] = {"residual_blocks": blocks, "activation": activation, "layer_norm_epsilon": 0.1}
    single = scattered(SimBa(5, (6, 6), 3, **options))
    assert len(single.blocks) == blocks
    assert single(x).shape == (7, 3)
    torch.testing.assert_close(single(x), by_hand(single, x))
    several = scattered(EnsembleSimBa(4, 5, (6,), 3, **options))
    torch.testing.assert_close(several(x), torch.stack([by_hand(several, x, i) for i in range(4)]))


@pytest.mark.parametrize("outputs", [1, 3])
def test_an_ensemble_is_n_separate_networks(outputs: int) -> None:
    x = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    several = scattered(EnsembleSimBa(4, 5, (6,), outputs))
    out, weights = several(x), torch.randn(4, 7, outputs, dtype=torch.float64)
    gradients = torch.autograd.grad((out * weights).sum(), list(several.parameters()))
    for i in range(4):
        alone = SimBa(5, (6,), outputs).double()
        alone.load_state_dict({name: tensor[i : i + 1] for name, tensor in several.state_dict().items()})
        torch.testing.assert_close(alone(x), out[i])
        own = torch.autograd.grad((alone(x) * weights[i]).sum(), list(alone.parameters()))
        for ours, theirs in zip(gradients, own, strict=True):
            torch.testing.assert_close(ours[i : i + 1], theirs)
    torch.testing.assert_close(several(x, members=2), out[:2])
    torch.testing.assert_close(several(x, members=torch.tensor([3, 1])), out[[3, 1]])


def test_a_frozen_one_has_the_same_input_gradient_and_no_weight_gradient() -> None:
    net, x = EnsembleSimBa(2, 5, (6,), 1), torch.randn(7, 5, requires_grad=True)
    frozen = net(x, frozen=True)
    (ours,), (theirs,) = (torch.autograd.grad(out.sum(), x, retain_graph=True) for out in (frozen, net(x)))
    assert torch.equal(ours, theirs)
    assert not any(
        gradient is not None
        for gradient in torch.autograd.grad(frozen.sum(), list(net.parameters()), allow_unused=True)
    )


def test_initial_weights_are_the_authors_ones() -> None:
    torch.manual_seed(0)
    net: Any = EnsembleSimBa(2, 20, (64,), 6).requires_grad_(False)
    for embed, head in zip(net.embed.weight, net.head.weight):
        torch.testing.assert_close(embed @ embed.T, torch.eye(20), atol=1e-5, rtol=0)
        torch.testing.assert_close(head.T @ head, torch.eye(6), atol=1e-5, rtol=0)
    for block in net.blocks:
        for layer, fan_in in ((block.expand, 64), (block.contract, 256)):
            std = math.sqrt(2 / fan_in)
            assert float(layer.weight.std()) == pytest.approx(std, rel=0.02)
            bound = 2 * std / 0.8796
            assert 0.97 * bound < float(layer.weight.abs().max()) <= 1.001 * bound
            assert not torch.equal(*layer.weight)
    norms = [net.norm, *(block.norm for block in net.blocks)]
    assert all(norm.epsilon == 1e-6 and (norm.weight == 1).all() for norm in norms)
    assert not any(tensor.any() for name, tensor in net.named_parameters() if name.endswith("bias"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer_norm": True}, "^layer_norm must be false if network is 'simba'"),
        ({"hidden_sizes": (8, 16)}, r"^hidden_sizes .* one width, got \[8, 16\]; use one size"),
        ({"critic_hidden_sizes": (8, 16)}, r"^hidden_sizes or critic_hidden_sizes: .* got \[8, 16\]"),
    ],
    ids=["layer_norm", "hidden_sizes", "critic_hidden_sizes"],
)
def test_what_it_cannot_be_is_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        MLPSACModel(3, 1, **{"hidden_sizes": (8, 8), "network": "simba"} | options)
    assert "\n" not in str(caught.value)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^network must be 'mlp' or 'simba', got 'resnet'$"):
        NetworkConfig.parse({"network": "resnet"})
    with pytest.raises(ConfigError, match=r"^residual_blocks must be >= 1, got 0$"):
        NetworkConfig.parse({"residual_blocks": 0})


# CrossQ and FlashSAC have networks of their own.
@pytest.mark.parametrize(
    "learner", [one for one in all_learners() if one.name not in ("crossq", "flash_sac")], ids=label
)
def test_every_learner_trains_it(learner: type[Learner]) -> None:
    """EDAC without diversity, and ReBRAC without the LayerNorm that it has by default."""
    network: dict[str, Any] = SIMBA | {"hidden_sizes": (8, 8), "residual_blocks": 1}
    network |= {"layer_norm": False} if "layer_norm" in learner.Network.model_fields else {}
    built = build(learner, network=network, **({"eta": 0.0} if learner is EDAC else {}))
    found = [module for module in built.model.modules() if isinstance(module, EnsembleNetwork)]
    assert found
    assert all(isinstance(net, EnsembleSimBa) and len(net.blocks) == 1 for net in found)
    before = snapshot(built)
    for _ in range(2):
        built.update(random_batch(discrete=learner.discrete), global_step=0)
    after = snapshot(built)
    assert all(tensor.isfinite().all() for tensor in after.values())
    assert [name for name in before if ".blocks." in name and torch.equal(before[name], after[name])] == []


def test_actor_and_critics_may_have_widths_of_their_own() -> None:
    model: Any = MLPSACModel(3, 1, (4,), critic_hidden_sizes=(16,), network="simba", layer_norm_epsilon=0.5)
    assert model.actor.net.embed.weight.shape == (1, 3, 4)
    assert model.critics.net.embed.weight.shape == (2, 4, 16)
    assert model.actor.net.norm.epsilon == model.critics.net.norm.epsilon == 0.5
    assert not model.layer_norm
    assert not fits_arrays(model.policy)


def test_without_the_setting_networks_are_perceptrons() -> None:
    """`residual_blocks` then changes no number."""
    plain, other = (build(SAC, network=network) for network in ({}, {"network": "mlp", "residual_blocks": 3}))
    assert isinstance(other.model.critics.net, EnsembleMLP)
    for ours, theirs in zip(plain.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", [SAC, IQL], ids=label)
def test_a_member_of_a_population_is_its_single_run(kind: type[Learner]) -> None:
    assert_members_equal(kind, updates=SHORT, network=SIMBA | {"hidden_sizes": (8,)})


@pytest.mark.slow
def test_it_compiles_without_a_break() -> None:
    torch.compiler.reset()  # what other tests have compiled counts towards torch's limit
    net: nn.Module = EnsembleSimBa(2, 5, (6,), 3).double()
    x = torch.randn(4, 5, dtype=torch.float64)
    torch.testing.assert_close(torch.compile(net, backend="aot_eager", fullgraph=True)(x), net(x))


@pytest.mark.parametrize("algo", mostly_slow(["sac", "td3", "iql", "dqn"], "sac"))
def test_a_resumed_run_is_exact(algo: str, tmp_path: Path) -> None:
    assert_exact(eventful(algo, tmp_path, kwargs=SIMBA), 40)


def test_a_resumed_run_keeps_its_networks(tmp_path: Path) -> None:
    run = interrupted(tiny("sac", tmp_path, kwargs=SIMBA), 30)
    for name, value in (("network", "mlp"), ("residual_blocks", 3)):
        with pytest.raises(ConfigError, match=f"^algo_kwargs.{name}: {value} differs from the .* networks"):
            resume(run, overrides=[f"algo_kwargs.{name}={value}"])


def test_a_run_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="layer_norm must be false if network is 'simba'"):
        train(tiny("rlpd", tmp_path, kwargs=SIMBA | {"layer_norm": True}))
    with pytest.raises(ConfigError, match="network must be 'mlp' unless eta is 0"):
        train(tiny("edac", tmp_path, kwargs=SIMBA))


@pytest.mark.parametrize("suffix", [".onnx", ".npz"])
@pytest.mark.parametrize("sampled", [False, True])
def test_policies_are_written(sampled: bool, suffix: str) -> None:
    for blocks in (1, 3):
        loaded = untrained("sac", SKEWED, residual_blocks=blocks, activation="silu", **SIMBA)
        assert compared(loaded, suffix, sampled=sampled).largest <= 1e-5
    if not sampled:
        choice = untrained("dqn", SpaceSpec(3, num_actions=4, start=-2, action_dtype="int64"), **SIMBA)
        assert compared(choice, suffix).ties == 0


@pytest.mark.parametrize("algo", mostly_slow(["sac", "td3", "iql", "dqn"], "sac", "dqn"))
def test_an_exported_run_predicts_as_its_checkpoint(algo: str, tmp_path: Path) -> None:
    model = load(trained(algo, tmp_path, **SIMBA).run_dir)
    obs = np.random.default_rng(5).normal([5.0, 0.0, -30.0], [0.1, 1.0, 20.0], (32, 3)).astype(np.float32)
    for suffix in ("onnx", "npz"):
        made = model.export(tmp_path / f"policy.{suffix}")
        np.testing.assert_allclose(run_file(made.path)(obs), model.predict(obs), rtol=0, atol=3e-6)
