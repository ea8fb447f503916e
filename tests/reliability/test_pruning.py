"""Promise 24: pruning keeps `best` and one valid checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_training.experiment.checkpointing import latest_valid, list_checkpoints, prune
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session
from rl_training.runtime.workflows import evaluate_checkpoint
from tests.reliability.selection import REGIMES_IN_ONE
from tests.runs import resume, tiny, train


def corrupt(path: Path) -> None:
    file = path / "networks.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


class CorruptAfter(Callback):
    """Damages every new checkpoint from a tick on."""

    def __init__(self, tick: int) -> None:
        self.tick = tick

    def on_checkpoint(self, session: Session, path: Path) -> None:
        if session.clock.ticks >= self.tick:
            corrupt(path)


@pytest.mark.parametrize("algo", REGIMES_IN_ONE)
def test_pruning_keeps_a_valid_checkpoint_if_the_newest_are_damaged(algo: str, tmp_path: Path) -> None:
    every = {"checkpoint_interval": 10, "keep_checkpoints": 9, "kwargs": {"eval_interval": 20}}
    result = train(tiny(algo, tmp_path, **every), [CorruptAfter(70 if algo == "rlpd" else 40)])
    checkpoints, best = result.run_dir / "checkpoints", result.run_dir / "best"
    valid, warnings = latest_valid(checkpoints)
    assert len(warnings) == 3
    prune(checkpoints, 1)
    assert list_checkpoints(checkpoints) == [valid, result.checkpoint_path]
    assert latest_valid(checkpoints)[0] == valid
    assert len(list_checkpoints(best)) == 1
    assert evaluate_checkpoint(best, 1)["eval_episodes"] == 1
    assert resume(result.run_dir).metrics["global_step"] == 60


def test_a_run_that_keeps_one_checkpoint_always_has_one(tmp_path: Path) -> None:
    """After the first checkpoint there is always a valid one, and the best policy is never pruned."""
    seen = []

    class Look(Callback):
        def on_checkpoint(self, session: Session, path: Path) -> None:
            names = [item.name for item in list_checkpoints(session.run.checkpoints)]
            seen.append((names, latest_valid(session.run.checkpoints)[0].name))

    result = train(
        tiny("td3", tmp_path, checkpoint_interval=10, keep_checkpoints=1, kwargs={"eval_interval": 15}), [Look()]
    )
    assert seen == [([f"step_0000000{step}"], f"step_0000000{step}") for step in (10, 20, 30, 40, 50, 60, 60)]
    assert len(list_checkpoints(result.run_dir / "best")) == 1
