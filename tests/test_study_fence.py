"""The fence: once a run belongs to another worker nothing more is committed, and no partial files remain."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from rl_training.errors import ClaimLost
from rl_training.experiment import files
from rl_training.experiment.checkpointing import write_checkpoint
from rl_training.experiment.logging import CsvSink
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session
from rl_training.runs.spec import RunOptions
from tests.runs import mostly_slow, resume, run_record, tiny, train
from tests.studies import contents


class Fence:
    """Open until it is closed, or for a number of queries."""

    def __init__(self, questions: int | None = None) -> None:
        self.left = questions

    def __call__(self) -> None:
        if self.left == 0:
            raise ClaimLost("taken over")
        if self.left is not None:
            self.left -= 1


def test_a_file_is_not_replaced(tmp_path: Path) -> None:
    place = tmp_path / "run.json"
    files.replace_atomically(place, b"old")
    with pytest.raises(ClaimLost):
        files.replace_atomically(place, b"new", Fence(0))
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert place.read_bytes() == b"old"


def test_two_owners_never_share_a_temporary_file(tmp_path: Path) -> None:
    """The former owner is checked while its bytes are staged; the next owner stages its own file."""
    place = tmp_path / "run.json"

    def next_owner() -> None:
        files.replace_atomically(place, b"next", Fence())
        raise ClaimLost("taken over")

    with pytest.raises(ClaimLost):
        files.replace_atomically(place, b"former", next_owner)
    assert place.read_bytes() == b"next"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("questions", [0, 1])
def test_a_checkpoint_is_not_committed(tmp_path: Path, questions: int) -> None:
    """Asked before anything is touched, and again before the rename that commits."""
    groups = {"networks": {"weight": torch.ones(2)}}
    write_checkpoint(tmp_path, 1, tensors=groups, records={})
    with pytest.raises(ClaimLost):
        write_checkpoint(tmp_path, 2, tensors=groups, records={}, fence=Fence(questions))
    assert [path.name for path in tmp_path.iterdir()] == ["step_000000001"]


def test_rows_of_a_former_owner_are_not_logged(tmp_path: Path) -> None:
    fence = Fence()
    former = CsvSink(tmp_path / "metrics.csv", fence)
    former.write(1, 0.0, {"loss": 1.0})
    CsvSink(tmp_path / "metrics.csv", Fence()).write(2, 0.0, {"loss": 2.0})
    fence.left = 0
    before = contents(tmp_path)
    former.write(3, 0.0, {"loss": 3.0})
    with pytest.raises(ClaimLost):
        former.write(3, 0.0, {"loss": 3.0, "a new column": 1.0})
    assert contents(tmp_path) == before


class LoseAt(Callback):
    """Loses the claim at a step, and records the contents of the folder."""

    def __init__(self, fence: Fence, step: int) -> None:
        self.fence, self.step = fence, step
        self.before: dict[str, str] = {}

    def on_step(self, session: Session) -> None:
        if session.clock.ticks == self.step:
            session.metrics_log.flush()
            self.before = without_events(session.run.path)
            self.fence.left = 0


def without_events(run: Path) -> dict[str, str]:
    return {name: digest for name, digest in contents(run).items() if not name.startswith("tb/")}


@pytest.mark.parametrize(
    ("lost_at", "algo"),
    mostly_slow(itertools.product([10, 25, 30], ["dqn", "bc"]), (10, "bc"), (25, "dqn"), (30, "bc")),
)
def test_a_run_that_was_taken_over_ends_and_leaves_its_folder_as_it_was(
    tmp_path: Path, algo: str, lost_at: int
) -> None:
    fence = Fence()
    callback = LoseAt(fence, lost_at if algo == "dqn" else 30)
    config = tiny(algo, tmp_path, kwargs={"eval_interval": 15}, checkpoint_interval=8)
    with pytest.raises(ClaimLost):
        train(config, [callback], options=RunOptions(quiet=True, fence=fence))
    (run,) = tmp_path.iterdir()
    assert callback.before
    assert without_events(run) == callback.before
    assert run_record(run)["status"] == "running"
    result = resume(run)
    assert result.metrics["global_step"] == 60


def test_a_failure_after_the_claim_was_lost_is_the_loss(tmp_path: Path) -> None:
    """An environment that timed out while its worker slept, say: neither its failure nor a rescue is written."""
    fence = Fence()

    class Fail(LoseAt):
        def on_step(self, session: Session) -> None:
            super().on_step(session)
            if session.clock.ticks == self.step:
                raise RuntimeError("woken up")

    callback = Fail(fence, 25)
    with pytest.raises(ClaimLost):
        train(tiny("dqn", tmp_path), [callback], options=RunOptions(quiet=True, fence=fence))
    (run,) = tmp_path.iterdir()
    assert without_events(run) == callback.before


def test_a_run_of_another_worker_is_not_started(tmp_path: Path) -> None:
    with pytest.raises(ClaimLost):
        train(tiny("dqn", tmp_path), options=RunOptions(quiet=True, folder=tmp_path / "run", fence=Fence(0)))
    assert list(tmp_path.iterdir()) == []
