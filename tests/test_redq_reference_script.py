"""examples/redq_pendulum_reference.py: its own loop around the package's REDQ."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from examples.redq_pendulum_reference import UPDATES_PER_STEP, evaluate, make_learner, train
from rl_training.spaces import SpaceSpec

pytestmark = pytest.mark.pages

SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "redq_pendulum_reference.py"
PENDULUM = SpaceSpec(3, (-2.0,), (2.0,))


def silent(_: str) -> None:
    pass


def test_it_learns_after_its_random_steps_and_counts_episodes() -> None:
    learner, returns = train(210, seed=3, report=silent, learning_starts=200)
    assert learner.updates == 11 * UPDATES_PER_STEP  # steps 200 to 210
    assert len(returns) == 1  # Pendulum's time limit is 200
    fresh = dict(make_learner(PENDULUM, seed=3).model.named_parameters())
    moved = {name for name, p in learner.model.named_parameters() if not torch.equal(p, fresh[name])}
    assert moved == fresh.keys()


def test_the_same_seed_is_the_same_run() -> None:
    (one, _), (two, _), (other, _) = (train(40, seed, silent, learning_starts=30) for seed in (1, 1, 2))
    weights = [learner.model.critics.net.state_dict() for learner in (one, two, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])


def test_it_runs_as_a_program() -> None:
    command = [sys.executable, str(SCRIPT), "--steps", "200", "--eval-episodes", "1"]
    source = str(SCRIPT.parent.parent / "src")
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    )
    assert "step    200  episode   1  return" in done.stdout
    assert "mean return over 1 evaluation episodes: -" in done.stdout


@pytest.mark.slow
def test_it_swings_up() -> None:
    """A policy that does not swing up stays below -1000."""
    learner, _ = train(5_000, seed=0, report=silent)
    assert evaluate(learner, episodes=10) > -300
