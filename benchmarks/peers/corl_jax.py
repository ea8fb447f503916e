"""CORL's ReBRAC, written in JAX, in its own training loop.

Run by `benchmarks.peers.loops` in a Python with jax, flax, optax and chex.

    {"checkout", "file", "settings", "data", "batch", "device", "threads"}

`main(config)` of the file runs unchanged on the rows of the order, which include next actions, instead of D4RL's.
It is paused after each epoch of updates, where it would evaluate.
"""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import corl
from benchmarks.peers.checkouts import load_corl
from benchmarks.peers.protocol import Ended, Rows, Turns
from benchmarks.peers.unifloral import prepare, versions, wait


class Player(corl.Player):
    """The actor after the last epoch."""

    def __init__(self, module: Any, turns: Turns, epoch: int) -> None:
        super().__init__(module, "rebrac")
        self.turns, self.epoch = turns, epoch
        self.params: Any = None
        self.action_fn: Any = None
        module.evaluate = self._pause

    def _pause(self, env: Any, params: Any, action_fn: Any, *_: Any, **__: Any) -> Any:
        """Replaces the evaluation of the file; returns an empty list of returns."""
        self.params, self.action_fn = params, action_fn
        self.turns.made(self.epoch)
        return np.zeros(1)

    def act(self, observations: Rows) -> Rows:
        actions: Rows = np.asarray(self.action_fn(self.params, self.normalised(observations))).tolist()
        return actions


def main() -> None:
    turns = Turns()
    order = turns.order
    prepare(order)
    import jax

    if not hasattr(jax, "tree_map"):  # JAX has removed the name that the file uses
        jax.tree_map = jax.tree_util.tree_map
    rows = corl.read_rows(order)
    stand_ins = corl.stand_ins(rows)
    stand_ins["wandb"].mark_preempting = corl.nothing
    stand_ins["gym"].make("").get_normalized_score = lambda returns: returns
    module: Any = load_corl(Path(order["checkout"]), order["file"], stand_ins)
    module.qlearning_dataset = lambda _: rows
    config = corl.configuration(module, order, len(rows["rewards"]))
    player = Player(module, turns, config.num_updates_on_epoch)
    reply = {"versions": versions("jax", "flax", "optax", "chex"), "period": config.num_updates_on_epoch}
    turns.begin(reply, wait, before=0, act=player.act)
    try:
        turns.made(0)
        module.main(config)
    except Ended:
        return


if __name__ == "__main__":
    main()
