"""The examples beside REDQ's reference: data of one's own, and a policy in use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from examples.deploy_policy import actions
from examples.offline_own_arrays import logged_data
from rl_training import TransitionDataset
from rl_training.runtime.workflows import load_policy, open_checkpoint

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def program(name: str, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    return subprocess.run(command, input=typed, capture_output=True, text=True, env=ENVIRONMENT, check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy trained by the example on its own arrays."""
    place = tmp_path_factory.mktemp("runs")
    done = program("offline_own_arrays.py", "--updates", "300", "--output-dir", str(place))
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


def test_a_wrong_observation_is_one_line(run: Path) -> None:
    done = program("deploy_policy.py", str(run), typed="[1.0]\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: obs must have shape [2] or [B, 2], got [1]\n"
