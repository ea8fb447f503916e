"""Write golden checkpoints next to this file: `python -m tests.reliability.golden.make sac rebrac`.

They are committed with each release and never rewritten. Later versions must load them and predict the stored
actions. Those without a version in their name are from 0.1, whose records have no schema number.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np

import rl_training
from rl_training.experiment.checkpointing import FORMAT
from rl_training.runtime.workflows import predict_checkpoint
from tests.runs import tiny, train

HERE = Path(__file__).parent


def make(algo: str, folder: Path) -> None:
    """Write a checkpoint of a short run, observations, and the actions that it predicts for them."""
    kwargs = {"hidden_sizes": [8, 8]} | ({"normalize_observations": True} if algo == "iql" else {})
    result = train(
        tiny(algo, Path("runs"), kwargs=kwargs, total_timesteps=30, checkpoint_interval=25, eval_episodes=0)
    )
    shutil.copytree(result.checkpoint_path, folder / "checkpoint")
    obs = np.random.default_rng(0).standard_normal((8, 4 if algo == "dqn" else 3)).round(3)
    actions = predict_checkpoint(folder / "checkpoint", obs)
    (folder / "actions.json").write_text(
        json.dumps({"obs": obs.tolist(), "actions": actions.tolist()}, indent=1) + "\n"
    )
    shutil.rmtree(result.run_dir)


if __name__ == "__main__":
    for algo in sys.argv[1:]:
        make(algo, HERE / f"format_{FORMAT}" / f"{algo}-{rl_training.__version__}")
