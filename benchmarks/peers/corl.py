"""CORL's offline algorithms (github.com/tinkoff-ai/CORL) in their own training loops; run by
`benchmarks.peers.loops`.

    {"checkout", "file", "settings", "data", "batch", "device", "threads"}

`train(config)` of the file runs unchanged on CORL's own replay buffer: sampling, the update, and the call that
would log it. Its evaluation is never reached. Instead, the actors of the files in `TRAINERS` act on the
observations of an order, normalised as CORL would normalise them. `corl_jax` runs ReBRAC, which is written in JAX,
and imports this module in a Python without torch.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.peers.checkouts import load_corl
from benchmarks.peers.protocol import Ended, Order, Rows, Turns, environment

_NEVER = 10**9
# Setting of each file that prevents evaluations.
_WITHOUT_EVALUATION = {"eval_freq": _NEVER, "eval_frequency": _NEVER, "num_updates_on_epoch": _NEVER}
# Name of the class with the actor in each file.
TRAINERS = {"td3_bc": "TD3_BC", "iql": "ImplicitQLearning"}


def nothing(*_: Any, **__: Any) -> None:
    pass


def stand_ins(rows: dict[str, Any]) -> dict[str, Any]:
    """Stand-ins for modules that the files import but updates do not need; they cost no time in the loop."""
    env = environment(rows["observations"].shape[1], rows["actions"].shape[1], seed=nothing)
    return {
        "gym": SimpleNamespace(make=lambda _: env, Env=object),
        "d4rl": SimpleNamespace(qlearning_dataset=lambda _: rows),
        "pyrallis": SimpleNamespace(wrap=lambda: lambda function: function),
        **dict.fromkeys(("tqdm", "tqdm.auto"), SimpleNamespace(trange=lambda count, **_: range(count))),
        "wandb": SimpleNamespace(init=nothing, log=nothing, run=SimpleNamespace(save=nothing)),
    }


def configuration(module: Any, order: Order, rows: int) -> Any:
    """Settings of the file, with the device, the number of rows and the settings of the order."""
    wanted = {
        "device": order["device"],
        "batch_size": order["batch"],
        "buffer_size": rows,
        **_WITHOUT_EVALUATION,
        **order["settings"],
    }
    kind = module.Config if order["file"] == "rebrac" else module.TrainConfig
    known = kind.__dataclass_fields__
    unknown = set(order["settings"]) - set(known)
    if unknown:
        raise SystemExit(f"{order['file']} of that checkout has no setting {', '.join(sorted(unknown))}")
    return kind(**{name: value for name, value in wanted.items() if name in known})


def hold(module: Any, turns: Turns) -> None:
    """Count every requested batch as an update."""

    class Held(module.ReplayBuffer):  # type: ignore[misc]
        def sample(self, batch_size: int) -> Any:
            turns.made(1)
            return super().sample(batch_size)

    module.ReplayBuffer = Held


class Player:
    """Actor of the trainer that the file creates, with the mean and scale of its observations."""

    def __init__(self, module: Any, file: str) -> None:
        self.trainer: Any = None
        self.mean: Any = 0.0
        self.std: Any = 1.0
        module.wrap_env = self._keep_moments
        if file in TRAINERS:
            self._keep_trainer(module, TRAINERS[file])

    def _keep_moments(self, env: Any, state_mean: Any = 0.0, state_std: Any = 1.0, **_: Any) -> Any:
        self.mean, self.std = state_mean, state_std
        return env

    def _keep_trainer(self, module: Any, name: str) -> None:
        player = self

        class Kept(getattr(module, name)):  # type: ignore[misc]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                player.trainer = self

        setattr(module, name, Kept)

    def act(self, observations: Rows) -> Rows:
        """Act as in the file's evaluation: one state at a time, with the actor in eval mode."""
        if self.trainer is None:
            raise SystemExit(f"only the actors of {', '.join(TRAINERS)} act here")
        actor, device = self.trainer.actor, self.trainer.device
        actor.eval()
        actions = [actor.act(state, device).tolist() for state in self.normalised(observations)]
        actor.train()
        return actions

    def normalised(self, observations: Rows) -> Any:
        return (np.asarray(observations, dtype=np.float32) - self.mean) / self.std


def read_rows(order: Order) -> dict[str, Any]:
    with np.load(order["data"]) as data:
        return {name: data[name] for name in data.files}


def main() -> None:
    import torch

    turns = Turns()
    order = turns.order
    torch.set_num_threads(order["threads"])
    rows = read_rows(order)
    module = load_corl(Path(order["checkout"]), order["file"], stand_ins(rows))
    hold(module, turns)
    player = Player(module, order["file"])
    wait = nothing if order["device"] == "cpu" else torch.cuda.synchronize
    # The script requests its first batch before its first update.
    turns.begin({"versions": {"torch": torch.__version__}, "period": None}, wait, before=1, act=player.act)
    try:
        module.train(configuration(module, order, len(rows["rewards"])))
        turns.made(1)  # it requests no batch after its last update
    except Ended:
        return


if __name__ == "__main__":
    main()
