"""The agent of FlashSAC (github.com/Holiday-Robot/FlashSAC): its `update()` alone, and whole runs.

    {"checkout", "settings", "data", "batch", "device", "threads", "tf32"}

This is the order of `benchmarks.peers.loops` for updates. The agent has the settings of the checkout's
`configs/agent/flashSAC.yaml`, overridden by those of the order, and its own buffer on the device. Hydra and JAX,
which the agent does not need, are not imported. Whole runs (`benchmarks.peers.learn`) call the agent as the
authors' `train.py` does, with one environment.
"""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.protocol import Evaluated, Order, Orders
from benchmarks.speed.timing import wait
from rl_training.experiment.strict_yaml import parse_yaml

CONFIG = Path("configs") / "agent" / "flashSAC.yaml"
# Values that the file computes from the run's settings: one million steps with one update each, as in its scripts.
_OF_THE_RUN = {
    "seed": 0, "learning_rate_warmup_step": 1, "learning_rate_decay_step": 1_000_000, "critic_min_v": -5.0,
    "critic_max_v": 5.0, "gamma": 0.99, "n_step": 1, "normalized_G_max": 5.0,
}  # fmt: skip


def load_agent(checkout: Path) -> Any:
    """Import the module of the agent, with stand-ins for imports it does not use."""
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


def make_agent(checkout: Path, device: str, obs_dim: int, action_dim: int, **changes: Any) -> Any:
    """An agent with the settings of the checkout's file, overridden by `changes`, and its buffer on the device."""
    module = load_agent(checkout)
    settings = parse_yaml((checkout / CONFIG).read_text(encoding="utf-8"), str(CONFIG)).value
    settings = {name: value for name, value in settings.items() if name != "agent_type"} | _OF_THE_RUN
    settings |= {"device_type": device, "buffer_device_type": device, **changes}
    spaces = [gym.spaces.Box(-1.0, 1.0, (1, size), np.float32) for size in (obs_dim, action_dim)]
    return module.FlashSACAgent(*spaces, {}, module.FlashSACConfig(**settings))


def filled_agent(order: Order) -> Any:
    with np.load(order["data"]) as data:
        rows = {name: torch.from_numpy(data[name]) for name in data.files}
    sizes = [rows[name].shape[1] for name in ("observations", "actions")]
    changes = {"sample_batch_size": order["batch"], "buffer_max_length": len(rows["rewards"]), **order["settings"]}
    agent = make_agent(Path(order["checkout"]), order["device"], *sizes, **changes)
    fill(agent._replay_buffer, rows)
    return agent


def fill(buffer: Any, rows: dict[str, torch.Tensor]) -> None:
    for name in ("observations", "actions", "rewards", "next_observations"):
        getattr(buffer, f"_{name}").copy_(rows[name])
    buffer._terminateds.copy_(rows["terminals"])
    buffer._truncateds.zero_()
    buffer._num_in_buffer = len(rows["rewards"])


class FlashSACPolicy(Evaluated):
    """The agent's policy for this package's evaluator."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent

    def mode(self, obs: Tensor) -> Tensor:
        return torch.from_numpy(self.agent.sample_actions(0, {"next_observation": obs}, training=False))


def train_agent(agent: Any, env: Any, seed: int, steps: int) -> Iterator[int]:
    """Train in one environment with actions in [-1, 1]; yields the number of steps after each step."""
    obs, _ = env.reset(seed=seed)
    env.action_space.seed(seed)
    for step in range(1, steps + 1):
        if agent.can_start_training():
            action = agent.sample_actions(step, {"next_observation": obs[None]}, training=True)[0]
        else:
            action = env.action_space.sample()
        next_obs, reward, terminated, truncated, _ = env.step(action)
        one = {"observation": obs, "action": action, "reward": np.float32(reward), "terminated": terminated}
        one |= {"truncated": truncated, "next_observation": next_obs}
        agent.process_transition({name: np.asarray(value)[None] for name, value in one.items()})
        obs = env.reset()[0] if terminated or truncated else next_obs
        if agent.can_start_training():
            agent.update()
        yield step


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
