"""CORL's offline algorithms, timed inside their own loops; run by `benchmarks.loops`, speaks as `benchmarks.held`
says.

    {"checkout", "file", "settings", "data", "batch", "device", "threads"}

`train(config)` of the file runs as it stands on CORL's own replay buffer: sampling, the update, and the call that
would log it. It is never let come to its evaluation.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.checkouts import load_corl
from benchmarks.held import Ended, Order, Turns, environment

_NEVER = 10**9
# How each file names what keeps it from evaluating.
_WITHOUT_EVALUATION = {"eval_freq": _NEVER, "eval_frequency": _NEVER, "num_updates_on_epoch": _NEVER}


def nothing(*_: Any, **__: Any) -> None:
    pass


def stand_ins(rows: dict[str, Any]) -> dict[str, Any]:
    """For what the files import and an update does not need; none costs time in the loop."""
    env = environment(rows["observations"].shape[1], rows["actions"].shape[1], seed=nothing)
    return {
        "gym": SimpleNamespace(make=lambda _: env, Env=object),
        "d4rl": SimpleNamespace(qlearning_dataset=lambda _: rows),
        "pyrallis": SimpleNamespace(wrap=lambda: lambda function: function),
        "tqdm": SimpleNamespace(trange=lambda count, **_: range(count)),
        "wandb": SimpleNamespace(init=nothing, log=nothing, run=SimpleNamespace(save=nothing)),
    }


def configuration(module: Any, order: Order, rows: int) -> Any:
    """The file's own, with the device, the number of rows and what the case sets."""
    wanted = {
        "device": order["device"],
        "batch_size": order["batch"],
        "buffer_size": rows,
        **_WITHOUT_EVALUATION,
        **order["settings"],
    }
    known = module.TrainConfig.__dataclass_fields__
    unknown = set(order["settings"]) - set(known)
    if unknown:
        raise SystemExit(f"{order['file']} of that checkout has no setting {', '.join(sorted(unknown))}")
    return module.TrainConfig(**{name: value for name, value in wanted.items() if name in known})


def hold(module: Any, turns: Turns) -> None:
    """Every batch asked for is an update made."""

    class Held(module.ReplayBuffer):  # type: ignore[misc]
        def sample(self, batch_size: int) -> Any:
            turns.made(1)
            return super().sample(batch_size)

    module.ReplayBuffer = Held
    module.wrap_env = lambda env, **_: env


def main() -> None:
    turns = Turns()
    order = turns.order
    torch.set_num_threads(order["threads"])
    with np.load(order["data"]) as data:
        rows = {name: data[name] for name in data.files}
    module = load_corl(Path(order["checkout"]), order["file"], stand_ins(rows))
    hold(module, turns)
    wait = nothing if order["device"] == "cpu" else torch.cuda.synchronize
    # Its first batch is asked for before there is an update.
    turns.begin({"versions": {"torch": torch.__version__}, "period": None}, wait, before=1)
    try:
        module.train(configuration(module, order, len(rows["rewards"])))
    except Ended:
        return


if __name__ == "__main__":
    main()
