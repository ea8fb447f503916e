"""d3rlpy as a peer, in a Python of its own: reads one JSON command per line, answers with one JSON line.

    {"make": {"algo", "data", "hidden", "batch", "device", "seed", "normalize", "settings", "threads", "discrete"}}
    {"update": n, "fresh": bool}    n updates; fresh: each on newly drawn rows, else on rows drawn beforehand
    {"predict": [[…], …]}           the policy's actions

Run by `benchmarks.peers`; imports nothing of this package. Actions in the data are already in [-1, 1], or numbers
from 0 if they are discrete.
"""

import json
import random
import sys
import time
from typing import Any

import d3rlpy
import numpy as np
import torch

_DRAWN_BEFOREHAND = 32


class Peer:
    """One d3rlpy algorithm with its data."""

    def __init__(self, order: dict[str, Any]) -> None:
        torch.set_num_threads(order["threads"])
        for seed in (random.seed, np.random.seed, torch.manual_seed):  # d3rlpy draws from the global generators
            seed(order["seed"])
        kind = getattr(d3rlpy.algos, f"{order['algo']}Config")
        encoder = d3rlpy.models.VectorEncoderFactory(hidden_units=list(order["hidden"]))
        settings = {"batch_size": order["batch"], **order["settings"]}
        for name in kind.__dataclass_fields__:
            if name.endswith("encoder_factory"):
                settings[name] = encoder
        self.discrete = bool(order["discrete"])
        spaces = d3rlpy.ActionSpace
        with np.load(order["data"]) as data:
            observations = data["observations"]
            self.dataset = d3rlpy.dataset.MDPDataset(
                observations,
                *(data[name] for name in ("actions", "rewards", "terminals", "timeouts")),
                action_space=spaces.DISCRETE if self.discrete else spaces.CONTINUOUS,
                action_size=order["discrete"] or None,
            )
        if order["normalize"]:
            settings["observation_scaler"] = d3rlpy.preprocessing.StandardObservationScaler(
                mean=observations.mean(0), std=observations.std(0)
            )
        self.batch_size = order["batch"]
        self.algo = kind(**settings).create(device=order["device"] if order["device"] != "cpu" else False)
        self.algo.build_with_dataset(self.dataset)
        self.device = order["device"]
        self.drawn = [self._draw() for _ in range(_DRAWN_BEFOREHAND)]

    def _draw(self) -> Any:
        return self.dataset.sample_transition_batch(self.batch_size)

    def update(self, count: int, fresh: bool) -> float:
        """Seconds that `count` updates take."""
        self._wait()
        started = time.perf_counter()
        for i in range(count):
            self.algo.update(self._draw() if fresh else self.drawn[i % len(self.drawn)])
        self._wait()
        return time.perf_counter() - started

    def predict(self, observations: list[list[float]]) -> list[Any]:
        actions = self.algo.predict(np.asarray(observations, dtype=np.float32))
        clipped: list[Any] = (actions if self.discrete else np.clip(actions, -1.0, 1.0)).tolist()
        return clipped

    def _wait(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # what the library prints must not be taken for an answer
    peer: Any = None
    for line in sys.stdin:
        order = json.loads(line)
        if "make" in order:
            peer = Peer(order["make"])
            answer: Any = {"version": d3rlpy.__version__, "torch": torch.__version__}
        elif "update" in order:
            answer = peer.update(order["update"], order["fresh"])
        else:
            answer = peer.predict(order["predict"])
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
