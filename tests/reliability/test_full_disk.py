"""Promise 6: a full disk damages no checkpoint and leaves no partial file; training continues and tries again."""

from __future__ import annotations

import ctypes
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_training.experiment.checkpointing import latest_valid, list_checkpoints
from rl_training.experiment.config import TrainConfig
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session
from tests.reliability.processes import Child
from tests.runs import ALL, fingerprint, mostly_slow, resume, run_record, tiny, train


class FullBetween(Callback):
    """From tick `first` to tick `last` no file can grow beyond `limit` bytes, as on a full disk."""

    name = "FullBetween"

    def __init__(self, first: int, last: int, limit: int = 3_000) -> None:
        self.first, self.last, self.limit = first, last, limit

    def next_due(self, now: int) -> int | None:
        return min((tick for tick in (self.first, self.last) if tick > now), default=None)

    def on_step(self, session: Session) -> None:
        full = self.first <= session.clock.ticks < self.last
        hard = resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit if full else hard, hard))


def config_of(algo: str, folder: Path) -> TrainConfig:
    return tiny(algo, folder, total_timesteps=60, checkpoint_interval=10, log_interval=5, keep_checkpoints=9)


def run_in(folder: Path) -> Path:
    [run] = folder.iterdir()
    return run


@pytest.mark.parametrize("algo", mostly_slow(ALL, "rlpd"))
def test_training_continues_on_a_full_disk_and_tries_again(algo: str, tmp_path: Path) -> None:
    pretraining = 30 if algo == "rlpd" else 0
    config = config_of(algo, tmp_path / "runs")
    child = Child(lambda: train(config, [FullBetween(pretraining + 25, pretraining + 43)]), tmp_path / "output.txt")
    assert child.wait() == 0, child.text()
    run = run_in(tmp_path / "runs")
    steps = [int(path.name[5:]) - pretraining for path in list_checkpoints(run / "checkpoints")]
    assert [step for step in steps if step > 0] == [10, 20, 45, 50, 60]  # 30 and 40 failed; 45 is the next report
    assert list(run.rglob(".tmp-*")) == []
    [warning] = [line for line in child.text().splitlines() if "cannot be written" in line and "step_" in line]
    for word in (str(run / "checkpoints"), "needs about", "bytes", "free", "training goes on and tries again"):
        assert word in warning
    assert run_record(run)["status"] == "finished"
    straight = train(config, [FullBetween(0, 0)])
    assert fingerprint(straight.checkpoint_path) == fingerprint(latest_valid(run / "checkpoints")[0])


def test_a_disk_that_stays_full_is_an_error_at_the_end_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    config = config_of("td3", tmp_path / "runs")
    child = Child(lambda: train(config, [FullBetween(25, 1_000)]), tmp_path / "output.txt")
    assert child.wait() == 3
    last = child.text().splitlines()[-1]
    assert "the last checkpoint could not be written and the work since" in last
    run = run_in(tmp_path / "runs")
    assert f"{run / 'checkpoints' / 'step_000000020'} is not saved; free some disk space and resume" in last
    newest, warnings = latest_valid(run / "checkpoints")
    assert (newest.name, warnings) == ("step_000000020", [])
    assert list(run.rglob(".tmp-*")) == []
    resumed = resume(run, [FullBetween(0, 0)])
    straight = train(config, [FullBetween(0, 0)])
    assert fingerprint(straight.checkpoint_path) == fingerprint(resumed.checkpoint_path)


_NEW_NAMESPACE, _NEW_USER = 0x00020000, 0x10000000


def on_small_disk(folder: Path, size: int, action: Callable[[], object], output: Path) -> Child:
    """Run `action` in a process with a disk of `size` bytes mounted at `folder`; exit with 77 if mounting is not
    permitted."""

    def isolated() -> object:
        libc = ctypes.CDLL(None, use_errno=True)
        options = f"size={size}".encode()
        if libc.unshare(_NEW_NAMESPACE) != 0 and libc.unshare(_NEW_NAMESPACE | _NEW_USER) != 0:
            os._exit(77)
        libc.mount(None, b"/", None, (1 << 18) | (1 << 14), None)  # the mount is private to this process
        if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, options) != 0:
            os._exit(77)
        return action()

    folder.mkdir()
    return Child(isolated, output)


class Filler(Callback):
    """Fills the disk at tick 25 and frees it at tick 43."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "ballast"

    def on_step(self, session: Session) -> None:
        if session.clock.ticks == 25:
            with self.file.open("wb", buffering=0) as file:
                try:
                    while file.write(bytes(512)):
                        pass
                except OSError:
                    pass
        if session.clock.ticks == 43:
            self.file.unlink()


def test_a_disk_without_a_free_byte(tmp_path: Path) -> None:
    disk, found = tmp_path / "disk", tmp_path / "found.json"

    def action() -> None:
        result = train(config_of("sac", disk / "runs"), [Filler(disk)])
        names = [path.name for path in list_checkpoints(result.run_dir / "checkpoints")]
        newest, warnings = latest_valid(result.run_dir / "checkpoints")
        leftovers = [str(path) for path in result.run_dir.rglob(".tmp-*")]
        found.write_text(
            json.dumps([names, newest.name, warnings, leftovers, run_record(result.run_dir)["status"]])
        )

    child = on_small_disk(disk, 2_000_000, action, tmp_path / "output.txt")
    code = child.wait()
    if code == 77:
        pytest.skip("this system lets no test mount a small file system")
    assert code == 0, child.text()
    names, newest, warnings, leftovers, status = json.loads(found.read_text())
    assert names == [f"step_0000000{step}" for step in (10, 20, 45, 50, 60)]
    assert (newest, warnings, leftovers, status) == ("step_000000060", [], [], "finished")
    assert "No space left on device: needs about" in child.text()
