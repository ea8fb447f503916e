"""Promise 29: unusual terminals do no harm: closed or ASCII streams, no TensorBoard, links in a run folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import rl_training
from rl_training.errors import ConfigError
from rl_training.experiment.logging import TensorBoardSink
from tests.reliability.processes import Child, command
from tests.runs import interrupted, logged, resume, run_record, tiny, train

SOURCE = str(Path(rl_training.__file__).parents[1])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    values = tiny("sac", tmp_path / "runs").to_dict()
    del values["allow_import"]
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a shell command, which can close streams before the program starts."""
    program = f"{sys.executable} -m rl_training"
    return subprocess.run(
        ["/bin/sh", "-c", line.replace("rl-training", program)],
        env=os.environ | {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
    )


def without_streams() -> None:
    """Close the standard streams, as if the interpreter had started without them."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.close(number)
        setattr(sys, name, None)
        setattr(sys, f"__{name}__", None)


def with_ascii_streams() -> None:
    """Use ASCII streams, as with PYTHONIOENCODING=ascii."""
    sys.stdout = open(1, "w", encoding="ascii", errors="strict", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="ascii", errors="backslashreplace", closefd=False)  # noqa: SIM115


def trained_in_a_fork(config: Path, first: Callable[[], None]) -> str:
    """What `rl-training train` prints in a forked process that has called `first`."""

    def act() -> None:
        first()
        command("train", "--config", config)()

    child = Child(act, config.with_suffix(".txt"))
    assert child.wait() == 0, child.text()
    return child.text()


def assert_closed_streams_did_no_harm(folder: Path) -> None:
    [run] = (folder / "runs").iterdir()
    assert run_record(run)["status"] == "finished"
    assert resume(run, changes={"total_timesteps": 70}).metrics["global_step"] == 70  # no file received the output


def test_closed_streams_of_a_forked_process(config: Path, tmp_path: Path) -> None:
    trained_in_a_fork(config, without_streams)
    assert_closed_streams_did_no_harm(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams(closed: str, config: Path, tmp_path: Path) -> None:
    done = shell(f"rl-training train --config {config} {closed}")
    assert done.returncode == 0, done.stderr
    assert_closed_streams_did_no_harm(tmp_path)


def assert_ascii(printed: str) -> None:
    [line] = [line for line in printed.splitlines() if line.startswith("mean return")]
    assert " +/- 0.00 (1 episodes)" in line


def test_ascii_streams_of_a_forked_process(config: Path) -> None:
    assert_ascii(trained_in_a_fork(config, with_ascii_streams))


@pytest.mark.slow
def test_ascii_streams(config: Path) -> None:
    done = shell(f"rl-training train --config {config}", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert_ascii(done.stdout)


def test_no_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    healthy = train(tiny("td3", tmp_path))

    def missing(self: TensorBoardSink, *_: object, **__: object) -> None:
        raise ImportError("cannot import name 'SummaryWriter'")

    monkeypatch.setattr(TensorBoardSink, "__init__", missing)
    result = train(tiny("td3", tmp_path))
    assert logged(result.run_dir) == logged(healthy.run_dir)
    [line] = [line for line in capfd.readouterr().err.splitlines() if "TensorBoard" in line]
    assert line.startswith("warning: TensorBoard is switched off for the rest of the run: ImportError: ")


@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo", "folder"])
def test_a_lock_that_is_a_link_is_ignored(kind: str, tmp_path: Path) -> None:
    """The lock in the run folder links to a file elsewhere, which is neither written nor waited for."""
    run = interrupted(tiny("sac", tmp_path / "runs"), 30)
    treasure = tmp_path / "treasure.txt"
    treasure.write_text("mine")
    lock = run / "lock"
    lock.unlink()
    if kind == "link":
        lock.symlink_to(treasure)
    elif kind == "dangling link":
        lock.symlink_to(tmp_path / "nothing")
    elif kind == "fifo":
        os.mkfifo(lock)
    else:
        lock.mkdir()
    with pytest.raises(ConfigError, match=r"lock: not a regular file; remove it if you trust this folder"):
        resume(run)
    assert treasure.read_text() == "mine"
    assert not (tmp_path / "nothing").exists()


def test_a_log_that_is_a_link_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    run = interrupted(tiny("sac", tmp_path / "runs"), 30)
    treasure = tmp_path / "treasure.csv"
    treasure.write_text((run / "metrics.csv").read_text())
    before = treasure.read_bytes()
    (run / "metrics.csv").unlink()
    (run / "metrics.csv").symlink_to(treasure)
    resume(run)
    assert treasure.read_bytes() == before
    assert not (run / "metrics.csv").is_symlink()
