"""LeanRL's TD3 and SAC (github.com/meta-pytorch/LeanRL): scripts of a checkout, run with the settings of a
configuration.

    {"checkout", "script", "arguments", "threads"}

The script runs unchanged; `arguments` are those of its command line. The answer contains the last speed it logged,
its seconds without imports, and versions. Its Python needs tensordict and torchrl; tyro and wandb are replaced. The
scripts were written for an earlier Gymnasium, which had another key for final observations, and an earlier
tensordict, which ignored outputs without a key. Both behaviours are restored.
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

if TYPE_CHECKING:  # the script's Python may not have this package
    from rl_training.experiment.config import TrainConfig

SCRIPTS = {name: Path("leanrl") / f"{name}_continuous_action_torchcompile.py" for name in ("td3", "sac")}
_FIXED_SETTINGS: dict[str, Any] = {
    "hidden_sizes": [256, 256],
    "critic_hidden_sizes": None,
    "layer_norm": False,
    "train_frequency": 1,
    "gradient_updates_per_step": 1,
    "normalize_observations": False,
}
_FIXED_OF_SAC = {"alpha": "auto", "target_entropy": None}


def how(algo: str) -> str:
    """Text printed under the table."""
    return (
        f"its script `{SCRIPTS[algo].name}` as it stands, with CUDA graphs on a GPU, without logging, with what "
        "earlier versions of Gymnasium and tensordict returned; its steps/s are those that it reports, counted "
        "from as many steps after the first update as ours"
    )


def arguments(config: TrainConfig, *, settle: int, compile: bool = False) -> dict[str, Any]:
    """Command-line arguments for a configuration; settings without an argument must equal those of the script."""
    from rl_training.experiment.registry import resolve
    from rl_training.runs.building import choose_device

    settings = resolve(config).to_dict()
    fixed = _FIXED_SETTINGS | (_FIXED_OF_SAC if config.algo == "sac" else {})
    differing = ["num_envs"] * (config.num_envs > 1) + [name for name in fixed if settings[name] != fixed[name]]
    if differing:
        raise SystemExit(f"LeanRL's {config.algo} is fixed in {', '.join(differing)}: {fixed | {'num_envs': 1}}")
    on_gpu = choose_device(config.device).type == "cuda"
    return {
        "env_id": config.env_id,
        "seed": config.seed,
        "total_timesteps": config.total_timesteps,
        "buffer_size": settings["buffer_capacity"],
        "gamma": settings["gamma"],
        "tau": settings["tau"],
        "batch_size": settings["batch_size"],
        "learning_starts": settings["learning_starts"],
        "measure_burnin": settle,
        "cuda": on_gpu,
        "cudagraphs": on_gpu,
        "compile": compile,
    } | (_of_sac(settings) if config.algo == "sac" else _of_td3(settings))


def _of_td3(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "learning_rate": settings["learning_rate"],
        "policy_noise": settings["target_policy_noise"],
        "exploration_noise": settings["exploration_noise"],
        "policy_frequency": settings["policy_delay"],
        "noise_clip": settings["target_noise_clip"],
    }


def _of_sac(settings: dict[str, Any]) -> dict[str, Any]:
    return {"policy_lr": settings["learning_rate"], "q_lr": settings["learning_rate"], "policy_frequency": 1}


def run(checkout: Path, algo: str, given: dict[str, Any], python: str | None = None) -> Order:
    """Run once; return speed, seconds and versions."""
    if not (checkout / SCRIPTS[algo]).is_file():
        raise SystemExit(f"no {checkout / SCRIPTS[algo]}: is {checkout} a checkout of LeanRL?")
    script, threads = str(SCRIPTS[algo]), torch.get_num_threads()
    order = {"checkout": str(checkout.resolve()), "script": script, "arguments": given, "threads": threads}
    with Process(python or sys.executable, "benchmarks.peers.leanrl") as process:
        answer: Order = process.ask(order)
    return answer


# The process of the library.


def with_final_observations(kind: Any) -> Any:
    """A class of vector environments whose `infos` have `final_observation` when an episode was truncated."""

    class WithFinalObservations(kind):  # type: ignore[misc]
        def step(self, actions: Any) -> Any:
            obs, rewards, terminated, truncated, infos = super().step(actions)
            if truncated.any():  # the environment resets in the next step, so this is still the final observation
                infos["final_observation"] = obs
            return obs, rewards, terminated, truncated, infos

    return WithFinalObservations


def without_other_outputs(kind: Any) -> Any:
    """`TensorDictModule` for a function that may return more values than there are `out_keys`."""

    def make(function: Any, in_keys: list[str], out_keys: list[str]) -> Any:
        def named(*inputs: Any) -> Any:
            outputs = function(*inputs)
            return outputs[: len(out_keys)] if isinstance(outputs, tuple) else outputs

        return kind(named, in_keys=in_keys, out_keys=out_keys)

    return make


def main() -> None:
    import gymnasium as gym

    orders = Orders()
    order = orders.order
    modules, _ = (importlib.import_module(name) for name in ("tensordict.nn", "torchrl.data"))  # before the clock
    torch.set_num_threads(order["threads"])
    logged: list[dict[str, Any]] = []
    stand_ins = {
        "tyro": SimpleNamespace(cli=lambda kind: kind(**order["arguments"])),
        "wandb": SimpleNamespace(init=lambda **_: None, log=lambda values, step: logged.append(values)),
    }
    started = time.perf_counter()
    with (
        patch.dict(sys.modules, stand_ins),
        patch.object(gym.vector, "SyncVectorEnv", with_final_observations(gym.vector.SyncVectorEnv)),
        patch.object(modules, "TensorDictModule", without_other_outputs(modules.TensorDictModule)),
    ):
        runpy.run_path(str(Path(order["checkout"]) / order["script"]), run_name="__main__")
    seconds = time.perf_counter() - started
    if not logged:
        raise SystemExit("too few steps: no speed was logged")
    names = ("torch", "tensordict", "torchrl", "gymnasium")
    versions = {name: importlib.metadata.version(name) for name in names}
    orders.answer({"speed": logged[-1]["speed"], "seconds": seconds, "versions": versions})


if __name__ == "__main__":
    main()
