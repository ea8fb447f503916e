"""d3rlpy: `update()` on its own data set, its policies, and its FQE, in its own Python environment.

    {"algo", "data", "hidden", "batch", "device", "seed", "normalize", "settings", "threads", "discrete", "fresh"}
    {"policies", "data", "updates", "gamma", "seed", "threads"}      FQE with its defaults; answers with the values

Actions in the data are already in [-1, 1], or integers if they are discrete. With `fresh`, each update samples its
rows; otherwise rows are sampled beforehand, because sampling would take much of the time. A policy for FQE is a
file of weights `w0 b0 w1 b1 …` of a ReLU network with a final tanh.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.protocol import Evaluated, Order, Orders, Process, Rows

_DRAWN_BEFOREHAND = 32
COLUMNS = ("observations", "actions", "rewards", "terminals", "timeouts")


class D3rlpyLearner(Evaluated, Process):
    """One algorithm on the rows of a file; also a policy for this package's evaluator.

    `discrete` is the number of discrete actions, or 0 for continuous actions.
    """

    def __init__(
        self,
        python: str,
        algo: str,
        data: Path,
        *,
        hidden: Sequence[int],
        batch: int = 256,
        device: str = "cpu",
        seed: int = 0,
        normalize: bool = False,
        settings: dict[str, Any] | None = None,
        discrete: int = 0,
        fresh: bool = True,
    ) -> None:
        super().__init__(python, "benchmarks.peers.d3rlpy")
        order = {"algo": algo, "data": str(data), "hidden": list(hidden), "batch": batch, "device": device,
                 "seed": seed, "normalize": normalize, "settings": settings or {}, "discrete": discrete,
                 "threads": torch.get_num_threads(), "fresh": fresh}  # fmt: skip
        self.versions: dict[str, str] = self.ask(order)

    def mode(self, obs: Tensor) -> Tensor:
        return torch.tensor(self.act(obs.tolist()), dtype=torch.float32)


def write_rows(path: Path, columns: Any, timeouts: Any) -> Path:
    """Write the columns of a batch to a file; `timeouts` are truncated episode ends."""
    np.savez(
        path,
        observations=columns.obs.numpy(),
        actions=columns.actions.numpy(),
        rewards=columns.rewards.numpy(),
        terminals=columns.dones.numpy(),
        timeouts=np.asarray(timeouts, dtype=np.float32),
    )
    return path


def estimate(python: str, order: Order) -> Order:
    """FQE's answer to an order: values, seconds, version."""
    with Process(python, "benchmarks.peers.d3rlpy") as process:
        answer: Order = process.ask(order | {"threads": torch.get_num_threads()})
    return answer


# The process of the library.


def seed_all(seed: int) -> None:
    """Seed the global generators, which d3rlpy samples from."""
    for function in (random.seed, np.random.seed, torch.manual_seed):
        function(seed)


def read_dataset(path: str, choices: int = 0) -> Any:
    import d3rlpy

    spaces = d3rlpy.ActionSpace
    with np.load(path) as data:
        return d3rlpy.dataset.MDPDataset(
            *(data[name] for name in COLUMNS),
            action_space=spaces.DISCRETE if choices else spaces.CONTINUOUS,
            action_size=choices or None,
        )


class Learner:
    """One algorithm with its data."""

    def __init__(self, order: Order) -> None:
        import d3rlpy

        seed_all(order["seed"])
        kind = getattr(d3rlpy.algos, f"{order['algo']}Config")
        encoder = d3rlpy.models.VectorEncoderFactory(hidden_units=list(order["hidden"]))
        settings = {"batch_size": order["batch"], **order["settings"]}
        settings |= {name: encoder for name in kind.__dataclass_fields__ if name.endswith("encoder_factory")}
        if order["normalize"]:
            with np.load(order["data"]) as data:
                observations = data["observations"]
            settings["observation_scaler"] = d3rlpy.preprocessing.StandardObservationScaler(
                mean=observations.mean(0), std=observations.std(0)
            )
        self.order, self.discrete, self.device = order, bool(order["discrete"]), order["device"]
        self.dataset = read_dataset(order["data"], order["discrete"])
        self.algo = kind(**settings).create(device=self.device if self.device != "cpu" else False)
        self.algo.build_with_dataset(self.dataset)
        self.drawn = [self._draw() for _ in range(_DRAWN_BEFOREHAND)]

    def _draw(self) -> Any:
        return self.dataset.sample_transition_batch(self.order["batch"])

    def run(self, count: int) -> None:
        for i in range(count):
            self.algo.update(self._draw() if self.order["fresh"] else self.drawn[i % len(self.drawn)])
        if self.device != "cpu":
            torch.cuda.synchronize()

    def act(self, observations: Rows) -> Rows:
        actions = self.algo.predict(np.asarray(observations, dtype=np.float32))
        clipped: Rows = (actions if self.discrete else np.clip(actions, -1.0, 1.0)).tolist()
        return clipped


class Weights(torch.nn.Module):
    """A policy given by its weights, `[in, out]` each."""

    def __init__(self, path: str) -> None:
        super().__init__()
        with np.load(path) as arrays:
            names = sorted((name for name in arrays if name[0] == "w"), key=lambda name: int(name[1:]))
            self.layers = [(torch.tensor(arrays[name]), torch.tensor(arrays[f"b{name[1:]}"])) for name in names]

    def forward(self, x: Tensor) -> Tensor:
        for weight, bias in self.layers[:-1]:
            x = torch.relu(x @ weight + bias)
        weight, bias = self.layers[-1]
        return torch.tanh(x @ weight + bias)


def value_of(policy: Weights, dataset: Any, first: Any, order: Order) -> float:
    """Mean Q over initial states."""
    import d3rlpy

    seed_all(order["seed"])
    algo = d3rlpy.algos.TD3Config().create()
    algo.build_with_dataset(dataset)
    algo.impl.predict_best_action = lambda x: policy(x).detach()
    fqe = d3rlpy.ope.FQE(algo=algo, config=d3rlpy.ope.FQEConfig(gamma=order["gamma"]))
    fqe.build_with_dataset(dataset)
    for _ in range(order["updates"]):
        fqe.update(dataset.sample_transition_batch(fqe.config.batch_size))
    with torch.no_grad():
        actions = policy(torch.tensor(first)).numpy()
    return float(fqe.predict_value(first, actions).mean())


def values(order: Order) -> Order:
    import d3rlpy

    dataset = read_dataset(order["data"])
    first = np.stack([episode.observations[0] for episode in dataset.episodes])
    started = time.perf_counter()
    found = [value_of(Weights(path), dataset, first, order) for path in order["policies"]]
    return {"values": found, "seconds": time.perf_counter() - started, "version": d3rlpy.__version__}


def main() -> None:
    orders = Orders()
    order = orders.order
    torch.set_num_threads(order["threads"])
    if "policies" in order:
        orders.answer(values(order))
        return
    import d3rlpy

    learner = Learner(order)
    orders.answer({"version": d3rlpy.__version__, "torch": torch.__version__})
    orders.serve(learner.run, learner.act)


if __name__ == "__main__":
    main()
