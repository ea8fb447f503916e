"""The examples except REDQ's reference: own data, a deployed policy, a comparison and a tuning."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from examples.compare_ten_seeds import table, verdict
from examples.deploy_policy import actions, opened
from examples.offline_own_arrays import logged_data
from rl_training import TransitionDataset
from rl_training.console.options import number
from rl_training.export.writing import export_checkpoint
from rl_training.report import runs
from rl_training.runtime.loading import load_policy, open_checkpoint
from tests.reliability.processes import Ended, forked_program

pytestmark = pytest.mark.pages

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def program(name: str, *arguments: str, typed: str = "") -> Ended:
    """One of the examples in a fork, which has its libraries already."""
    return forked_program(ROOT / "examples" / name, *arguments, typed=typed)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy trained by the example on its own arrays, in an interpreter of its own."""
    place = tmp_path_factory.mktemp("runs")
    command = [sys.executable, ROOT / "examples" / "offline_own_arrays.py", "--updates", "300"]
    done = subprocess.run(
        [*command, "--output-dir", place], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "position +1.0  push -" in done.stdout  # a controller pushes back
    return next(place.iterdir())


def test_the_log_is_episodes_cut_by_time() -> None:
    dataset = TransitionDataset.from_arrays(**logged_data(episodes=4, length=5), action_low=-3.0, action_high=3.0)
    assert dataset.episode_ends.tolist() == [4, 9, 14, 19]
    assert not dataset.dones.any()


def test_a_deployed_policy_answers_line_by_line(run: Path) -> None:
    observations = [[0.5, 0.0], [-0.5, 0.1]]
    done = program("deploy_policy.py", str(run), typed="\n".join(map(json.dumps, observations)) + "\n")
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    policy = load_policy(open_checkpoint(run))
    np.testing.assert_array_equal(np.asarray(answers, np.float32), policy.predict(observations))
    assert list(actions(policy, ["\n", "[0.5, 0.0]\n"])) == [answers[0]]


def test_a_policy_predicts_for_every_form_of_observation(run: Path, tmp_path: Path) -> None:
    done = program("deploy_policy.py", str(run), "--try-in", str(tmp_path))
    assert done.returncode == 0, done.stderr
    onnx, numpy, _, *answers = done.stdout.splitlines()
    for line, name in ((onnx, "policy.onnx"), (numpy, "policy.npz")):
        assert line.startswith(f"{tmp_path / name}: ")
    assert len(answers) == 5
    for line in answers:
        _, *three = re.findall(r"\[[^]]*\]", line)
        assert len(three) == 3
        np.testing.assert_allclose([json.loads(one) for one in three], [json.loads(three[0])] * 3, atol=3e-5)


def test_an_exported_policy_needs_neither_torch_nor_this_package(run: Path, tmp_path: Path) -> None:
    for name in ("policy.onnx", "policy.npz"):
        export_checkpoint(run, tmp_path / name)
        command = [sys.executable, "-X", "importtime", str(ROOT / "examples" / "deploy_policy.py")]
        done = subprocess.run(
            [*command, str(tmp_path / name)], input="[0.5, 0.0]\n", capture_output=True, text=True, env={}
        )
        assert json.loads(done.stdout) == pytest.approx(load_policy(open_checkpoint(run)).predict([0.5, 0.0]))
        imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
        assert "numpy" in imported
        assert not imported & {"torch", "rl_training", "gymnasium"}


def test_an_exported_policy_that_samples_draws_its_noise(tmp_path: Path) -> None:
    observations = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    for name in ("policy.onnx", "policy.npz"):
        policy = opened(export_checkpoint("gallery/fql", tmp_path / name).path)
        answers = policy.predict(observations)
        assert answers.shape == (8, 1)
        assert not np.array_equal(answers, policy.predict(observations))


def test_a_wrong_observation_is_one_line(run: Path) -> None:
    done = program("deploy_policy.py", str(run), typed="[1.0]\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: obs must have shape [2] or [B, 2], got [1]\n"
    done = program("deploy_policy.py", str(run), typed="1.0,0.0\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: an observation is JSON, such as [1.0, 0.0, 0.0]; got '1.0,0.0'\n"


def test_the_steps_in_the_commands_of_the_examples_are_numbers() -> None:
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").rglob("*.py"))]
    steps = [word for text in texts for word in re.findall(r"--steps (\S+)", text)]
    assert len(steps) >= 2
    assert [word for word in steps if not isinstance(number(word), int)] == []


def test_seeds_of_two_algorithms_are_compared(tmp_path: Path) -> None:
    size = ["--seeds", "3", "--steps", "60", "--learning-starts", "30", "--episodes", "1"]
    done = program("compare_ten_seeds.py", *size, "--output-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    header, *lines = done.stdout.splitlines()
    assert header.split()[:4] == ["seeds", "mean", "std", "IQM"]
    found = runs(tmp_path).runs
    for line, algo in zip(lines, ("sac", "td3")):
        returns = [run.last for run in found if run.algo == algo]
        assert len(returns) == 3
        assert line.split()[:2] == [algo, "3"]
        assert float(line.split()[2]) == pytest.approx(np.mean(returns), abs=0.06)
    assert "a run of sac beats a run of td3 with probability" in lines[2]
    assert lines[3].startswith("difference of the IQMs: ")


def test_a_method_is_called_better_only_if_the_seeds_show_it() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.normal(0.0, 1.0, 10), rng.normal(0.2, 1.0, 10)
    assert verdict({"a": one, "b": other})[1].endswith("these seeds do not show which is better")
    assert verdict({"a": one, "b": other + 9})[1].endswith("b is better here")
    assert verdict({"a": one + 9, "b": other})[0] == "a run of a beats a run of b with probability 1.00"
    assert len(verdict({"a": one[:1], "b": other[:1]})) == 1
    assert table({"a": one[:1]})[1].split() == ["a", "1", f"{one[0]:.1f}", "-", f"{one[0]:.1f}", "-"]


def test_two_algorithms_are_needed(tmp_path: Path) -> None:
    done = program("compare_ten_seeds.py", "--algorithms", "sac", "sac", "--output-dir", str(tmp_path))
    assert done.returncode == 2
    assert "give two different algorithms" in done.stderr
    done = program("compare_ten_seeds.py", "--env", "Pendulum-v99", "--output-dir", str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("error: env_id: ")


def test_a_tuning_continues_where_it_stopped(tmp_path: Path) -> None:
    size = ["--seeds", "1", "--steps", "60", "--episodes", "1", "--output-dir", str(tmp_path)]
    first = program("tuning.py", "--trials", "2", *size)
    assert first.returncode == 0, first.stderr
    base, best, told = first.stdout.splitlines()
    assert base.startswith("base   tuning ")
    assert base.endswith("as it is")
    assert best.startswith("best   tuning ")
    assert told.startswith(f"2 trials in {tmp_path}/pendulum")
    more = program("tuning.py", "--trials", "3", *size)
    assert more.returncode == 0, more.stderr
    assert more.stdout.splitlines()[0] == base
    assert "trial 3/3" in more.stderr
    assert "trial 2/3" not in more.stderr
