"""The agent of FQL (github.com/seohongpark/fql), in JAX: its updates on minibatches of its own data set.

Run by `benchmarks.peers.loops` in a Python with jax, flax and optax; `small_distrax` replaces distrax if it is not
installed.

    {"checkout", "settings", "data", "batch", "device", "threads", "tf32"}

The agent has the settings of its file, overridden by those of the order. Minibatches are sampled on the host, as in
the authors' `main.py`.
"""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.peers.protocol import Order, Orders
from benchmarks.peers.unifloral import distrax_or_stand_in, prepare, versions, wait


def load_agent(checkout: Path) -> Any:
    """Import the module of the agent; a dictionary replaces `ml_collections`."""
    path = checkout / "agents" / "fql.py"
    spec = importlib.util.spec_from_file_location("fql_agent", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise SystemExit(f"no {path}: is {checkout} a checkout of FQL?")
    module = importlib.util.module_from_spec(spec)
    settings = SimpleNamespace(ConfigDict=dict, config_dict=SimpleNamespace(placeholder=lambda _: None))
    sys.path.insert(0, str(checkout))
    with patch.dict(sys.modules, {"ml_collections": settings, **distrax_or_stand_in()}):
        spec.loader.exec_module(module)
    return module


def make_agent(order: Order) -> tuple[Any, Any]:
    """The agent and the data set of an order."""
    module = load_agent(Path(order["checkout"]))
    from utils.datasets import Dataset  # of the checkout

    with np.load(order["data"]) as data:
        rows = {name: data[name] for name in data.files}
    config = module.get_config() | {"batch_size": order["batch"], **order["settings"]}
    agent = module.FQLAgent.create(0, rows["observations"][:1], rows["actions"][:1], config)
    return agent, Dataset.create(**rows, masks=1.0 - rows["terminals"])


def main() -> None:
    orders = Orders()
    order = orders.order
    prepare(order)
    import jax

    if not order["tf32"]:
        jax.config.update("jax_default_matmul_precision", "highest")
    agent, data = make_agent(order)

    def run(count: int) -> None:
        nonlocal agent
        for _ in range(count):
            agent, _ = agent.update(data.sample(order["batch"]))
        wait()

    run(2)  # compiles
    orders.answer({"versions": versions("jax", "flax", "optax", "distrax"), "period": 1})
    orders.serve(run)


if __name__ == "__main__":
    main()
