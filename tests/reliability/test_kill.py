"""Promise 1: kill -9 loses at most the work since the last checkpoint, and a resumed run ends as an uninterrupted
one."""

from __future__ import annotations

import functools
import itertools
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from rl_training.experiment import files
from rl_training.experiment.checkpointing import latest_valid, list_checkpoints
from rl_training.experiment.config import TrainConfig
from rl_training.runs.session import TrainResult
from tests.reliability.processes import Child
from tests.reliability.selection import REGIMES, REGIMES_IN_ONE
from tests.runs import differences, interrupted, logged, resume, run_record, tiny, train


def config_of(algo: str, folder: Path, **fields: Any) -> TrainConfig:
    kwargs = {"eval_interval": 40, "learning_rate_schedule": "cosine"} | fields.pop("kwargs", {})
    every = {"total_timesteps": 90, "checkpoint_interval": 15, "log_interval": 10} | fields
    return tiny(algo, folder, kwargs=kwargs, **every)


def newest_step(run: Path) -> int:
    """Newest step whose checkpoint is valid, or -1. No checkpoint of a killed run may be damaged."""
    if not list_checkpoints(run / "checkpoints"):
        return -1
    path, warnings = latest_valid(run / "checkpoints")
    assert warnings == []
    return int(path.name.partition("_")[2].removesuffix(".old"))


def temporaries(run: Path) -> list[Path]:
    return [*run.rglob(".tmp-*"), *run.rglob("*.old")]


def assert_same_end(straight: TrainResult, run: Path) -> None:
    """The resumed run equals the uninterrupted one; if it had to start again, its defaults are written out."""
    resumed = resume(run)
    assert resumed.run_dir == run
    assert set(differences(straight, resumed)) <= {"config/algo_kwargs"}
    assert (run / "config.resolved.yaml").read_text() == (straight.run_dir / "config.resolved.yaml").read_text()
    assert temporaries(run) == []
    steps = [int(row["step"]) for row in logged(run)]
    assert steps == sorted(steps)
    record = run_record(run)
    assert (record["status"], record["exact_resume"]) == ("finished", True)


def left_alone(config: TrainConfig) -> tuple[TrainResult, list[str]]:
    """An uninterrupted run, moved aside, and all points at which a test can kill it."""
    points: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "failpoint", points.append)
        result = train(config)
    aside = result.run_dir.rename(result.run_dir.parent.parent / "straight")
    moved = TrainResult(aside, aside / "checkpoints" / result.checkpoint_path.name, result.metrics)
    return moved, points


def kill_repeatedly(config: TrainConfig, folder: Path, kills: int, longest: float) -> tuple[Path, int]:
    """Start and resume the run until `kills` processes were killed or it ended; return its folder and the number of
    kills."""
    rng = random.Random(f"{config.algo}{kills}")
    newest, killed = -1, 0
    runs: list[Path] = []
    while killed < kills or not runs:
        runs = [path for path in Path(config.output_dir).glob("*") if (path / "run.json").exists()]
        action = functools.partial(resume, runs[0]) if runs else functools.partial(train, config)
        child = Child(action, folder / "output.txt")
        deadline = time.monotonic() + rng.uniform(0.0, longest)
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        child.kill()
        code = child.wait()
        assert code in (0, -signal.SIGKILL), child.text()
        killed += code != 0
        for run in runs:
            step = newest_step(run)
            assert step >= newest, "a checkpoint was lost"
            newest = step
        if code == 0:
            break
        if not runs:
            longest *= 1.2  # on a busy machine the run folder may appear late
    [run] = [path for path in Path(config.output_dir).glob("*") if (path / "run.json").exists()]
    return run, killed


@pytest.mark.parametrize("algo", REGIMES_IN_ONE)
def test_random_kills(algo: str, tmp_path: Path) -> None:
    config = config_of(algo, tmp_path / "runs")
    straight, _ = left_alone(config)
    run, _ = kill_repeatedly(config, tmp_path, kills=4, longest=0.6)
    assert_same_end(straight, run)


@pytest.mark.slow
@pytest.mark.parametrize("algo", REGIMES)
def test_forty_random_kills(algo: str, tmp_path: Path) -> None:
    """Each of the runs ends bit for bit like the uninterrupted run."""
    long = {"total_timesteps": 5_000, "checkpoint_interval": 50, "log_interval": 500, "eval_episodes": 0}
    config = config_of(algo, tmp_path / "runs", **long)
    straight, _ = left_alone(config)
    left = 40
    while left > 0:
        run, killed = kill_repeatedly(config, tmp_path, kills=left, longest=0.6)
        assert_same_end(straight, run)
        shutil.rmtree(run)
        left -= killed


def test_between_pretraining_and_the_first_update_online(tmp_path: Path) -> None:
    """A resumed run reports the scheduled learning rate of its last update, not of the first."""
    config = config_of("rlpd", tmp_path / "runs")
    straight, _ = left_alone(config)
    assert_same_end(straight, interrupted(config, 30))


def killed_at(config: TrainConfig, index: int, output: Path) -> int:
    """Train in a process that is killed at point number `index`; return its exit code."""
    seen = itertools.count()

    def pull(name: str) -> None:
        if next(seen) == index:
            os.kill(os.getpid(), signal.SIGKILL)

    def action() -> None:
        files.failpoint = pull
        train(config)

    return Child(action, output).wait()


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow, id="all"), pytest.param(31, id="some")])
def test_killed_around_every_write_fsync_and_rename(every: int, tmp_path: Path) -> None:
    config = config_of("sac", tmp_path / "runs", total_timesteps=40, kwargs={"eval_interval": 20})
    straight, points = left_alone(config)
    assert {point.split()[1] for point in points} >= {"write", "fsync", "rename"}
    begun = points.index("after rename run.json") + 1  # before that there is no run folder
    for index in range(begun, len(points), every):
        assert killed_at(config, index, tmp_path / "output.txt") == -signal.SIGKILL, points[index]
        [run] = (tmp_path / "runs").iterdir()
        committed = any(point.startswith("after rename step_") for point in points[:index])
        assert not committed or newest_step(run) >= 0, points[index]
        assert_same_end(straight, run)
        shutil.rmtree(run)


def test_killed_before_the_first_checkpoint_a_run_starts_again(tmp_path: Path) -> None:
    config = config_of("td3", tmp_path / "runs", checkpoint_interval=1_000, kwargs={"eval_interval": 1_000})
    straight, points = left_alone(config)
    first = next(i for i, point in enumerate(points) if point.startswith("before rename step_"))
    assert killed_at(config, first, tmp_path / "output.txt") == -signal.SIGKILL
    [run] = (tmp_path / "runs").iterdir()
    assert newest_step(run) == -1
    assert len(logged(run)) == 9  # it is saved before it is evaluated
    assert_same_end(straight, run)
