"""The agent of FlashSAC (github.com/Holiday-Robot/FlashSAC) and its `update()`; run by `benchmarks.peers.loops`.

    {"checkout", "settings", "data", "batch", "device", "threads", "tf32"}

The agent has the settings of the checkout's `configs/agent/flashSAC.yaml`, replaced by those of the order, and its
own buffer on the device. Hydra and JAX, which an update does not need, are not imported.
"""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks.peers.protocol import Order, Orders
from benchmarks.speed.timing import wait
from rl_training.experiment.strict_yaml import parse_yaml

CONFIG = Path("configs") / "agent" / "flashSAC.yaml"
# What the file computes from the settings of a run: of a million steps with an update each, as its scripts have it.
_OF_THE_RUN = {
    "seed": 0, "learning_rate_warmup_step": 1, "learning_rate_decay_step": 1_000_000, "critic_min_v": -5.0,
    "critic_max_v": 5.0, "gamma": 0.99, "n_step": 1, "normalized_G_max": 5.0,
}  # fmt: skip


def load_agent(checkout: Path) -> Any:
    """The module of the agent, with stand-ins for what it imports and does not use."""
    arrays = SimpleNamespace(ndarray=np.ndarray)
    unused: dict[str, Any] = {"omegaconf": SimpleNamespace(OmegaConf=None), "jax.numpy": arrays}
    unused["jax"] = SimpleNamespace(numpy=arrays)
    sys.path.insert(0, str(checkout))
    sys.modules.update(unused)
    try:
        return importlib.import_module("flash_rl.agents.flashSAC.agent")
    finally:
        for name in unused:
            del sys.modules[name]


def filled_agent(order: Order) -> Any:
    checkout, device = Path(order["checkout"]), order["device"]
    module = load_agent(checkout)
    settings = parse_yaml((checkout / CONFIG).read_text(encoding="utf-8"), str(CONFIG)).value
    with np.load(order["data"]) as data:
        rows = {name: torch.from_numpy(data[name]) for name in data.files}
    settings = {name: value for name, value in settings.items() if name != "agent_type"} | _OF_THE_RUN
    settings |= {"device_type": device, "buffer_device_type": device, "sample_batch_size": order["batch"]}
    settings |= {"buffer_max_length": len(rows["rewards"]), **order["settings"]}
    spaces = [gym.spaces.Box(-1.0, 1.0, (1, rows[name].shape[1])) for name in ("observations", "actions")]
    agent = module.FlashSACAgent(*spaces, {}, module.FlashSACConfig(**settings))
    fill(agent._replay_buffer, rows)
    return agent


def fill(buffer: Any, rows: dict[str, torch.Tensor]) -> None:
    for name in ("observations", "actions", "rewards", "next_observations"):
        getattr(buffer, f"_{name}").copy_(rows[name])
    buffer._terminateds.copy_(rows["terminals"])
    buffer._truncateds.zero_()
    buffer._num_in_buffer = len(rows["rewards"])


def main() -> None:
    orders = Orders()
    order = orders.order
    torch.set_num_threads(order["threads"])
    torch.set_float32_matmul_precision("high" if order["tf32"] else "highest")
    agent = filled_agent(order)

    def run(count: int) -> None:
        for _ in range(count):
            agent.update()
        wait()

    period = agent.cfg.actor_update_period
    run(2 * period)  # compiles
    orders.answer({"versions": {"torch": torch.__version__}, "period": period})
    orders.serve(run)


if __name__ == "__main__":
    main()
