"""`rl-training export` and `model.export`: output files, metadata, and errors."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from rl_training import BC, SAC, TransitionDataset, cli, load
from rl_training.errors import CheckpointError, ConfigError, ExportError
from rl_training.experiment.config import TrainConfig
from rl_training.export import parity, writing
from rl_training.export.graph import onnx_bytes, onnx_runner
from rl_training.export.observations import observations_for
from rl_training.export.program import npz_bytes, program_of
from rl_training.export.writing import export_checkpoint
from rl_training.models.mlp import MLP
from rl_training.models.policies import Normalizer, Policy
from rl_training.models.steps import Step
from rl_training.runs.session import TrainResult
from rl_training.runtime.loading import LoadedPolicy, load_policy, open_checkpoint
from rl_training.spaces import SpaceSpec
from tests.exports import SKEWED, Skewed, looks, run_file, trained, untrained
from tests.runs import ALL, TINY, owned, tiny, train
from tests.test_readme import shortened
from tests.test_structured_observations import Sampled

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "guides" / "deploying.md").read_text(encoding="utf-8")


@pytest.fixture
def run(runs: Callable[[str], TrainResult]) -> Path:
    return runs("sac").run_dir


def command(*arguments: object) -> Any:
    return CliRunner().invoke(cli.main, [str(argument) for argument in arguments])


def fails(code: int, message: str, *arguments: object) -> None:
    result = command("--quiet", "export", *arguments)
    assert result.exit_code == code, result.output
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_command_lists_the_files_it_wrote(run: Path, tmp_path: Path) -> None:
    result = command("export", run, "-o", tmp_path / "new" / "policy.onnx")
    assert result.exit_code == 0, result.output
    assert "largest difference" in result.stdout
    assert "25 of its replay buffer, 975 drawn like them" in result.stdout
    assert names(tmp_path / "new") == ["policy.json", "policy.onnx", "policy.test.npz"]
    assert command("export", "--checkpoint", run, "-o", tmp_path / "new" / "policy.npz").exit_code == 0
    assert names(tmp_path / "new") == [
        "policy.json",
        "policy.npz",
        "policy.onnx",
        "policy.test.npz",
        "policy_runner.py",
    ]
    told = json.loads((tmp_path / "new" / "policy.json").read_text())
    assert told["files"].keys() == {"policy.npz", "policy.onnx"}


def test_test_vectors_are_for_every_format(run: Path, tmp_path: Path) -> None:
    for suffix in ("onnx", "npz"):
        export_checkpoint(run, tmp_path / f"policy.{suffix}")
        tests = np.load(tmp_path / "policy.test.npz")
        got = run_file(tmp_path / f"policy.{suffix}")(tests["observation"])
        assert got.shape == (100, 2)
        np.testing.assert_allclose(got, tests["action"], rtol=0, atol=float(tests["tolerance"]))


@pytest.mark.parametrize("suffix", ["onnx", "npz"])
@pytest.mark.parametrize("algo", ["bc", "cql", "iql"])
def test_choices_learned_from_data(algo: str, suffix: str, library: Any, tmp_path: Path) -> None:
    """The largest output, numbered as in the environment; logits can also be sampled with noise."""
    run = library.get(["choices", algo], lambda folder: trained(algo, folder, discrete=True)).run_dir
    model, target = load(run), tmp_path / f"policy.{suffix}"
    export_checkpoint(run, target)
    tests = np.load(tmp_path / "policy.test.npz")
    got = run_file(target)(tests["observation"])
    assert got.dtype == np.int64
    assert set(got) <= {5, 6, 7}
    assert np.array_equal(got, model.predict(tests["observation"]))
    noisy = tmp_path / f"noisy.{suffix}"
    if algo == "cql":
        with pytest.raises(ExportError, match="the policy of cql is deterministic"):
            export_checkpoint(run, noisy, deterministic=False)
    else:
        assert export_checkpoint(run, noisy, deterministic=False).largest_difference == 0.0


def test_existing_files_are_not_overwritten(run: Path, runs: Callable[[str], TrainResult], tmp_path: Path) -> None:
    target = tmp_path / "policy.npz"
    export_checkpoint(run, target)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    fails(2, "policy.npz: already exists and is not overwritten", run, "-o", target)
    other = tmp_path / "policy.onnx"
    for options in (["--stochastic"], []):
        source = run if options else runs("td3").run_dir
        fails(2, "policy.json: already exists and describes another policy", source, "-o", other, *options)
    (tmp_path / "policy.json").write_text("[]")
    fails(2, "policy.json: already exists and describes another policy", run, "-o", other)
    (tmp_path / "policy_runner.py").write_text("# mine")
    fails(2, "policy_runner.py: already exists and differs from this version's", run, "-o", tmp_path / "second.npz")
    (tmp_path / "third.test.npz").write_text("mine")
    fails(2, "third.test.npz: already exists", run, "-o", tmp_path / "third.onnx")
    mended = {tmp_path / "policy.json": b"[]", tmp_path / "policy_runner.py": b"# mine"}
    mended[tmp_path / "third.test.npz"] = b"mine"
    assert {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before | mended


@pytest.mark.parametrize("left", [["policy.json"], ["policy.json", "policy.test.npz"]])
def test_the_files_of_a_killed_export_are_completed(left: list[str], run: Path, tmp_path: Path) -> None:
    made = export_checkpoint(run, tmp_path / "policy.npz")
    whole = {path: path.read_bytes() for path in made.files}
    for path in made.files:
        if path.name not in left:
            path.unlink()
    export_checkpoint(run, tmp_path / "policy.npz")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == whole


def test_an_export_that_cannot_be_written_is_one_line(run: Path, tmp_path: Path) -> None:
    fails(2, "policy.pt: a policy ends in .onnx or .npz", run, "-o", tmp_path / "policy.pt")
    fails(2, "policy.test.npz: a policy ends in .onnx or .npz", run, "-o", tmp_path / "policy.test.npz")
    (tmp_path / "file").write_text("")
    fails(
        2,
        f"policy.onnx: cannot be written: {tmp_path}/file is a file, not a folder",
        run,
        "-o",
        tmp_path / "file" / "policy.onnx",
    )
    fails(3, "no such checkpoint", tmp_path / "run", "-o", tmp_path / "policy.onnx")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    fails(3, "no valid checkpoint", tmp_path / "run", "-o", tmp_path / "policy.onnx")
    fails(2, "give one checkpoint", "-o", tmp_path / "policy.onnx")
    assert names(tmp_path) == ["file", "run"]


def test_a_deterministic_policy_takes_no_noise(runs: Callable[[str], TrainResult], tmp_path: Path) -> None:
    run, target = runs("td3").run_dir, tmp_path / "a.npz"
    fails(1, "the policy of td3 is deterministic and takes no noise", run, "-o", target, "--stochastic")
    assert names(tmp_path) == []


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_without_its_extra(missing: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    message = f"an .onnx file needs {missing}, which is not installed; pip install onnx onnxruntime, or write .npz"
    fails(2, message, run, "-o", tmp_path / "policy.onnx")
    assert names(tmp_path) == []
    export_checkpoint(run, tmp_path / "policy.npz")


def test_a_damaged_checkpoint_is_not_exported(tmp_path: Path) -> None:
    checkpoint = trained("td3", tmp_path / "runs").checkpoint_path
    networks = checkpoint / "networks.safetensors"
    networks.write_bytes(networks.read_bytes()[:-1] + b"x")
    fails(3, "networks.safetensors: damaged", checkpoint, "-o", tmp_path / "policy.npz")
    assert names(tmp_path) == ["runs"]


def test_observations_come_from_the_run(tmp_path: Path) -> None:
    """From the replay buffer, also for `best`; a data file; data in memory; else from the normaliser's moments."""
    kwargs = owned("sac", TINY) | {"normalize_observations": True}
    online = SAC(Skewed, output_dir=tmp_path, eval_episodes=1, **kwargs)
    result = online.learn(40, progress_bar=False)
    for place in (result.run_dir, result.run_dir / "best"):
        assert export_checkpoint(place, tmp_path / "a" / f"{place.name}.npz").source.startswith("40 of its replay")
    rng = np.random.default_rng(0)
    arrays = {
        "observations": rng.normal(3.0, 0.5, (2_000, 3)).astype(np.float32),
        "actions": rng.uniform(-1.0, 1.0, (2_000, 1)).astype(np.float32),
        "rewards": np.zeros(2_000),
        "terminals": np.zeros(2_000),
        "timeouts": np.zeros(2_000),
    }
    bounds = {"action_low": [-1.0], "action_high": [1.0]}
    file = tmp_path / "data.npz"
    np.savez(file, **arrays, **{key: np.float32(value) for key, value in bounds.items()})
    small = owned("bc", TINY | {"dataset_kind": None}) | {"output_dir": tmp_path, "normalize_observations": True}
    named, held = BC(**small), BC(**small)
    named.learn(10, progress_bar=False, dataset=file)
    held.learn(10, progress_bar=False, dataset=TransitionDataset.from_arrays(**arrays, **bounds))
    for i, model in enumerate((named, held)):
        assert model.export(tmp_path / f"{i}.npz").source == "the data it was trained on"
        checkpoint = open_checkpoint(model._checkpoint())
        seen = observations_for(checkpoint, load_policy(checkpoint), model._dataset).seen
        assert len(seen) == 1035
        assert (np.isin(seen[:1000], arrays["observations"])).all()
    file.unlink()
    made = named.export(tmp_path / "without.npz")
    assert made.source == "a normal distribution with the moments of its normaliser"
    drawn = np.load(tmp_path / "without.test.npz")["observation"][:60]
    assert np.abs(drawn.mean(0) - 3.0).max() < 0.5


def test_structured_observations_are_flat_as_in_training(tmp_path: Path) -> None:
    model = SAC(Sampled("dict"), output_dir=tmp_path / "runs", eval_episodes=0, **owned("sac", TINY))
    model.learn(30, progress_bar=False)
    made = model.export(tmp_path / "policy.onnx")
    parts = made.record["observation"]["parts"]
    assert [(one["part"], one["kind"], one["first"], one["count"]) for one in parts] == [
        ("arm", "Discrete", 0, 3),
        ("inner.a", "Box", 3, 1),
        ("inner.b", "MultiBinary", 4, 2),
        ("zoom", "Box", 6, 6),
    ]
    space = Sampled("dict").observation_space
    space.seed(1)
    loaded = load_policy(open_checkpoint(model._checkpoint()))
    observations = [space.sample() for _ in range(8)]
    flat = loaded.spaces.observations(observations)
    arms = np.array([one["arm"] for one in observations])
    np.testing.assert_array_equal(flat[:, :3].argmax(-1) + parts[0]["start"], arms)
    np.testing.assert_allclose(run_file(made.path)(flat), model.predict(observations), rtol=0, atol=1e-5)


class Choice(nn.Module):
    """A categorical policy as a user's learner might define it."""

    stochastic = True

    def __init__(self) -> None:
        super().__init__()
        self.net = MLP(3, (8,), 4)

    def forward(self, obs: Tensor) -> Tensor:
        logits: Tensor = self.net(obs)
        return logits

    def mode(self, obs: Tensor) -> Tensor:
        return self(obs).argmax(-1)

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        ends = self(obs).softmax(-1).cumsum(-1)
        return (ends[:, :-1] < torch.special.ndtr(noise)).sum(-1)


class ToldChoice(Choice):
    def steps(self, sampled: bool) -> list[Step]:
        return [*self.net.steps(), Step("categorical" if sampled else "argmax")]


def choices(actor: nn.Module) -> LoadedPolicy:
    policy = Policy(Normalizer(3, enabled=False), actor.requires_grad_(False))
    spaces = SpaceSpec(3, num_actions=4, start=2, action_dtype="int64")
    return LoadedPolicy(policy, spaces, TrainConfig(algo="bc", env_id=None, total_timesteps=1))


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("suffix", [".onnx", ".npz"])
def test_any_actor_that_lists_its_operations_is_exported(suffix: str, sampled: bool) -> None:
    torch.manual_seed(1)
    loaded = choices(ToldChoice())
    steps = program_of(loaded, sampled=sampled)
    if suffix == ".npz":
        run = writing._numpy_runner(npz_bytes(steps, {"observation": {"size": 3}, "stochastic": sampled}))
    else:
        run = onnx_runner(onnx_bytes(steps, loaded.spaces, sampled=sampled, metadata={}, version="0"))
    assert parity.check(run, loaded, looks(500), sampled=sampled).ties == 0
    if sampled:
        noise = np.random.default_rng(0).normal(size=(4000, 1)).astype(np.float32)
        drawn = run(np.zeros((4000, 3), np.float32), noise)
        shares = loaded.policy.scores(torch.zeros(1, 3)).softmax(-1)[0].numpy()
        np.testing.assert_allclose(np.bincount(drawn - 2, minlength=4) / 4000, shares, atol=0.03)
        with pytest.raises(ExportError, match="differ from the policy's by up to 0"):
            parity.check(lambda obs, noise: run(obs, -noise), loaded, looks(500), sampled=True)


@pytest.mark.parametrize("spaces", [SKEWED, SpaceSpec(3, num_actions=4)])
def test_actions_near_the_largest_float32_need_only_be_legal(spaces: SpaceSpec) -> None:
    """There, a file may overflow where the policy does not, because it adds in another order."""
    loaded = untrained("dqn" if spaces.discrete else "td3", spaces)
    for tensor in loaded.policy.actor.parameters():
        tensor.mul_(0.01)  # the policy itself does not overflow
    beyond = np.full((4, 3), np.finfo(np.float32).max)

    def run(obs: Any, noise: Any) -> Any:
        actions, far = loaded.act(obs), (obs == beyond[0]).all(-1)
        actions[far] = (actions[far] + 1) % 4 if spaces.discrete else spaces.to_env(np.zeros(2))
        return actions

    parity.check(run, loaded, dataclasses.replace(looks(), beyond=beyond), sampled=False)
    with pytest.raises(ExportError, match="outside the bounds"):
        parity.check(lambda *given: run(*given) + 9, loaded, looks(), sampled=False)


def test_an_overflow_inside_a_network_hides_no_other_difference() -> None:
    """FlashSAC squares its features, which overflows for observations of 1e20."""
    loaded, signs = untrained("flash_sac"), np.random.default_rng(0).choice([-1.0, 1.0], (8, 3))
    beyond = (signs * np.repeat([1e3, 1e20], 4)[:, None]).astype(np.float32)

    def run(obs: Any, noise: Any) -> Any:
        actions = loaded.act(obs)
        actions[(np.abs(obs) == 1e3).all(-1)] *= 0.99
        return actions

    with pytest.raises(ExportError, match="differ from the policy's by"):
        parity.check(run, loaded, dataclasses.replace(looks(), beyond=beyond), sampled=False)


def test_an_actor_that_does_not_is_refused() -> None:
    with pytest.raises(ExportError, match=r"Choice does not list .* give it a method steps\(sampled\)"):
        program_of(choices(Choice()), sampled=False)


def test_one_trained_model_is_exported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"SAC has 2 members; export one: model.members\[0\].export"):
        SAC("Pendulum-v1", seeds=[0, 1]).export(tmp_path / "policy.npz")
    with pytest.raises(ConfigError, match="SAC is not trained yet"):
        SAC("Pendulum-v1").export(tmp_path / "policy.npz")


def test_the_return_is_exported_with_the_policy(tmp_path: Path) -> None:
    result = train(tiny("td3", tmp_path / "runs", total_timesteps=25))
    record = export_checkpoint(result.run_dir, tmp_path / "policy.npz").record
    assert record["return"]["mean"] == result.metrics["eval_return_mean"]
    assert (record["return"]["at"], record["return"]["episodes"]) == (25, 1)


@pytest.mark.pages
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^<!-- run: export -->\n```python\n(.*?)^```$", PAGE, re.M | re.S)
    assert len(blocks) == PAGE.count("```python") > 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    scope: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        code = shortened(block).replace("seed=1", "seed=1, hidden_sizes=[16], eval_episodes=1")
        exec(compile(code, "deploying.md", "exec", dont_inherit=True), scope)
    sys.modules.pop("policy_runner")
    np.testing.assert_allclose(scope["session"].run(None, {"observation": scope["tests"]["observation"]})[0],
                               scope["tests"]["action"], atol=1e-5)  # fmt: skip
    for command in re.findall(r"^rl-training ([^#\n]+)", PAGE, re.M):
        assert CliRunner().invoke(cli.main, [*command.split(), "--help"]).exit_code == 0


def test_the_page_lists_the_value_of_every_algorithm() -> None:
    table = PAGE.partition("## Values")[2]
    told = [name for row in re.findall(r"^\| (`[^|]+) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)]
    assert sorted(told) == sorted(ALL)


def test_a_run_does_not_start_from_an_export(runs: Callable[[str], TrainResult], tmp_path: Path) -> None:
    made = export_checkpoint(runs("sac").run_dir, tmp_path / "policy.npz")
    for path in (made.path, made.path.with_suffix(".json")):
        with pytest.raises(CheckpointError, match=r"not a checkpoint folder .*; of an exported policy use the run"):
            load(path)
