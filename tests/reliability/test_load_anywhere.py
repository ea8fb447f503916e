"""Promise 19: a checkpoint folder is sufficient to predict, in any process and location."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rl_training.runtime.workflows import predict_checkpoint
from tests.reliability.selection import REGIMES
from tests.runs import ALL, tiny, train

PROGRAM = """
import json, sys
from pathlib import Path
import gymnasium

def refuse(*_, **__):
    raise RuntimeError("an environment was made")

gymnasium.make = gymnasium.make_vec = refuse
from rl_training.runtime.workflows import predict_checkpoint
import rl_training.api as api

folder = Path(sys.argv[1])
observations = json.loads((folder / "obs.json").read_text())
answers = {}
for path in sorted(folder.glob("*/checkpoint")):
    algo = path.parent.name
    kind = next(c for c in (getattr(api, name) for name in api.__all__) if getattr(c, "algo", None) == algo)
    obs = observations[algo]
    same = {"deterministic": True}  # FQL's policy samples otherwise
    answers[algo] = [predict_checkpoint(path, obs, **same).tolist(), kind.load(path).predict(obs, **same).tolist()]
print(json.dumps(answers))
"""


@pytest.mark.parametrize(
    "algos", [pytest.param(["dqn", *REGIMES], id="some"), pytest.param(ALL, marks=pytest.mark.slow, id="all")]
)
def test_a_moved_folder_predicts_the_same_in_a_fresh_process(algos: list[str], tmp_path: Path) -> None:
    """The run folders and their data sets are deleted."""
    home, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    observations, expected = {}, {}
    for algo in algos:
        result = train(tiny(algo, home, total_timesteps=25, eval_episodes=0))
        obs = np.random.default_rng(1).standard_normal((5, 4 if algo == "dqn" else 3)).round(3)
        observations[algo] = obs.tolist()
        expected[algo] = predict_checkpoint(result.checkpoint_path, obs, deterministic=True).tolist()
        (elsewhere / algo).mkdir(parents=True)
        shutil.move(result.checkpoint_path, elsewhere / algo / "checkpoint")
    shutil.rmtree(home)
    (elsewhere / "obs.json").write_text(json.dumps(observations))
    source = Path(__file__).parents[2] / "src"
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(elsewhere)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {algo: [actions, actions] for algo, actions in expected.items()}
