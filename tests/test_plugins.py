"""Algorithms of other packages: registered, installed with an entry point, or imported with permission."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import rl_training
from rl_training import TrainConfig, cli, importing
from rl_training.algorithms import DQN, SAC, CrossQ
from rl_training.algorithms.base import Learner
from rl_training.data.transitions import TransitionBatch
from rl_training.errors import ConfigError
from rl_training.experiment import registry
from rl_training.experiment.manager import ExperimentManager
from rl_training.runtime.loading import load_policy, open_checkpoint
from rl_training.runtime.populations import signature
from rl_training.settings import Settings
from rl_training.study.trials import require_permission
from tests.helpers import build, random_batch

SMALL = {"learning_starts": 20, "batch_size": 8, "hidden_sizes": [8], "eval_episodes": 0, "checkpoint_interval": 30}
SET = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
MODULE = """
from rl_training.algorithms import SAC

class Mine(SAC):
    name = "mine"

class Other(SAC):
    name = "other"

class Nameless(SAC):
    pass

def fail():
    raise OSError("a licence")

def add():
    import rl_training
    rl_training.register(Mine, title="added by a function")
"""


class Mine(SAC):
    name = "mine"


class Elsewhere(SAC):
    name = "mine"


class BothConfig(SAC.Config, DQN.Config):
    """The settings for either kind of actions."""


class Both(SAC):
    name = "both"
    Config = BothConfig


def with_setting(name: str) -> type[SAC]:
    config = type("ClashConfig", (SAC.Config,), {"__annotations__": {name: int}, name: 3, "__module__": __name__})
    return type("Clash", (SAC,), {"name": "clash", "Config": config})


class Shape(Settings):
    """Settings of a setting."""

    widths: tuple[int, ...] = (1,)
    """a list"""


class ShapedConfig(SAC.Config):
    """Settings that are no numbers."""

    momenta: tuple[float, float] | None = (0.9, 0.999)
    """a list"""
    pairs: tuple[tuple[int, int], ...] = ()
    """a list of lists"""
    shape: Shape = Shape()
    """a mapping"""
    shapes: tuple[Shape, ...] = ()
    """a list of mappings"""


class Shaped(SAC):
    name = "mine"
    Config = ShapedConfig


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a registry of its own."""
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the current folder that is not imported yet."""
    (tmp_path / "plugged.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield "plugged"
    forget()


@pytest.fixture
def run(module: str) -> Path:
    """A run of `plugged:Mine`; neither module nor registry know it any more."""
    train(f"{module}:Mine", "--allow-import")
    forget()
    [run] = Path("runs").iterdir()
    return run


def train(algo: str, *words: str) -> None:
    done("train", "--algo", algo, "--env", "Pendulum-v1", "--steps", "40", *SET, *words)


def forget() -> None:
    """As a new process begins."""
    importing._KNOWN.clear()
    registry._SPECS.pop("mine", None)
    sys.modules.pop("plugged", None)


def done(*words: object) -> str:
    """The output of a command that succeeds."""
    result = CliRunner().invoke(cli.main, ["--quiet", *map(str, words)])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def refused(*words: object) -> str:
    """The one line of a command that is refused."""
    result = CliRunner().invoke(cli.main, [str(word) for word in words])
    assert result.exit_code == 2, result.output
    return result.stderr.splitlines()[-1]


def install(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> None:
    found = [EntryPoint(name, value, importing.GROUP) for name, value in entries]
    monkeypatch.setattr(importing, "entry_points", lambda group: found if group == importing.GROUP else [])


def test_a_registered_class_trains_loads_and_resumes(tmp_path: Path) -> None:
    managed = rl_training.register(Mine, title="My own", learning_starts=20)
    assert managed is rl_training.register(Mine, title="My own", learning_starts=20)
    assert issubclass(managed, rl_training.ManagedAlgorithm)
    assert (managed.__name__, managed.algo) == ("Mine", "mine")
    assert "learning_starts = 20" in (managed.__doc__ or "")
    model = managed("Pendulum-v1", output_dir=str(tmp_path), **{**SMALL, "seeds": [0, 1]})
    first, second = model.learn(40, progress_bar=False)
    config = json.loads((first.checkpoint_path / "config.json").read_text())
    assert (config["algo"], config["plugin"]) == ("mine", f"{__name__}:Mine")
    assert isinstance(rl_training.load(second.checkpoint_path), managed)
    assert [result.metrics["global_step"] for result in model.resume(60, progress_bar=False)] == [60, 60]


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "CartPole-v1", "torch/CartPole-v1"])
def test_a_learner_for_discrete_actions_trains_online(env_id: str, tmp_path: Path) -> None:
    managed = rl_training.register(Both, discrete=DQN)
    settings = {**SMALL, "train_frequency": 1, "seeds": [0, 1]}
    first, _ = managed(env_id, output_dir=str(tmp_path), **settings).learn(40, progress_bar=False)
    assert ("actor_loss" in first.metrics) == (env_id == "Pendulum-v1")
    loaded = rl_training.load(first.run_dir)
    assert loaded.resume(60, progress_bar=False).metrics["global_step"] == 60
    assert loaded.predict(np.zeros(4 if "CartPole" in env_id else 3)).shape == (
        () if "CartPole" in env_id else (1,)
    )


def test_a_default_may_be_a_setting_of_one_of_two_learners(tmp_path: Path) -> None:
    managed = rl_training.register(Both, discrete=DQN, alpha=0.1, target_update_interval=7)
    for env_id, own in (("Pendulum-v1", {"alpha": 0.1}), ("CartPole-v1", {"target_update_interval": 7})):
        result = managed(env_id, output_dir=str(tmp_path), **SMALL).learn(40, progress_bar=False)
        settings = json.loads((result.checkpoint_path / "config.json").read_text())["algo_kwargs"]
        assert own.items() <= settings.items()
        assert ("alpha" in settings) == (env_id == "Pendulum-v1")


def test_settings_may_be_lists_and_mappings() -> None:
    """They are stored in JSON, which has no tuples, and are part of what members of a population share."""
    managed = rl_training.register(Shaped)
    given = {
        "momenta": (0.5, 0.9),
        "pairs": [(1, 2), [3, 4]],
        "shape": {"widths": [3]},
        "shapes": [{"widths": (4, 5)}],
    }
    found = registry.resolve(managed("Pendulum-v1").config)[ShapedConfig]
    assert (found.momenta, found.shape, found.shapes) == ((0.9, 0.999), Shape(), ())
    config = managed("Pendulum-v1", **given).config
    stored = json.loads(json.dumps(config.to_dict()))
    for one in (config, TrainConfig(**stored), TrainConfig(**stored | {"algo_kwargs": resolve_stored(config)})):
        found = registry.resolve(one)[ShapedConfig]
        assert (found.momenta, found.pairs, found.shape.widths) == ((0.5, 0.9), ((1, 2), (3, 4)), (3,))
        assert [shape.widths for shape in found.shapes] == [(4, 5)]
    assert '"shapes":[{"widths":[4,5]}]' in signature(config).replace(" ", "").replace("\n", "")
    with pytest.raises(ConfigError, match=r"^algo_kwargs.momenta.0 must be a number, got 'x'$"):
        managed("Pendulum-v1", momenta=["x", 0.9])
    with pytest.raises(ConfigError, match=r"^algo_kwargs.pairs.1.0 must be a whole number, got 'x'$"):
        managed("Pendulum-v1", pairs=[[1, 2], ["x", 4]])


def resolve_stored(config: TrainConfig) -> dict[str, Any]:
    """`algo_kwargs` with every default, as a checkpoint stores them."""
    stored: dict[str, Any] = json.loads(json.dumps(registry.resolve(config).to_dict()))
    return stored


def test_algorithms_of_this_package_record_no_plugin(tmp_path: Path) -> None:
    result = rl_training.SAC("Pendulum-v1", output_dir=str(tmp_path), **SMALL).learn(30, progress_bar=False)
    assert json.loads((result.checkpoint_path / "config.json").read_text())["plugin"] is None


def test_a_class_that_is_defined_again_replaces_the_first() -> None:
    rl_training.register(Mine)
    again = type("Mine", (SAC,), {"name": "mine", "__module__": __name__})
    rl_training.register(again, title="second")
    spec = registry.get_algorithm_spec("mine")
    assert (spec.learner, spec.title) == (again, "second")


@pytest.mark.parametrize(
    ("learner", "options", "message"),
    [
        (SAC, {}, "'sac' is the name of rl_training.algorithms.sac:SAC; give SAC another `name`"),
        (Elsewhere, {}, f"'mine' is the name of {__name__}:Mine; give Elsewhere another `name`"),
        (
            type("Bad", (SAC,), {"name": "../x"}),
            {},
            "Bad.name must be lower-case letters, digits and _, got '../x'",
        ),
        (Learner, {}, "Learner.name must be lower-case letters, digits and _, got ''"),
        (dict, {}, "needs a Learner class, got <class 'dict'>"),
        (Mine, {"regime": "onlin"}, "regime must be online, offline, offline_to_online, got 'onlin'"),
        (Mine, {"learning_start": 5}, "mine has no setting 'learning_start'; did you mean 'learning_starts'?"),
        (with_setting("n_step"), {}, "every run has a setting 'n_step'; rename that of Clash"),
        (with_setting("num_envs"), {}, "every run has a setting 'num_envs'; rename that of Clash"),
        (Mine, {"discrete": DQN}, "DQN has a setting 'double_q'; Mine needs it too"),
        (Mine, {"discrete": "dqn"}, "needs a Learner class, got 'dqn'"),
        (Mine, {"discrete": SAC}, "Mine must be for continuous actions and SAC for discrete ones"),
        (
            type("Late", (DQN,), {"name": "late"}),
            {"discrete": DQN},
            "Late must be for continuous actions and DQN for discrete ones",
        ),
    ],
)
def test_a_wrong_registration_is_one_line(learner: Any, options: dict[str, Any], message: str) -> None:
    rl_training.register(Mine)
    with pytest.raises(ConfigError) as caught:
        rl_training.register(learner, **options)
    assert str(caught.value) == f"register: {message}"
    assert registry.get_algorithm_spec("mine").learner is Mine


def step_wrongly(learner: Learner, case: str) -> Any:
    def loss() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        value = torch.stack([parameter.mean() for parameter in learner.model.critics.parameters()]).sum()
        return value.expand(2, 4) if case == "shape" else value, {}

    learner.minimize((), {"critic" if case == "key" else "critics": loss})
    return {"wide term": {"mine": torch.zeros(3)}, "plain term": {"mine": 1.0}}.get(case)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("key", "sac: no optimiser 'critic'; optimisers: critics, actor"),
        ("shape", "sac: the loss of critics has shape [2, 4], not []"),
        ("terms", "sac: gradient_step must return terms, got NoneType"),
        ("wide term", "sac: the term 'mine' must be a tensor of shape [], got [3]"),
        ("plain term", "sac: the term 'mine' must be a tensor of shape [], got float"),
    ],
)
def test_a_wrong_update_is_one_line(case: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = build(SAC)
    monkeypatch.setattr(learner, "gradient_step", lambda batch, variant: step_wrongly(learner, case))
    with pytest.raises(ConfigError) as caught:
        learner.update(random_batch(), global_step=0)
    assert str(caught.value) == message


@pytest.mark.parametrize("base", [SAC, CrossQ])
@pytest.mark.parametrize("population", ["auto", "off"])
def test_a_population_reads_terms_of_its_update_if_there_is_one_call_of_minimize(
    base: type[Learner], population: str, tmp_path: Path
) -> None:
    def gradient_step(self: Learner, *arguments: Any) -> Any:
        terms = base.gradient_step(self, *arguments)
        return terms | {"twice": 2 * terms["critic_loss"]}

    managed = rl_training.register(type("Mine", (base,), {"name": "mine", "gradient_step": gradient_step}))
    settings = {**SMALL, "train_frequency": 1, "seeds": [0, 1], "population": population}
    model = managed("Pendulum-v1", output_dir=str(tmp_path), **settings)
    if (base, population) == (CrossQ, "auto"):
        with pytest.raises(ConfigError, match="calls minimize 2 times and computes the term 'twice' from terms"):
            model.learn(40, progress_bar=False)
        return
    for result in model.learn(40, progress_bar=False):
        assert result.metrics["twice"] == pytest.approx(2 * result.metrics["critic_loss"])


@pytest.mark.parametrize("read", ["get", "values", "merged"])
def test_a_population_refuses_terms_that_are_computed_from_those_of_another_call(read: str, tmp_path: Path) -> None:
    def gradient_step(self: Learner, *arguments: Any) -> Any:
        terms = CrossQ.gradient_step(self, *arguments)
        merged = {**terms} | {"mine": torch.ones(())}
        merged["other"] = 2 * merged["mine"]  # no term of `minimize`
        own = {"get": terms.get("critic_loss"), "values": sum(terms.values()), "merged": merged.get("critic_loss")}
        return merged | {"twice": 2 * own[read]}

    managed = rl_training.register(type("Mine", (CrossQ,), {"name": "mine", "gradient_step": gradient_step}))
    settings = {**SMALL, "train_frequency": 1, "seeds": [0, 1]}
    with pytest.raises(ConfigError, match="computes the term 'twice' from terms that it returned"):
        managed("Pendulum-v1", output_dir=str(tmp_path), **settings).learn(40, progress_bar=False)


@pytest.mark.parametrize(
    ("extra", "message"), [({"wide": torch.zeros(3)}, "the term 'wide' must be"), ({}, "the loss of critics has")]
)
def test_the_losses_of_a_population_are_checked(extra: dict[str, Any], message: str, tmp_path: Path) -> None:
    class Wrong(SAC):
        name = "mine"

        def critic_loss(self, *arguments: Any) -> Any:
            loss, terms = super().critic_loss(*arguments)
            return loss if extra else loss.expand(2), terms | extra

    managed = rl_training.register(Wrong)
    with pytest.raises(ConfigError, match=f"^mine: {message}"):
        managed("Pendulum-v1", output_dir=str(tmp_path), seeds=[0, 1], **SMALL).learn(40, progress_bar=False)


@pytest.mark.parametrize("seeds", [None, [0, 1]])
@pytest.mark.parametrize("layer", [torch.nn.Dropout(0.5), torch.randn_like], ids=["dropout", "function"])
def test_an_update_draws_from_the_generator_of_its_learner_alone(layer: Any, seeds: Any, tmp_path: Path) -> None:
    """A checkpoint does not contain torch's global generator."""

    class Noisy(SAC):
        name = "mine"

        def critic_loss(self, batch: TransitionBatch, *noises: torch.Tensor) -> Any:
            return super().critic_loss(batch._replace(obs=layer(batch.obs)), *noises)

    model = rl_training.register(Noisy)("Pendulum-v1", output_dir=str(tmp_path), seeds=seeds, **SMALL)
    with pytest.raises(ConfigError, match=r"^mine: an update draws from torch's global generator, .* self.uniform"):
        model.learn(40, progress_bar=False)


def test_noise_is_not_held_for_discrete_actions(tmp_path: Path) -> None:
    managed = rl_training.register(type("Mine", (DQN,), {"name": "mine", "longest_noise": 4}))
    with pytest.raises(ConfigError, match=r"^mine: longest_noise must be 1 for discrete actions$"):
        managed("CartPole-v1", output_dir=str(tmp_path)).learn(40, progress_bar=False)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("case", ["trained", "target", "declared"])
def test_a_network_that_no_checkpoint_would_contain_is_refused(case: str, tmp_path: Path) -> None:
    class Bonus(Mine):
        def __init__(self, *, model: Any, **hyperparameters: Any) -> None:
            super().__init__(model=model, **hyperparameters)
            self.bonus = torch.nn.Linear(model.obs_dim, 1)
            if case != "target":
                self.optimizers["bonus"] = self.adam(self.bonus)

        def modules(self) -> dict[str, torch.nn.Module]:
            return super().modules() | ({"bonus": self.bonus} if case == "declared" else {})

    managed = rl_training.register(Bonus)
    model = managed("Pendulum-v1", output_dir=str(tmp_path), **SMALL)
    if case == "declared":
        assert model.learn(40, progress_bar=False).metrics["global_step"] == 40
        return
    with pytest.raises(ConfigError) as caught:
        model.learn(40, progress_bar=False)
    place = "the optimiser 'bonus'" if case == "trained" else "bonus"
    assert str(caught.value).startswith(f"mine: {place} has parameters of a network that modules() does not return")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("regime", ["online", "offline", "offline_to_online"])
def test_each_regime_has_its_name(regime: str) -> None:
    rl_training.register(Mine, regime=regime)
    assert registry.get_algorithm_spec("mine").regime.replace("-", "_") == regime


@pytest.mark.parametrize("value", ["plugged:Mine", "plugged:add"])
def test_an_installed_algorithm_is_found_by_its_name(
    module: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, ("mine", value))
    monkeypatch.syspath_prepend(Path.cwd())
    assert registry.installed_names() == ["mine"]
    assert registry.algorithm_name("sac") == "sac"
    assert "plugged" not in sys.modules
    listed = {row["name"]: row["title"] for row in json.loads(done("algos", "--json"))}
    assert listed["mine"] == {"plugged:Mine": "Mine", "plugged:add": "added by a function"}[value]
    shown = CliRunner().invoke(cli.main, ["train", "--algo", "MINE", "--env", "Pendulum-v1", "--steps", "40", *SET])
    assert "next:" in shown.output
    assert "--allow-import" not in shown.output
    [run] = Path("runs").iterdir()
    forget()
    assert len(json.loads(done("predict", run, "--obs", "1.0,0.0,0.0"))) == 1


@pytest.mark.parametrize("network", ["tower", "'plugged:tower'"])
def test_an_installed_algorithm_has_a_network_without_permission(
    module: str, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import rl_training\nfrom torch.nn import Linear\n\ndef tower(i, o, h):\n    return Linear(i, o)\n"
    Path("plugged.py").write_text(f"{MODULE}{text}rl_training.register(Mine, network={network})\n")
    install(monkeypatch, ("mine", "plugged:Mine"))
    monkeypatch.syspath_prepend(Path.cwd())
    shown = CliRunner().invoke(cli.main, ["train", "--algo", "mine", "--env", "Pendulum-v1", "--steps", "40", *SET])
    assert "next:" in shown.output
    assert "--allow-import" not in shown.output
    [run] = Path("runs").iterdir()
    forget()
    done("predict", run, "--obs", "1.0,0.0,0.0")
    assert rl_training.load(run).config.algo_kwargs["network"] == "plugged:tower"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            [("mine", "plugged:Mine"), ("mine", "rival:Mine")],
            "'mine' is provided by plugged:Mine and rival:Mine; uninstall one of them",
        ),
        (
            [("mine", "plugged_not:Mine")],
            "'mine' is provided by plugged_not:Mine, which fails: ModuleNotFoundError: "
            "No module named 'plugged_not'",
        ),
        ([("mine", "plugged:fail")], "'mine' is provided by plugged:fail, which fails: OSError: a licence"),
        ([("mine", "plugged:Other")], "plugged:Other registers no algorithm named 'mine'"),
    ],
)
def test_a_broken_package_is_one_line_and_hides_no_algorithm(
    module: str,
    entries: list[tuple[str, str]],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, *entries)
    monkeypatch.syspath_prepend(Path.cwd())
    with pytest.raises(ConfigError) as caught:
        registry.get_algorithm_spec("mine")
    assert str(caught.value) == f"algo: {message}"
    registry._SPECS.pop("other", None)
    result = CliRunner().invoke(cli.main, ["algos"])
    assert (result.exit_code, message in result.stderr, "rebrac" in result.stdout) == (0, True, True)


def test_an_installed_package_cannot_replace_an_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ("dqn", "plugged:Mine"))
    assert registry.get_algorithm_spec("dqn").learner is DQN
    assert registry.installed_names() == []
    told = CliRunner().invoke(cli.main, ["algos"]).stderr
    assert told == "warning: algo: plugged:Mine is ignored: 'dqn' is an algorithm of this package\n"
    with pytest.raises(ConfigError) as caught:
        registry.algorithm_name("nothing")
    assert str(caught.value).count("dqn") == 1


def test_module_and_class_need_permission(module: str, tmp_path: Path) -> None:
    file, named = tmp_path / "mine.yaml", tmp_path / "named.yaml"
    file.write_text("algo: plugged:Mine\nenv_id: Pendulum-v1\ntotal_timesteps: 40\n")
    named.write_text("algo: mine\nplugin: plugged:Mine\nenv_id: Pendulum-v1\ntotal_timesteps: 40\n")
    told = "algo: 'plugged:Mine' would import the module 'plugged'; allow it with --allow-import, or install it as"
    assert told in refused("train", "--algo", "plugged:Mine", "--env", "Pendulum-v1", "--steps", "40")
    assert f"{file}:1: {told}" in refused("train", "--config", file)
    assert told in refused("train", "--config", file, "--set", "alpha=0.1")
    assert f"{named}:1: algo: 'mine' is not installed; it is 'plugged:Mine'" in refused("train", "--config", named)
    assert "plugged" not in sys.modules
    assert not Path("runs").exists()
    for config in (file, named):
        forget()
        done("train", "--config", config, "--allow-import", *SET, "--set", "alpha=0.3", "--output-dir", config.stem)
        [path] = Path(config.stem).glob("*/checkpoints/step_000000040/config.json")
        written = json.loads(path.read_text())
        assert (written["algo"], written["plugin"], written["algo_kwargs"]["alpha"]) == (
            "mine",
            "plugged:Mine",
            0.3,
        )


@pytest.mark.parametrize(
    ("algo", "message"),
    [
        ("plugged:Nothing", "algo: the module plugged has no 'Nothing'"),
        ("plugged:add", "algo: plugged:add is not a Learner class"),
        ("rl_training.algorithms.base:Learner", "register: Learner.name must be lower-case letters"),
        ("os:system", "algo: os:system is not a Learner class"),
        ("plugged_not:Mine", "algo: the module 'plugged_not' cannot be imported; is it importable from here"),
        (":", "algo: the module  cannot be imported: ValueError: Empty module name"),
        ("plugged:Nameless", "'sac' is the name of rl_training.algorithms.sac:SAC; give Nameless another `name`"),
    ],
)
def test_a_wrong_module_is_one_line(module: str, algo: str, message: str) -> None:
    words = ("train", "--algo", algo, "--env", "Pendulum-v1", "--steps", "40", "--allow-import")
    assert message in refused(*words)


@pytest.mark.parametrize("words", [["--dataset", "log.npz"], ["--set", "regime=offline"]])
def test_a_class_that_is_not_registered_as_offline_names_the_remedy(words: list[str], module: str) -> None:
    start = "train", "--algo", f"{module}:Mine", "--env", "Pendulum-v1", "--steps", "40", "--allow-import"
    assert re.search("register the class with regime=.offline.$", refused(*start, *words))
    assert not re.search("register", refused("train", "--algo", "sac", "--env", "Pendulum-v1", *words))


def test_a_run_without_its_plugin_names_the_remedy(run: Path) -> None:
    told = (
        "algo: 'mine' is not installed; it is 'plugged:Mine': install its package, or allow its import with "
        "--allow-import; in Python, import its module first"
    )
    commands = (
        ("resume", run, "--set", "total_timesteps=60"),
        ("evaluate", run),
        ("export", run, "-o", "policy.npz"),
        ("predict", run, "--obs", "1.0,0.0,0.0"),
    )
    for words in commands:
        assert told in refused(*words)
    with pytest.raises(ConfigError, match="install its package"):
        rl_training.load(run)
    assert "plugged" not in sys.modules
    for words in commands:
        forget()
        done(*words, "--allow-import")
    assert json.loads((run / "run.json").read_text())["exact_resume"] is True


ESTIMATE = ("--dataset", "data.npz", "--updates", "10", "--bootstraps", "2", "--json")
STUDY = """
name: own
base: sac/pendulum
set:
  {algo: plugged:Mine, total_timesteps: 40, alpha: 0.3, network: plugged:network, loggers: [plugged:Rows]}
grid: {gamma: [0.9, 0.99]}
threads: 1
"""
PARTS = """
from torch import nn
from rl_training import Logger

def network(in_features, out_features, hidden_sizes):
    return nn.Linear(in_features, out_features)

class Rows(Logger):
    def write(self, row):
        pass

def same(env):
    return env
"""


def test_a_study_of_an_environment_starts_with_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No trial is recorded as failed, so that the same command with --allow-import trains all."""
    monkeypatch.chdir(tmp_path)
    Path("places.py").write_text("from gymnasium.envs.classic_control import PendulumEnv\n")
    values = {**SMALL, "total_timesteps": 40, "env_id": "places:PendulumEnv", "eval_max_steps": 20}
    limit = [{"TimeLimit": {"max_episode_steps": 20}}]
    Path("own.yaml").write_text(json.dumps({"base": "sac/pendulum", "set": values | {"wrappers": limit}}))
    message = "env_id: 'places:PendulumEnv' would import the module 'places'; no trial was started: allow it with"
    assert message in refused("sweep", "own.yaml")
    assert message in refused("work", "studies/own")
    assert not rl_training.Study("studies/own").status().failed
    done("sweep", "own.yaml", "--allow-import")
    done("sweep", "own.yaml")  # all trials are done


@pytest.mark.parametrize(
    "needing",
    [
        {"algo": "plugged:Mine"},
        {"network": "plugged:network"},
        {"loggers": ["plugged:Rows"]},
        {"wrappers": [{"TimeLimit": {"max_episode_steps": 20}}, "plugged:same"]},
    ],
    ids=str,
)
def test_a_planned_study_goes_on_with_permission(
    module: str, needing: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it no trial is recorded as failed, and no code of the module runs."""
    (tmp_path / "plugged.py").write_text(MODULE + PARTS)
    small = {**SMALL, "total_timesteps": 40}
    study = rl_training.Study({"name": "own", "base": "sac/pendulum", "set": needing | small}, allow_import=True)
    study.plan()
    forget()
    for command in ("work", "sweep"):
        message = refused(command, "studies/own")
        assert "plugged" in message
        assert "no trial was started" in message
        assert "--allow-import" in message
    assert "plugged" not in sys.modules
    assert not rl_training.Study("studies/own").status().failed
    done("sweep", "studies/own", "--allow-import")
    forget()
    done("work", "studies/own")  # all trials are done


@pytest.mark.parametrize(
    ("place", "name", "remedy"),
    [
        ("plugged", "Mine", "allow it with --allow-import"),
        ("plugged", "make.<locals>.Mine", "define it in a module"),
        ("__main__", "Mine", "define it in a module"),
    ],
)
def test_workers_do_not_know_what_this_process_has_registered(
    place: str, name: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = type("Mine", (SAC,), {"name": "mine", "__module__": place, "__qualname__": name})
    rl_training.register(own)
    small = {**SMALL, "total_timesteps": 40, "algo": "mine"}
    study = rl_training.Study({"name": "own", "base": "sac/pendulum", "seeds": "0..1", "set": small})
    told = f"algo: workers would import '{place}:{name}'; no trial was started: {remedy}"
    with pytest.raises(ConfigError, match=re.escape(told)):
        study.run(workers=2)
    assert not study.status().failed
    assert study.run().counts["done"] == 2


@pytest.mark.parametrize("needing", [{"network": "plugged:network"}, {"loggers": ["plugged:Rows"]}], ids=str)
def test_workers_do_not_know_what_this_process_has_imported(
    module: str, needing: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "plugged.py").write_text(MODULE + PARTS)
    small = {**SMALL, "total_timesteps": 40, "normalize_observations": False}
    given: dict[str, Any] = {"name": "own", "base": "sac/pendulum", "seeds": "0..1", "set": needing | small}
    rl_training.Study(given, allow_import=True).plan()
    study = rl_training.Study("studies/own")
    with pytest.raises(
        ConfigError,
        match=r"workers would import 'plugged:\w+'; no trial was started: allow it with --allow-import$",
    ):
        study.run(workers=2)
    assert study.run().counts["done"] == 2  # this process has imported it


def test_workers_know_the_network_of_an_installed_algorithm(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugged.py").write_text(MODULE + PARTS)
    install(monkeypatch, ("mine", "plugged:add"))
    monkeypatch.syspath_prepend(Path.cwd())
    sys.modules.pop("plugged", None)
    rl_training.register(importlib.import_module("plugged").Mine, network="plugged:network")
    small = {**SMALL, "total_timesteps": 40, "normalize_observations": False, "algo": "mine"}
    study = rl_training.Study({"name": "own", "base": "sac/pendulum", "seeds": "0..1", "set": small})
    require_permission(study.folder, study.plan(), allow_import=False, elsewhere=True)


def test_a_study_names_modules_with_permission(module: str, tmp_path: Path) -> None:
    (tmp_path / "plugged.py").write_text(MODULE + PARTS)
    small = {**SMALL, "normalize_observations": False}
    (tmp_path / "own.yaml").write_text(STUDY.replace("alpha: 0.3", str(small | {"alpha": 0.3})[1:-1]))
    assert "'plugged:Mine' would import the module 'plugged'; allow it" in refused("sweep", "own.yaml")
    assert "plugged" not in sys.modules
    assert not Path("studies").exists()
    done("sweep", "own.yaml", "--allow-import")
    plan = json.loads(Path("studies/own/plan.json").read_text())
    settings = [one["settings"] for one in plan["configurations"]]
    assert [(one["algo"], one["plugin"], one["allow_import"]) for one in settings] == [
        ("mine", "plugged:Mine", False)
    ] * 2
    runs = sorted(Path("studies/own/runs").iterdir())
    assert [json.loads((run / "run.json").read_text())["status"] for run in runs] == ["finished"] * 2
    status = rl_training.Study("own.yaml", allow_import=True).run()
    assert status.counts["done"] == 2
    done("dataset", "collect", "--env", "Pendulum-v1", "--size", "600", "-o", "data.npz")
    forget()
    assert "'mine' is not installed" in refused("select", "studies/own", "--by", "fqe", *ESTIMATE)
    options = (*ESTIMATE, "--anyway", "--allow-import")
    assert json.loads(done("select", "studies/own", "--by", "fqe", *options))["trial"]


def test_data_and_estimates_of_a_run_need_permission(run: Path) -> None:
    done("dataset", "collect", "--env", "Pendulum-v1", "--size", "600", "-o", "data.npz")
    for words in (("dataset", "from-run", run, "-o", "replay.npz"), ("ope", run, *ESTIMATE)):
        forget()
        assert "'mine' is not installed; it is 'plugged:Mine'" in refused(*words)
        done(*words, "--allow-import")


def test_a_name_of_this_package_needs_no_plugin(run: Path) -> None:
    checkpoint = open_checkpoint(run)
    checkpoint.records["config"].update(algo="sac", plugin="plugged:Mine")
    load_policy(checkpoint, allow_import=True)
    assert "plugged" not in sys.modules


def test_system_is_not_called_by_a_config() -> None:
    config = TrainConfig(algo="os:system", env_id="Pendulum-v1", total_timesteps=10)
    with pytest.raises(ConfigError, match=r"^algo: 'os:system' would import the module 'os'; allow it with"):
        ExperimentManager().train(config)


def test_an_unknown_name_lists_installed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ("blended", "plugged:Mine"))
    with pytest.raises(ConfigError, match=r"did you mean 'blended'\?; known: dqn, .*, blended$"):
        registry.algorithm_name("blendet")
