"""d3rlpy's FQE with its defaults on given policies and rows, in a Python of its own; run by `benchmarks.ope`.

    python benchmarks/d3rlpy_fqe.py ORDER

ORDER is a JSON file: {"data": npz, "policies": [npz of weights, …], "updates": n, "gamma": g, "seed": s,
"threads": t}. Prints, as JSON, the mean value of first states for each policy, its version, and the seconds.
Imports nothing of this package. Actions in the data are already in [-1, 1]; a policy is the
tanh of a ReLU network.
"""

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import torch


class UserEnvironments(torch.nn.Module):
    """A policy by its weights `w0 b0 w1 b1 …`, `[in, out]` each."""

    def __init__(self, path: str) -> None:
        super().__init__()
        with np.load(path) as arrays:
            names = sorted((name for name in arrays if name[0] == "w"), key=lambda name: int(name[1:]))
            self.layers = [(torch.tensor(arrays[name]), torch.tensor(arrays[f"b{name[1:]}"])) for name in names]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight, bias in self.layers[:-1]:
            x = torch.relu(x @ weight + bias)
        weight, bias = self.layers[-1]
        return torch.tanh(x @ weight + bias)


def value(policy: UserEnvironments, dataset: Any, first: Any, order: dict[str, Any]) -> float:
    """The mean of Q over first states after so many updates."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(order["seed"])
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


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # what the library prints must not be taken for an answer
    order = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(order["threads"])
    with np.load(order["data"]) as data:
        columns = {name: data[name] for name in data.files}
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    dataset = d3rlpy.dataset.MDPDataset(
        *(columns[name] for name in names), action_space=d3rlpy.ActionSpace.CONTINUOUS
    )
    first = np.stack([episode.observations[0] for episode in dataset.episodes])
    started = time.perf_counter()
    values = [value(UserEnvironments(path), dataset, first, order) for path in order["policies"]]
    answer = {"values": values, "seconds": time.perf_counter() - started, "version": d3rlpy.__version__}
    print(json.dumps(answer), file=answers)


main()
