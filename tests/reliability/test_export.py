"""Promise 21: an exported policy equals `predict` within 1e-5 and is self-contained, or it is not written."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from numpy.typing import NDArray

from rl_training import load
from rl_training.environments.making import read_spaces
from rl_training.errors import ConfigError, ExportError
from rl_training.export import parity, writing
from rl_training.export.graph import onnx_bytes, onnx_runner
from rl_training.export.program import npz_bytes, program_of
from rl_training.export.writing import export_checkpoint
from rl_training.models.steps import Step
from rl_training.runs.session import TrainResult
from rl_training.runtime.loading import LoadedPolicy, load_policy, open_checkpoint
from rl_training.spaces import SpaceSpec
from tests.exports import BOX, CHOICES, SKEWED, looks, run_file, untrained
from tests.reliability.test_actions import Shell, boxes
from tests.runs import ALL, mostly_slow

INFO = {"observation": {"size": 3}, "stochastic": False}


def compared(loaded: LoadedPolicy, suffix: str, **options: Any) -> parity.Parity:
    """Result of the check of a policy exported in memory."""
    steps, sampled = program_of(loaded, sampled=options.get("sampled", False)), options.get("sampled", False)
    if suffix == ".npz":
        run = writing._numpy_runner(npz_bytes(steps, INFO | {"stochastic": sampled}))
    else:
        run = onnx_runner(onnx_bytes(steps, loaded.spaces, sampled=sampled, metadata={}, version="0"))
    return parity.check(run, loaded, looks(scale=options.get("scale", 1.0)), sampled=sampled)


@pytest.mark.parametrize("algo", mostly_slow(ALL, "dqn", "td3", "redq", "bc", "iql", "rlpd"))
def test_exported_files_equal_the_policy_of_every_algorithm(
    algo: str, runs: Callable[[str], TrainResult], tmp_path: Path
) -> None:
    """With asymmetric bounds, a normaliser if the algorithm has one, and new observations."""
    model = load(runs(algo).run_dir)
    space: gym.Space[Any] = CHOICES if algo == "dqn" else BOX
    obs = np.random.default_rng(11).normal([5.0, 0.0, -30.0], [0.1, 1.0, 20.0], (64, 3)).astype(np.float32)
    options = {"deterministic": True} if algo == "fql" else {}  # the others are deterministic by default
    expected = model.predict(obs, **options)
    for suffix in ("onnx", "npz"):
        made = model.export(tmp_path / f"policy.{suffix}", **options)
        assert made.observations == 1035
        assert made.largest_difference <= 1e-5
        run = run_file(made.path)
        for size in (1, 7, 64):
            got = np.concatenate([run(obs[i : i + size]) for i in range(0, 64, size)])
            assert got.dtype == space.dtype == expected.dtype
            np.testing.assert_allclose(got, expected, rtol=0, atol=3e-6)
            assert all(space.contains(action) for action in got)
        assert made.record["observation"]["normalized_inside"]


@pytest.mark.parametrize("algo", ["dqn", "iql", "sac"])
def test_policies_of_the_first_version_are_exported(algo: str, tmp_path: Path) -> None:
    place = Path(__file__).parent / "golden" / "format_1" / algo / "checkpoint"
    made = export_checkpoint(place, tmp_path / "policy.onnx")
    assert made.largest_difference <= 1e-5
    assert (made.record["algorithm"], made.record["run"]) == (algo, None)
    tests = np.load(tmp_path / "policy.test.npz")
    got = run_file(made.path)(tests["observation"])
    np.testing.assert_allclose(got, tests["action"], rtol=0, atol=float(tests["tolerance"]))


@pytest.mark.parametrize("suffix", [".onnx", ".npz"])
@pytest.mark.parametrize("algo", ["td3", "sac", "iql", "dqn"])
def test_the_export_includes_the_normaliser(algo: str, suffix: str) -> None:
    spaces = SpaceSpec(3, num_actions=3, action_dtype="int64") if algo == "dqn" else SKEWED
    loaded = untrained(algo, spaces, normalize=True)
    loaded.policy.normalizer.set_moments(torch.tensor([5.0, 0.0, -30.0]), torch.tensor([0.1, 1.0, 20.0]))
    plain = program_of(loaded, sampled=False)
    assert compared(loaded, suffix, scale=10.0).rows == 50
    loaded.policy.normalizer.clip(2.0)
    assert [step.operation for step in program_of(loaded, sampled=False)[:2]] == ["normalize", "clip"]
    assert len(program_of(loaded, sampled=False)) == len(plain) + 1
    assert compared(loaded, suffix, scale=10.0).rows == 50


@pytest.mark.parametrize("suffix", [".onnx", ".npz"])
@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "elu", "gelu", "silu", "tanh"])
def test_every_network_is_written(activation: str, suffix: str) -> None:
    layered = untrained("dqn", SpaceSpec(3, num_actions=4, start=-2, action_dtype="int64"), activation=activation)
    assert compared(layered, suffix).largest == 0.0
    normed = untrained(
        "dqn", SpaceSpec(3, num_actions=4, action_dtype="int32"), activation=activation, layer_norm=True
    )
    assert compared(normed, suffix).ties == 0
    assert compared(untrained("sac", activation=activation), suffix).largest <= 1e-6


@pytest.mark.parametrize("suffix", [".onnx", ".npz"])
@pytest.mark.parametrize("algo", ["sac", "iql", "fql"])
def test_noise_is_an_input_and_nothing_else_is_random(
    algo: str, suffix: str, runs: Callable[[str], TrainResult], tmp_path: Path
) -> None:
    made = export_checkpoint(runs(algo).run_dir, tmp_path / f"policy{suffix}", deterministic=False)
    run, loaded = run_file(made.path), load_policy(open_checkpoint(runs(algo).run_dir))
    rng = np.random.default_rng(0)
    obs, noise = (rng.normal(size=shape).astype(np.float32) for shape in ((20, 3), (20, 2)))
    obs = obs * np.float32([0.1, 1.0, 20.0]) + np.float32([5.0, 0.0, -30.0])
    first, again = (run(obs, noise) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_allclose(first, loaded.act(obs, noise), rtol=0, atol=3e-6)
    assert np.abs(first - run(obs, -noise)).max() > 0.01
    tests = np.load(tmp_path / "policy.test.npz")
    np.testing.assert_allclose(
        run(tests["observation"], tests["noise"]), tests["action"], rtol=0, atol=float(tests["tolerance"])
    )


@pytest.mark.parametrize("suffix", [".onnx", ".npz"])
def test_actions_reach_their_bounds_and_never_leave_them(suffix: str) -> None:
    loaded = untrained("td3")
    for sign in (-1.0, 1.0):
        loaded.policy.actor.net.head.bias.fill_(sign * 50.0)
        assert compared(loaded, suffix).largest == 0.0
    assert np.array_equal(loaded.act(np.zeros((1, 3), np.float32)), [BOX.high])


@pytest.mark.parametrize("suffix", [".onnx", ".npz"])
@settings(max_examples=8, deadline=None)
@given(box=boxes())
def test_all_bounds_of_all_floating_types_are_exported(suffix: str, box: gym.spaces.Box) -> None:
    compared(untrained("sac", read_spaces(Shell(box), discrete=False)), suffix)


def change(steps: list[Step], operation: str, name: str, edit: Callable[[NDArray[Any]], Any]) -> list[Step]:
    """`steps` with one array of the first operation of this kind changed."""
    i = next(i for i, step in enumerate(steps) if step.operation == operation)
    arrays = dict(steps[i].arrays)
    arrays[name] = np.asarray(edit(arrays[name].copy()), arrays[name].dtype)
    return [*steps[:i], Step(operation, arrays), *steps[i + 1 :]]


WRONG: dict[str, Callable[[list[Step]], list[Step]]] = {
    "a weight a little off": lambda steps: change(steps, "affine", "weight", lambda w: w + 1e-3),
    "no normaliser": lambda steps: steps[1:],
    "the normaliser's scale": lambda steps: change(steps, "normalize", "scale", lambda s: 1.01 * s),
    "no tanh": lambda steps: [step for step in steps if step.operation != "tanh"],
    "bounds exchanged": lambda steps: change(steps, "scale", "low", lambda low: low[::-1]),
    "a bound too wide": lambda steps: change(steps, "scale", "high", lambda high: high + 1e-3),
    "not a number": lambda steps: change(steps, "affine", "bias", lambda b: b * np.nan),
}


@pytest.mark.parametrize("suffix", ["onnx", "npz"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_file_that_differs_from_the_policy_is_not_written(
    wrong: str, suffix: str, runs: Callable[[str], TrainResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        writing, "program_of", lambda loaded, sampled: WRONG[wrong](program_of(loaded, sampled=sampled))
    )
    with pytest.raises(ExportError, match=r"policy\.\w+: its actions differ .* by up to [\d.e-]+, .* nothing was"):
        export_checkpoint(runs("td3").run_dir, tmp_path / f"policy.{suffix}")
    assert list(tmp_path.iterdir()) == []


def test_discrete_actions_are_equal_or_tied() -> None:
    spaces = SpaceSpec(3, num_actions=3, start=5, action_dtype="int64")
    loaded, observations = untrained("dqn", spaces), looks()
    with pytest.raises(ExportError, match="differ from the policy's by up to 0"):
        parity.check(lambda obs, _: np.full(len(obs), 5), loaded, observations, sampled=False)
    with pytest.raises(ExportError, match="bounds"):
        parity.check(lambda obs, _: np.full(len(obs), 8), loaded, observations, sampled=False)
    loaded.policy.actor.net.head.weight.zero_()
    loaded.policy.actor.net.head.bias.zero_()
    tied = parity.check(lambda obs, _: np.full(len(obs), 7), loaded, observations, sampled=False)
    assert (tied.largest, tied.ties) == (0.0, 50 + 50 + 49)


def test_an_export_is_complete_or_absent(
    runs: Callable[[str], TrainResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy is written last; if that fails, the files written before are removed."""
    run, link, doomed = runs("td3").run_dir, os.link, [""]

    def fail(source: Any, target: Any) -> None:
        if Path(target).suffix == doomed[0]:
            raise FileExistsError
        link(source, target)

    monkeypatch.setattr(os, "link", fail)
    for doomed[0] in (".npz", ".py", ".json"):
        with pytest.raises(ConfigError, match="already exists and is not overwritten"):
            export_checkpoint(run, tmp_path / "policy.npz")
        assert list(tmp_path.iterdir()) == []
    doomed[0] = ""
    export_checkpoint(run, tmp_path / "policy.onnx")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    doomed[0] = ".npz"
    with pytest.raises(ConfigError, match="already exists and is not overwritten"):
        export_checkpoint(run, tmp_path / "policy.npz")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


ALONE = """
import sys
import numpy as np
from policy_runner import Policy

policy, tests = Policy("policy.npz"), np.load("policy.test.npz")
assert np.abs(policy(tests["observation"]) - tests["action"]).max() <= tests["tolerance"]
one = policy(tests["observation"][0])
assert one.shape == tests["action"][0].shape and one.dtype == tests["action"].dtype
print(policy.info["algorithm"], sorted({"torch", "rl_training", "gymnasium", "onnx"} & set(sys.modules)))
for wrong in ([0.0], [np.nan, 0.0, 0.0], np.zeros((1, 2, 3))):
    try:
        policy(wrong)
    except ValueError as error:
        print(error)
"""


def test_the_runner_needs_numpy_and_nothing_else(runs: Callable[[str], TrainResult], tmp_path: Path) -> None:
    export_checkpoint(runs("sac").run_dir, tmp_path / "policy.npz")
    environment = {"PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    told, *refused = done.stdout.splitlines()
    assert told == "sac []"
    assert refused == [
        f"observation must be finite numbers [3] or [B, 3], got {shape}" for shape in ("[1]", "[3]", "[1, 2, 3]")
    ]


def test_a_file_has_its_metadata(runs: Callable[[str], TrainResult], tmp_path: Path) -> None:
    result = runs("sac")
    made = export_checkpoint(result.run_dir, tmp_path / "policy.onnx")
    told = json.loads((tmp_path / "policy.json").read_text())
    manifest = (result.checkpoint_path / "manifest.json").read_bytes()
    assert told["checkpoint"]["sha256"] == hashlib.sha256(manifest).hexdigest()
    assert told["files"]["policy.onnx"]["sha256"] == hashlib.sha256(made.path.read_bytes()).hexdigest()
    assert (told["action"]["low"], told["action"]["high"]) == (list(SKEWED.low), list(SKEWED.high))
    assert told["run"] == result.run_dir.name
    model = onnx.load(made.path)
    inside = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(inside["policy"]) == {key: value for key, value in told.items() if key != "files"}
    assert inside["checkpoint_sha256"] == told["checkpoint"]["sha256"]
    assert not any(tensor.external_data for tensor in model.graph.initializer)
    assert [entry.name for entry in model.graph.input] == ["observation"]
    assert [entry.name for entry in model.graph.output] == ["action"]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    made.path.unlink()
    assert export_checkpoint(result.run_dir, made.path).path.read_bytes() == model.SerializeToString(
        deterministic=True
    )
