"""Networks of a user's own: one or an ensemble of any `nn.Module`, in every learner, run and export."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import rl_training
from rl_training import SAC, cli, importing
from rl_training.algorithms import EDAC, FQL, IQL, REDQ, TD3, Learner
from rl_training.algorithms import SAC as SACLearner
from rl_training.errors import ConfigError, ExportError
from rl_training.importing import bind_name, name_of
from rl_training.models.mlp import NETWORK, EnsembleNetwork, NetworkConfig
from rl_training.models.networks import build_ensemble, build_network
from rl_training.models.own_network import OwnEnsemble
from tests.helpers import all_learners, build, label, random_batch, snapshot
from tests.runs import interrupted, mostly_slow, resume, tiny, train
from tests.test_exact_resume import assert_exact, eventful
from tests.test_population_updates import SHORT, assert_members_equal

FIXED = ("crossq", "flash_sac")  # their networks are part of the algorithm
SMALL: dict[str, Any] = {"learning_starts": 20, "batch_size": 8, "hidden_sizes": [8], "eval_episodes": 1}


class Residual(nn.Module):
    """A residual network as a user would write it."""

    def __init__(self, in_features: int, out_features: int, hidden_sizes: list[int], blocks: int = 1) -> None:
        super().__init__()
        width = hidden_sizes[0]
        self.embed, self.head = nn.Linear(in_features, width), nn.Linear(width, out_features)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(blocks))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for norm, layer in zip(self.norms, self.layers):
            x = x + torch.relu(layer(norm(x)))
        return self.head(x)


class Scaled(Residual):
    """With a buffer."""

    def __init__(self, *shape: Any, **options: Any) -> None:
        super().__init__(*shape, **options)
        self.register_buffer("scale", torch.rand(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * super().forward(x)


class Listed(Residual):
    """One that lists its operations."""

    def steps(self) -> list[Any]:
        blocks = [("keep", norm, layer, "relu", "add_kept") for norm, layer in zip(self.norms, self.layers)]
        return [self.embed, *(one for block in blocks for one in block), self.head]


def sequential(in_features: int, out_features: int, hidden_sizes: list[int]) -> nn.Module:
    width = hidden_sizes[0]
    norm = nn.LayerNorm(width, elementwise_affine=False)
    body = nn.Sequential(nn.Linear(in_features, width, bias=False), norm, nn.SiLU())
    return nn.Sequential(body, nn.Identity(), nn.Linear(width, out_features))


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has names of its own."""
    monkeypatch.setattr(importing, "_KNOWN", {})


def own(factory: Callable[..., Any] = Residual, **more: Any) -> dict[str, Any]:
    return {"network": name_of(factory, NETWORK), "hidden_sizes": (8,)} | more


def kwargs_of(factory: Callable[..., Any] = Residual, **more: Any) -> dict[str, Any]:
    return {**own(factory, **more), "hidden_sizes": [8]}


def ensemble(members: int, factory: Callable[..., Any] = Scaled, outputs: int = 3) -> Any:
    found = build_ensemble(members, 5, (6,), outputs, network=own(factory)["network"])
    assert isinstance(found, OwnEnsemble)
    return found.double()


@pytest.mark.parametrize("members", [1, 2, 4])
def test_an_ensemble_is_n_modules_of_the_factory(members: int) -> None:
    """With the same random numbers, outputs and gradients are those of the modules themselves."""
    x = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(3)
    net = ensemble(members)
    torch.manual_seed(3)
    modules = [Scaled(5, 3, [6]).double() for _ in range(members)]
    out, weights = net(x), torch.randn(members, 7, 3, dtype=torch.float64)
    torch.testing.assert_close(out, torch.stack([module(x) for module in modules]))
    gradients = torch.autograd.grad((out * weights).sum(), list(net.parameters()))
    for i, module in enumerate(modules):
        theirs = torch.autograd.grad((module(x) * weights[i]).sum(), list(module.parameters()))
        for ours, other in zip(gradients, theirs, strict=True):
            torch.testing.assert_close(ours[i], other)
    torch.testing.assert_close(net(x, members=1), out[:1])
    chosen = torch.tensor([members - 1, 0, 0])
    torch.testing.assert_close(net(x, members=chosen), out[chosen])


@pytest.mark.parametrize("members", [2, 4])
def test_a_frozen_one_has_the_same_input_gradient_and_no_weight_gradient(members: int) -> None:
    net, x = ensemble(members), torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    frozen = net(x, frozen=True)
    (ours,), (theirs,) = (torch.autograd.grad(out.sum(), x, retain_graph=True) for out in (frozen, net(x)))
    torch.testing.assert_close(ours, theirs)
    found = torch.autograd.grad(frozen.sum(), list(net.parameters()), allow_unused=True)
    assert all(gradient is None for gradient in found)


class Tied(nn.Module):
    """One matrix under two names, a fixed parameter and a lazy layer."""

    def __init__(self, in_features: int, out_features: int, hidden_sizes: list[int]) -> None:
        super().__init__()
        self.first, self.again = nn.Linear(in_features, in_features), nn.Linear(in_features, in_features)
        self.again.weight = self.first.weight
        self.fixed = nn.Parameter(torch.randn(in_features), requires_grad=False)
        self.head = nn.LazyLinear(out_features)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.again(torch.tanh(self.first(x))) * self.fixed)


def test_tied_fixed_and_lazy_parameters() -> None:
    net = ensemble(3, Tied)
    names = {name for name, _ in net.named_parameters()}
    assert names == {
        f"module.{name}" for name in ("first.weight", "first.bias", "again.bias", "head.weight", "head.bias")
    }
    assert net.module.again.weight is net.module.first.weight
    assert [name for name, _ in net.named_buffers()] == ["module.fixed"]
    x = torch.randn(4, 5, dtype=torch.float64)
    before = net(x)
    with torch.no_grad():
        net.module.first.weight.zero_()
    bias = torch.tanh(net.module.first.bias) * 0 + net.module.again.bias
    by_hand = torch.einsum("ni,noi->no", bias * net.module.fixed, net.module.head.weight) + net.module.head.bias
    torch.testing.assert_close(net(x), by_hand[:, None].expand(-1, 4, -1))
    assert not torch.allclose(net(x), before)


@pytest.mark.parametrize("learner", [one for one in all_learners() if one.name not in FIXED], ids=label)
def test_every_learner_trains_it(learner: type[Learner]) -> None:
    """EDAC without diversity, ReBRAC without the LayerNorm that it has by default, FQL without its GELU too."""
    network = own(Listed) | ({"layer_norm": False} if "layer_norm" in learner.Network.model_fields else {})
    network |= {"activation": "relu"} if learner is FQL else {}
    built = build(learner, network=network, **({"eta": 0.0} if learner is EDAC else {}))
    found = [module for module in built.model.modules() if isinstance(module, EnsembleNetwork)]
    assert found
    assert all(isinstance(net, OwnEnsemble) for net in found)
    before = snapshot(built)
    for _ in range(2):
        built.update(random_batch(discrete=learner.discrete), global_step=0)
    after = snapshot(built)
    assert all(tensor.isfinite().all() for tensor in after.values())
    assert [name for name in before if ".layers." in name and torch.equal(before[name], after[name])] == []


@pytest.mark.parametrize("kind", [SACLearner, REDQ, IQL, TD3], ids=label)
def test_a_member_of_a_population_is_its_single_run(kind: type[Learner]) -> None:
    assert_members_equal(kind, updates=SHORT, network=own())


@pytest.mark.parametrize("algo", mostly_slow(["sac", "redq", "iql"], "sac"))
def test_a_resumed_run_is_exact(algo: str, tmp_path: Path) -> None:
    assert_exact(eventful(algo, tmp_path, kwargs=kwargs_of(Scaled, network_kwargs={"blocks": 2})), 40)


@pytest.mark.slow
@pytest.mark.parametrize("members", [2, 3])
def test_it_compiles_without_a_break(members: int) -> None:
    torch.compiler.reset()  # what other tests have compiled counts towards torch's limit
    net, x = ensemble(members), torch.randn(4, 5, dtype=torch.float64)
    torch.testing.assert_close(torch.compile(net, backend="aot_eager", fullgraph=True)(x), net(x))


def test_a_run_cannot_change_its_network(tmp_path: Path) -> None:
    run = interrupted(tiny("sac", tmp_path, kwargs=kwargs_of()), 30)
    with pytest.raises(ConfigError, match=r"^algo_kwargs.network: mlp differs from the .* networks"):
        resume(run, overrides=["network=mlp", "network_kwargs={}"])
    with pytest.raises(ConfigError, match=r"^algo_kwargs.network_kwargs: .* differs from the .* networks"):
        resume(run, overrides=["network_kwargs={blocks: 3}"])


@pytest.mark.parametrize(
    ("algo", "message"),
    [
        ("edac", "network must be 'mlp' unless eta is 0"),
        ("crossq", "network must be 'mlp'"),
        ("flash_sac", "network must be 'mlp'"),
    ],
)
def test_some_algorithms_have_networks_of_their_own(algo: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train(tiny(algo, tmp_path, kwargs=kwargs_of()))


class Averaged(Residual):
    """Rows affect each other."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


class Branching(Residual):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 or self.embed.bias.sum() > 0 else super().forward(-x)


class Unused(Residual):
    def __init__(self, *shape: Any) -> None:
        super().__init__(*shape)
        self.spare = nn.Linear(2, 2)


class Wide(Residual):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).double()


class Twice(nn.Sequential):
    """One layer in two places; an activation without tensors may be."""

    def __init__(self, in_features: int, out_features: int, hidden_sizes: list[int]) -> None:
        layer, activation = nn.Linear(in_features, in_features), nn.Tanh()
        super().__init__(layer, activation, layer, activation, nn.Linear(in_features, out_features))


class Typed(Residual):
    def __init__(self, *shape: Any) -> None:
        super().__init__(*shape)
        self.register_buffer("index", torch.arange(3))


class Attribute(Residual):
    """With a number or a tensor that is neither a parameter nor a buffer."""

    def __init__(self, make: Callable[[], float | Tensor], *shape: Any) -> None:
        super().__init__(*shape)
        self.norms[0].extra = make()


ONE = nn.Linear(5, 3)
WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "shape": (lambda i, o, h: nn.Linear(i, o + 1), r"maps an input \(3, 5\) to \(3, 4\); needed: \(3, 3\)$"),
    "flat": (lambda i, o, h: nn.Sequential(nn.Linear(i, o), nn.Flatten(0)), r"to \(9,\); needed: \(3, 3\)$"),
    "tuple": (lambda i, o, h: nn.LSTM(i, o), r"to tuple; needed: \(3, 3\)$"),
    "no module": (lambda i, o, h: torch.zeros(3), r"made a Tensor, not a torch.nn.Module$"),
    "arguments": (lambda i: nn.Linear(i, 1), r"fails with \(5, 3, \[6\]\) and {}: TypeError: .* 3 were given$"),
    "call": (lambda i, o, h: nn.Linear(i + 1, o), r"fails on an input \(3, 5\): RuntimeError: mat1 and mat2"),
    "same": (lambda i, o, h: ONE, r"returns the same module again; it must make a new one on each call$"),
    "dropout": (
        lambda i, o, h: nn.Sequential(nn.Linear(i, o), nn.Dropout(0.5)),
        r"draws random numbers, as dropout does; networks must not$",
    ),
    "batch norm": (
        lambda i, o, h: nn.Sequential(nn.Linear(i, o), nn.BatchNorm1d(o)),
        r"changes its buffer 1.running_mean, as BatchNorm does; networks must not$",
    ),
    "batch statistics": (
        lambda i, o, h: nn.Sequential(nn.Linear(i, o), nn.BatchNorm1d(o, track_running_stats=False)),
        r"cannot be computed for several networks at once: ValueError: Expected more than 1 value per channel",
    ),
    "input": (
        lambda i, o, h: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(i, o)),
        r"changes its input in place, as ReLU\(inplace=True\) does; networks must not$",
    ),
    "frozen": (
        lambda i, o, h: nn.Linear(i, o).requires_grad_(False),
        r"has no parameter with a gradient; a network must be able to learn$",
    ),
    "rows": (Averaged, r"computes another output for the same row"),
    "branch": (Branching, r"cannot be computed for several networks at once: RuntimeError: .*data-dependent"),
    "unused": (Unused, r"has a parameter spare.weight that does not affect its output; remove it$"),
    "twice": (Twice, r"has one layer under two names, 0 and 2; use 0 twice$"),
    "drawn tensor": (
        functools.partial(Attribute, lambda: torch.rand(3)),
        r"draws norms.0.extra, which is neither a parameter nor a buffer, so no checkpoint would contain it; use "
        "register_buffer$",
    ),
    "drawn number": (
        functools.partial(Attribute, lambda: torch.rand(()).item()),
        r"draws norms.0.extra, which is neither",
    ),
    "output dtype": (Wide, r"maps a torch.float32 input to torch.float64; all must be float32$"),
    "dtype": (Typed, r"has a tensor index of torch.int64; all must be float32$"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_it_cannot_be_is_refused_in_one_line(case: str) -> None:
    factory, message = WRONG[case]
    with pytest.raises(ConfigError, match=message) as caught:
        ensemble(2, factory)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"algo_kwargs.network: {own(factory)['network']} ")


def test_modules_of_different_shapes_are_refused() -> None:
    widths = itertools.cycle([4, 5])
    with pytest.raises(ConfigError, match=r"makes networks of different shapes$"):
        ensemble(2, lambda i, o, h: nn.Sequential(nn.Linear(i, width := next(widths)), nn.Linear(width, o)))


def test_dropout_that_does_nothing_is_a_layer_like_others() -> None:
    net = ensemble(2, lambda i, o, h: nn.Sequential(nn.Linear(i, o), nn.Dropout(0.5)).eval())
    assert net(torch.randn(4, 5, dtype=torch.float64)).shape == (2, 4, 3)


@pytest.mark.parametrize(
    "value",
    [0.5, torch.arange(3.0), float("nan"), torch.eye(3).to_sparse()],
    ids=["number", "tensor", "NaN", "sparse"],
)
def test_a_constant_of_a_module_needs_no_buffer(value: Any) -> None:
    net = ensemble(2, functools.partial(Attribute, lambda: copy.copy(value)))
    assert net(torch.randn(4, 5, dtype=torch.float64)).shape == (2, 4, 3)


def test_only_the_networks_of_a_run_take_random_numbers() -> None:
    """The factory is called once more, to compare what each call draws."""
    found = []
    for make in (lambda: ensemble(2, Residual), lambda: [Residual(5, 3, [6]) for _ in range(2)]):
        torch.manual_seed(0)
        make()
        found.append(torch.rand(1))
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"network": ":factory"}, r"^network must be 'mlp' or 'simba', got ':factory'$"),
        ({"network_kwargs": {"blocks": 2}}, r"^network_kwargs must be empty if network is 'mlp'; only your own"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NetworkConfig.parse(settings)


@pytest.mark.parametrize(
    ("setting", "usual"),
    [({"layer_norm": True}, "false"), ({"activation": "tanh"}, "relu"), ({"residual_blocks": 3}, "2")],
)
def test_settings_of_the_packaged_networks_are_refused(setting: dict[str, Any], usual: str) -> None:
    [name] = setting
    remedy = f"set it to {usual}, or use network_kwargs"  # the default of ReBRAC and FQL is another one
    with pytest.raises(ConfigError, match=rf"Residual has no setting {name}; {remedy}$"):
        build_network(5, (6,), 3, network=own()["network"], **setting)


def emptying(in_features: int, out_features: int, hidden_sizes: list[int], options: dict[str, Any]) -> nn.Module:
    blocks = options.pop("blocks")
    return Residual(in_features, out_features, [hidden_sizes.pop()], blocks)


def test_each_network_has_its_own_arguments() -> None:
    options = {"options": {"blocks": 2}}
    built = build_ensemble(2, 5, (8,), 3, network=own(emptying)["network"], network_kwargs=options)
    assert built(torch.zeros(2, 5)).shape == (2, 2, 3)


# ---- names ---------------------------------------------------------------------------------------


def test_a_function_of_a_module_is_recorded_by_its_name(tmp_path: Path) -> None:
    model = SAC("Pendulum-v1", network=Listed, network_kwargs={"blocks": 2}, output_dir=str(tmp_path), **SMALL)
    assert model.config.algo_kwargs["network"] == f"{__name__}:Listed"
    result = model.learn(30, progress_bar=False)
    action = model.predict([1.0, 0.0, 0.0])
    assert model.evaluate(1)["returns"]
    assert model.predict_value([1.0, 0.0, 0.0]).spread > 0
    importing._KNOWN.clear()  # as in a new process
    refused = (
        rf"^algo_kwargs.network: '{__name__}:Listed' would import the module '{__name__}'; allow it with "
        r"--allow-import, or give it in Python, as in .*rl_training.load\(path, network=…\)$"
    )
    with pytest.raises(ConfigError, match=refused):
        rl_training.load(result.checkpoint_path)
    loaded = rl_training.load(result.checkpoint_path, network=Listed)
    assert np.array_equal(loaded.predict([1.0, 0.0, 0.0]), action)
    assert loaded.resume(40, progress_bar=False).metrics["global_step"] == 40
    named = SAC("Pendulum-v1", network=f"{__name__}:Listed", allow_import=True, output_dir=str(tmp_path), **SMALL)
    assert named.learn(30, progress_bar=False).metrics["global_step"] == 30


def test_a_lambda_must_be_given_again(tmp_path: Path) -> None:
    model = SAC("Pendulum-v1", network=lambda i, o, h: Residual(i, o, h), output_dir=str(tmp_path), **SMALL)
    run = model.learn(30, progress_bar=False).run_dir
    name = model.config.algo_kwargs["network"]
    assert name == f"{__name__}:<test_a_lambda_must_be_given_again.<locals>.<lambda>>"
    importing._KNOWN.clear()
    with pytest.raises(ConfigError, match="was given in Python and cannot be imported; give it again, as in"):
        rl_training.load(run)
    result = CliRunner().invoke(cli.main, ["resume", str(run), "--allow-import"])
    assert (result.exit_code, "give it again" in result.stderr) == (2, True)
    loaded = rl_training.load(run, network=functools.partial(Residual, blocks=1))
    assert loaded.resume(40, progress_bar=False).metrics["global_step"] == 40
    with pytest.raises(ConfigError, match="is another function in this process"):
        rl_training.load(run, network=Listed)


def test_load_refuses_a_network_that_the_run_does_not_have(tmp_path: Path) -> None:
    result = train(tiny("sac", tmp_path, total_timesteps=25, eval_episodes=0))
    with pytest.raises(ConfigError, match=r"^network: the run has the network 'mlp' of this package; leave it"):
        rl_training.load(result.run_dir, network=Residual)


def test_functions_without_a_name_are_kept_apart() -> None:
    def closure(width: int) -> Callable[..., nn.Module]:
        return lambda i, o, h: Residual(i, o, [width])

    one, other = closure(4), closure(5)
    names = [name_of(factory, NETWORK) for factory in (one, other, one)]
    assert names[0] == names[2] != names[1]
    again = [name_of(lambda i, o, h: Residual(i, o, h), NETWORK) for _ in range(2)]
    assert again[0] == again[1]  # the same code, as from a cell of a notebook
    bind_name(names[0], one, NETWORK)
    with pytest.raises(ConfigError, match="is another function"):
        bind_name(names[0], other, NETWORK)
    with pytest.raises(ConfigError, match=rf"^{NETWORK}: the run has {__name__}:Listed, got {__name__}:Scaled$"):
        bind_name(name_of(Listed, NETWORK), Scaled, NETWORK)
    widths = [build_network(5, (6,), 3, network=name).module.embed.out_features for name in names[:2]]
    assert widths == [4, 5]


def test_a_class_that_is_defined_again_replaces_the_first() -> None:
    """As in a notebook, whose classes no other process can import."""
    first, second = (type("Own", (Residual,), {"__module__": "__main__"}) for _ in range(2))
    name = name_of(first, NETWORK)
    assert (name, name_of(second, NETWORK)) == ("__main__:<Own>", name)
    assert isinstance(build_network(5, (6,), 3, network=name).module, second)
    bind_name(name, first, NETWORK)
    assert type(build_network(5, (6,), 3, network=name).module) is first
    partials = [name_of(functools.partial(Residual, blocks=blocks), NETWORK) for blocks in (1, 2)]
    assert partials == ["functools:<<partial>>", "functools:<<partial>>'"]


# ---- the command line ----------------------------------------------------------------------------

MODULE = """
from torch import nn

NUMBER = 3

def network(in_features, out_features, hidden_sizes, bias=True):
    width = hidden_sizes[0]
    return nn.Sequential(nn.Linear(in_features, width), nn.Tanh(), nn.Linear(width, out_features, bias=bias))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "own_networks.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield "own_networks"
    forget()


def forget() -> None:
    """As a new process begins."""
    sys.modules.pop("own_networks", None)
    importing._KNOWN.clear()


def invoked(code: int, *words: object) -> str:
    result = CliRunner().invoke(cli.main, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.stderr.splitlines()[-1] if code else result.stdout


def test_every_command_needs_permission(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.report.page.rendered", lambda *_: b"%PDF")  # drawing takes most of the time
    monkeypatch.setattr("rl_training.report.page.svg_with_seeds", lambda *_: "<?xml?><svg></svg>")
    settings = "".join(f"{key}: {value}\n" for key, value in SMALL.items() if key == "eval_episodes")
    rest = "".join(f"  {key}: {value}\n" for key, value in SMALL.items() if key != "eval_episodes")
    file = tmp_path / "own.yaml"
    file.write_text(
        f"algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: 40\n{settings}algo_kwargs:\n{rest}"
        "  network: own_networks:network\n  network_kwargs: {bias: false}\n"
    )
    told = "algo_kwargs.network: 'own_networks:network' would import the module 'own_networks'; allow it with"
    assert f"own.yaml:9: {told}" in invoked(2, "train", "--config", file)
    assert not Path("runs").exists()
    shown = invoked(0, "train", "--config", file, "--allow-import")
    assert [line.endswith(" --allow-import") for line in shown.splitlines()[-4:]] == [True, True, True, False]
    [run] = Path("runs").iterdir()
    config = json.loads((run / "checkpoints" / "step_000000040" / "config.json").read_text())
    assert config["algo_kwargs"]["network"] == "own_networks:network"
    for words in (
        ("resume", run, "--set", "total_timesteps=60"),
        ("evaluate", run, "--episodes", "1"),
        ("predict", run, "--obs", "1.0,0.0,0.0"),
        ("export", run, "-o", "policy.npz"),
    ):
        forget()
        assert told in invoked(2, *words)
        assert "own_networks" not in sys.modules
        invoked(0, *words, "--allow-import")
    assert json.loads((run / "run.json").read_text())["exact_resume"] is True
    invoked(0, "report", "runs", "-o", "report.html")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_networks:nothing", "algo_kwargs.network: the module own_networks has no 'nothing'"),
        ("own_networks:NUMBER", "algo_kwargs.network: own_networks:NUMBER is not a function or class"),
        ("no_such_module:network", "algo_kwargs.network: the module 'no_such_module' cannot be imported; is it"),
    ],
)
def test_a_wrong_name_is_one_line(module: str, name: str, message: str) -> None:
    words = ("train", "--algo", "sac", "--env", "Pendulum-v1", "--steps", "40", "--set", f"network={name}")
    assert message in invoked(2, *words, "--allow-import")
    assert not Path("runs").exists()


# ---- export --------------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", [Listed, sequential], ids=["steps", "sequential"])
@pytest.mark.parametrize("suffix", [".npz", ".onnx"])
def test_the_export_of_a_network_that_lists_its_layers(
    factory: Callable[..., Any], suffix: str, tmp_path: Path
) -> None:
    model = SAC("Pendulum-v1", network=factory, output_dir=str(tmp_path), **SMALL)
    model.learn(30, progress_bar=False)
    for deterministic in (True, False):
        path = tmp_path / f"policy-{deterministic}{suffix}"
        assert model.export(path, deterministic=deterministic).path == path


def test_the_export_of_another_network_names_the_remedy(tmp_path: Path) -> None:
    model = SAC("Pendulum-v1", network=Residual, output_dir=str(tmp_path), **SMALL)
    model.learn(30, progress_bar=False)
    message = r"Residual does not list its operations and cannot be exported; give its module a method steps\(\)"
    with pytest.raises(ExportError, match=message):
        model.export(tmp_path / "policy.npz")


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (["kep"], "kep cannot be exported; known: add_kept, elu, gelu, keep"),
        ([nn.Softmax()], "Softmax cannot be exported"),
        ([nn.Tanh()], "must end in a linear layer"),
    ],
)
def test_a_wrong_list_of_operations_is_one_line(listed: list[Any], message: str) -> None:
    class Wrong(Listed):
        def steps(self) -> list[Any]:
            return listed

    net = build_network(5, (6,), 4, network=own(Wrong)["network"])
    with pytest.raises(ExportError, match=message):
        net.steps(outputs=2)
