"""Promise 8: two runs never share a folder; a lock ends with its process; nothing is overwritten."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rl_training.cli import main
from rl_training.errors import ConfigError
from tests.reliability.faulty_worlds import FAULTY
from tests.reliability.processes import Child, wait_for
from tests.runs import interrupted, resume, run_record, tiny, train


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_second_process_is_refused_and_a_killed_one_has_no_lock(tmp_path: Path, children: list[Child]) -> None:
    config = tiny("sac", tmp_path, env_id=FAULTY, env_kwargs={"at": 40, "how": "hang"}, eval_episodes=0)
    child = Child(lambda: train(config), tmp_path.with_suffix(".txt"))
    children.append(child)
    wait_for(lambda: any(b'"saved": true' in record.read_bytes() for record in tmp_path.glob("*/run.json")))
    [run] = tmp_path.iterdir()
    before = contents(run)
    with pytest.raises(
        ConfigError, match=rf"{run.name}: in use by process {child.pid}; wait for it to end"
    ) as caught:
        resume(run)
    assert caught.value.exit_code == 2
    refused = CliRunner().invoke(main, ["resume", str(run)])
    assert refused.exit_code == 2
    assert f"in use by process {child.pid}" in refused.stderr
    assert contents(run) == before
    child.send(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert (run / "lock").read_text().strip() == str(child.pid)  # stale, and ignored
    assert run_record(run)["status"] == "running"
    assert resume(run, changes={"env_kwargs": {}}).metrics["global_step"] == 60


def test_runs_started_together_get_separate_folders(tmp_path: Path) -> None:
    config = tiny("iql", tmp_path / "runs")
    started = [Child(lambda: train(config), tmp_path / f"{i}.txt") for i in range(3)]
    assert [child.wait() for child in started] == [0, 0, 0]
    runs = list((tmp_path / "runs").iterdir())
    assert len(runs) == 3
    assert {run_record(run)["pid"] for run in runs} == {child.pid for child in started}


def test_a_resume_from_an_older_checkpoint_leaves_the_newer_ones(tmp_path: Path) -> None:
    """The run continues in a new folder, and the old one does not change."""
    result = train(tiny("td3", tmp_path, checkpoint_interval=20, total_timesteps=40))
    before = contents(result.run_dir)
    branch = resume(result.run_dir / "checkpoints" / "step_000000020")
    assert branch.run_dir != result.run_dir
    assert branch.run_dir.name.endswith("__resumed")
    assert contents(result.run_dir) == before


def test_a_failed_resume_releases_the_lock(tmp_path: Path) -> None:
    run = interrupted(tiny("sac", tmp_path), 30)
    [checkpoint] = (run / "checkpoints").iterdir()
    (run / "metrics.csv").rename(run / "aside.csv")
    (run / "metrics.csv").mkdir()  # a folder where a file should be
    with pytest.raises(OSError, match="metrics"):
        resume(run)
    (run / "metrics.csv").rmdir()
    (run / "aside.csv").rename(run / "metrics.csv")
    assert resume(run).run_dir == run
    assert checkpoint.is_dir()
    assert os.getpid() == run_record(run)["pid"]
