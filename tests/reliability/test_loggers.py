"""Promise 18: a failing logger does not stop training; after a resume no row is duplicated or out of order."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rl_training.experiment.checkpointing import (
    find_checkpoint,
    list_checkpoints,
    read_checkpoint,
    write_checkpoint,
)
from rl_training.experiment.logging import MetricsLog
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runs import training as run_module
from rl_training.runs.callbacks import Callback
from tests.dataset_files import HIGH, LOW, episodes, save_npz
from tests.reliability.processes import Child
from tests.reliability.selection import BOTH_LOOPS, REGIMES_IN_ONE
from tests.runs import (
    ALL,
    KillAt,
    Killed,
    differences,
    fingerprint,
    interrupted,
    logged,
    mostly_slow,
    resume,
    run_record,
    tiny,
    train,
)


class Sink:
    """Replaces TensorBoard."""

    name = "TensorBoard"

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class Raising(Sink):
    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        raise RuntimeError("the server is gone")


class RaisingAtTheEnd(Sink):
    def close(self) -> None:
        raise RuntimeError("the server is gone")


class Hanging(Sink):
    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        time.sleep(1_000)


@pytest.mark.parametrize("sink", [Raising, RaisingAtTheEnd, Hanging])
@pytest.mark.parametrize("algo", mostly_slow(ALL, "sac"))
def test_a_failing_logger_does_not_change_the_run(
    algo: str, sink: type[Sink], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    healthy = train(tiny(algo, tmp_path))
    monkeypatch.setattr(run_module, "TensorBoardSink", sink)
    monkeypatch.setattr(run_module, "MetricsLog", functools.partial(MetricsLog, timeout=0.3))
    started = time.monotonic()
    result = train(tiny(algo, tmp_path))
    assert time.monotonic() - started < 20
    assert fingerprint(result.checkpoint_path) == fingerprint(healthy.checkpoint_path)
    assert logged(result.run_dir) == logged(healthy.run_dir)
    assert run_record(result.run_dir)["status"] == "finished"
    [warning] = [line for line in capfd.readouterr().err.splitlines() if "TensorBoard is switched off" in line]
    assert warning.startswith("warning: ")


def test_a_console_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`rl-training train … | head` closes the pipe while progress lines are written."""

    class Closed:
        def isatty(self) -> bool:
            return False

        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

        def flush(self) -> None:
            raise BrokenPipeError(32, "Broken pipe")

    config = tiny("iql", tmp_path, env_id=None, kwargs=_own_data(tmp_path))
    monkeypatch.setattr(sys, "stderr", Closed())
    result = get_algorithm_spec("iql").train(config)  # prints that evaluation is skipped, and its progress
    assert result.metrics["global_step"] == 60


def _own_data(folder: Path) -> dict[str, Any]:
    path = save_npz(folder / "data.npz", episodes())
    return {"dataset_kind": "npz", "dataset_path": str(path), "action_low": list(LOW), "action_high": list(HIGH)}


@pytest.mark.parametrize("algo", mostly_slow(ALL, "rlpd"))
def test_after_kills_every_row_is_logged_once_and_in_order(algo: str, tmp_path: Path) -> None:
    """Rows of ticks 35 and 40 are written before the kill and again by the resumed run."""
    every = {"log_interval": 5, "checkpoint_interval": 30, "total_timesteps": 60}
    config = tiny(algo, tmp_path, kwargs={"eval_interval": 20}, **every)
    straight = train(config)

    class KillLater(KillAt):
        """Kills the process at a step between two checkpoints."""

        name = "KillAt"

        def next_due(self, now: int) -> int | None:
            return now + 1

        def on_checkpoint(self, session: Any, path: Path) -> None:
            pass

        def on_step(self, session: Any) -> None:
            if session.clock.global_step >= 42:
                self.kill(session.run.path)

    with pytest.raises(Killed) as killed:
        train(config, [KillLater()])
    run = Path(killed.value.args[0])
    assert [row["step"] for row in logged(run)] != [row["step"] for row in logged(straight.run_dir)]
    resume(run)
    assert logged(run) == logged(straight.run_dir)
    steps = [int(row["step"]) for row in logged(run)]
    assert steps == sorted(steps)


@pytest.mark.parametrize("algo", BOTH_LOOPS)
def test_a_step_has_one_row(algo: str, tmp_path: Path) -> None:
    """Evaluations and reports at the same and at different steps; the last evaluation comes after its report."""
    config = tiny(algo, tmp_path, kwargs={"eval_interval": 20}, log_interval=15, eval_episodes=2)
    rows = {int(row["step"]): row for row in logged(train(config).run_dir)}
    total = 90 if algo == "rlpd" else 60
    marks = {15, 20, 30, 45, 50, 60, 70, 75, 90} if algo == "rlpd" else {15, 20, 30, 40, 45, 60}
    assert set(rows) == marks
    assert list(rows) == sorted(rows)
    spread = {"eval/mean_reward", "eval/std_reward", "eval/min_reward", "eval/max_reward", "eval/episodes"}
    assert {*spread, "eval/mean_ep_length", "train/n_updates"} <= rows[total].keys()
    assert spread <= rows[20].keys()
    assert "train/n_updates" not in rows[20]
    low, mean, high = (float(rows[20][f"eval/{name}_reward"]) for name in ("min", "mean", "max"))
    assert low < mean < high
    assert float(rows[20]["eval/std_reward"]) == pytest.approx((high - low) / 2)
    assert rows[20]["eval/episodes"] == "2.0"


class KillAfterEvaluation(KillAt):
    """Kills the process after the last evaluation was logged and before it is saved."""

    name = "KillAt"

    def on_checkpoint(self, session: Any, path: Path) -> None:
        pass

    def on_evaluation(self, session: Any, metrics: Mapping[str, float]) -> None:
        if self.tick is not None:
            session.metrics_log.flush()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("algo", REGIMES_IN_ONE)
def test_a_kill_between_the_last_evaluation_and_its_checkpoint(algo: str, tmp_path: Path) -> None:
    """The result is the same; with a larger budget it is that of a run that was not evaluated at this step."""
    config = tiny(algo, tmp_path / "runs", kwargs={"learning_rate_schedule": "constant"})
    child = Child(lambda: train(config, [KillAfterEvaluation(60)]), tmp_path / "output.txt")
    assert child.wait() == -signal.SIGKILL, child.text()
    [run] = (tmp_path / "runs").iterdir()
    assert "eval/mean_reward" in logged(run)[-1]
    longer = Path(shutil.copytree(run, tmp_path / "longer"))
    assert differences(train(config, [KillAt()]), resume(run, [KillAt()])) == []
    resume(longer, [KillAt()], changes={"total_timesteps": 80})
    assert logged(longer) == logged(train(config.replace(total_timesteps=80), [KillAt()]).run_dir)


class LogsCheckpoints(Callback):
    """Logs the number of checkpoints, whose calls come after the state of each checkpoint was written."""

    def __init__(self) -> None:
        self.count = 0

    def on_checkpoint(self, session: Any, path: Path) -> None:
        assert path.is_dir()
        self.count += 1
        session.log("checkpoints", self.count)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]


class KillInCheckpoint(KillAt):
    """Kills the process right after a checkpoint, or ends it with a signal that saves the same step again."""

    name = "KillAt"

    def __init__(self, tick: int, number: int) -> None:
        super().__init__(tick)
        self.number = number

    def kill(self, run: Path) -> None:
        os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("algo", BOTH_LOOPS)
def test_values_logged_after_a_checkpoint_survive_a_kill(algo: str, number: signal.Signals, tmp_path: Path) -> None:
    config = tiny(algo, tmp_path / "runs", log_interval=15, checkpoint_interval=20)
    child = Child(lambda: train(config, [LogsCheckpoints(), KillInCheckpoint(20, number)]), tmp_path / "output.txt")
    assert child.wait() == (-number if number == signal.SIGKILL else 128 + number), child.text()
    [run] = (tmp_path / "runs").iterdir()
    resumed = resume(run, [LogsCheckpoints(), KillAt()])
    assert differences(train(config, [LogsCheckpoints(), KillAt()]), resumed) == []
    assert next(row["custom/checkpoints"] for row in logged(run) if "custom/checkpoints" in row) == "1.0"


@pytest.mark.parametrize("logs_first", [True, False])
@pytest.mark.parametrize("algo", BOTH_LOOPS)
def test_a_callback_that_raises_after_a_checkpoint_is_called_again(
    algo: str, logs_first: bool, tmp_path: Path
) -> None:
    """Also if it raises again when the run resumes; callbacks before and after it count each checkpoint once."""

    def both(killer: KillAt) -> list[Callback]:
        return [LogsCheckpoints(), killer] if logs_first else [killer, LogsCheckpoints()]

    config = tiny(algo, tmp_path, log_interval=15, checkpoint_interval=20)
    with pytest.raises(Killed) as killed:
        train(config, both(KillAt(20)))
    run = Path(killed.value.args[0])
    with pytest.raises(Killed):
        resume(run, both(KillAt(20)))
    resumed = resume(run, both(KillAt()))
    assert differences(train(config, both(KillAt())), resumed) == []


def test_values_logged_after_a_checkpoint_are_repeated_in_a_new_folder(tmp_path: Path) -> None:
    config = tiny("bc", tmp_path, log_interval=15, checkpoint_interval=20, keep_checkpoints=9)
    straight = train(config, [LogsCheckpoints()])
    first = list_checkpoints(straight.run_dir / "checkpoints")[0]
    again = resume(first, [LogsCheckpoints()])
    rows = {row["step"]: row for row in logged(straight.run_dir)}
    assert [rows[row["step"]] for row in logged(again.run_dir)] == logged(again.run_dir)


def test_rows_of_an_earlier_version_stay_and_new_ones_follow(tmp_path: Path) -> None:
    """The old log has two rows per step, and its checkpoint counts both; new rows are one per step."""
    config = tiny("bc", tmp_path, kwargs={"eval_interval": 20})
    straight, run = train(config, [KillAt()]), interrupted(config, 30)
    header, row = (run / "metrics.csv").read_text().splitlines()
    names, cells = header.split(","), row.split(",")
    both = ("step", "time", "schema")
    halves = [
        ",".join(c if n in both or n.startswith("eval/") is judged else "" for n, c in zip(names, cells))
        for judged in (True, False)
    ]
    (run / "metrics.csv").write_text("\n".join([header, *halves, ""]))
    checkpoint = read_checkpoint(find_checkpoint(run))
    trainer = {**checkpoint.records["trainer"], "log_rows": 2}
    del trainer["log_columns"]
    records = {**checkpoint.records, "trainer": trainer}
    write_checkpoint(run / "checkpoints", checkpoint.step, tensors=checkpoint.tensors, records=records)
    resume(run, [KillAt()])
    old_one, old_two, *new = logged(run)
    assert {**old_one, **old_two} == logged(straight.run_dir)[0]
    assert new == logged(straight.run_dir)[1:]


def test_rows_of_a_disabled_log_are_not_duplicated(tmp_path: Path) -> None:
    config = tiny("td3", tmp_path, checkpoint_interval=20, log_interval=10)
    run = interrupted(config, 20)
    (run / "metrics.csv").write_text((run / "metrics.csv").read_text() + "999,1.0")  # a torn line
    resume(run)
    assert [row["step"] for row in logged(run)] == [row["step"] for row in logged(train(config).run_dir)]
