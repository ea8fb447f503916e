"""LeanRL's TD3 (github.com/meta-pytorch/LeanRL): its script from a checkout, with the settings of a configuration.

    {"checkout", "arguments", "threads"}

The script runs as it stands; `arguments` replace those of its command line. The answer has the last speed that it
logged, the seconds it took without its imports, and versions. Its Python needs tensordict and torchrl; tyro and
wandb are replaced.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import runpy
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

from benchmarks.peers.protocol import Order, Orders, Process

if TYPE_CHECKING:  # the script's Python need not have this package
    from rl_training.experiment.config import TrainConfig

SCRIPT = Path("leanrl") / "td3_continuous_action_torchcompile.py"
# Printed under the table.
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
    """Arguments of its command line for a configuration; what it has no argument for must equal its own."""
    from rl_training.experiment.registry import resolve
    from rl_training.runs.building import choose_device

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


def run(checkout: Path, given: dict[str, Any], python: str | None = None) -> Order:
    """One run: its speed, the seconds it took, versions."""
    if not (checkout / SCRIPT).is_file():
        raise SystemExit(f"no {checkout / SCRIPT}: is {checkout} a checkout of LeanRL?")
    order = {"checkout": str(checkout.resolve()), "arguments": given, "threads": torch.get_num_threads()}
    with Process(python or sys.executable, "benchmarks.peers.leanrl") as process:
        answer: Order = process.ask(order)
    return answer


# The process of the library.


def main() -> None:
    orders = Orders()
    order = orders.order
    for name in ("tensordict.nn", "torchrl.data"):  # not part of the script's time
        importlib.import_module(name)
    torch.set_num_threads(order["threads"])
    logged: list[dict[str, Any]] = []
    stand_ins = {
        "tyro": SimpleNamespace(cli=lambda kind: kind(**order["arguments"])),
        "wandb": SimpleNamespace(init=lambda **_: None, log=lambda values, step: logged.append(values)),
    }
    started = time.perf_counter()
    with patch.dict(sys.modules, stand_ins):
        runpy.run_path(str(Path(order["checkout"]) / SCRIPT), run_name="__main__")
    seconds = time.perf_counter() - started
    if not logged:
        raise SystemExit("too few steps: no speed was logged")
    names = ("torch", "tensordict", "torchrl", "gymnasium")
    versions = {name: importlib.metadata.version(name) for name in names}
    orders.answer({"speed": logged[-1]["speed"], "seconds": seconds, "versions": versions})


if __name__ == "__main__":
    main()
