"""LeanRL's TD3 beside ours: the settings of one of our configs, its script in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.leanrl_peer import SCRIPT
from benchmarks.peers import with_paths
from benchmarks.report import ROOT
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import resolve
from rl_training.runs.building import choose_device

# Said under the table.
HOW = (
    "its script `td3_continuous_action_torchcompile.py` as it stands, with CUDA graphs on a GPU, without logging; "
    "its steps/s are those it says of itself, counted from as many steps after the first update as ours"
)
_FIXED = {"algo": "td3", "num_envs": 1}
_FIXED_SETTINGS = {
    "hidden_sizes": [256, 256],
    "critic_hidden_sizes": None,
    "layer_norm": False,
    "train_frequency": 1,
    "gradient_updates_per_step": 1,
    "normalize_observations": False,
}


def arguments(config: TrainConfig, *, settle: int, compile: bool = False) -> dict[str, Any]:
    """Those of its command line, for what `config` says; what it has no argument for must be as it is there."""
    settings = resolve(config).to_dict()
    differing = [name for name, value in _FIXED.items() if getattr(config, name) != value]
    differing += [name for name, value in _FIXED_SETTINGS.items() if settings[name] != value]
    if differing:
        raise SystemExit(f"LeanRL's TD3 is fixed in {', '.join(differing)}: {_FIXED | _FIXED_SETTINGS}")
    on_gpu = choose_device(config.device).type == "cuda"
    return {
        "env_id": config.env_id,
        "seed": config.seed,
        "total_timesteps": config.total_timesteps,
        "learning_rate": settings["learning_rate"],
        "buffer_size": settings["buffer_capacity"],
        "gamma": settings["gamma"],
        "tau": settings["tau"],
        "batch_size": settings["batch_size"],
        "policy_noise": settings["target_policy_noise"],
        "exploration_noise": settings["exploration_noise"],
        "learning_starts": settings["learning_starts"],
        "policy_frequency": settings["policy_delay"],
        "noise_clip": settings["target_noise_clip"],
        "measure_burnin": settle,
        "cuda": on_gpu,
        "cudagraphs": on_gpu,
        "compile": compile,
    }


def run(checkout: Path, given: dict[str, Any], python: str | None = None) -> dict[str, Any]:
    """One run: its speed, the seconds it took, versions."""
    if not (checkout / SCRIPT).is_file():
        raise SystemExit(f"no {checkout / SCRIPT}: is {checkout} a checkout of LeanRL?")
    done = subprocess.run(
        [python or sys.executable, "-m", "benchmarks.leanrl_peer", str(checkout.resolve()), json.dumps(given),
         str(torch.get_num_threads())],
        env=with_paths(ROOT),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"LeanRL's script ended with {done.returncode}:\n{done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
