"""Run folders are never shared or overwritten; logging never stops a run and never repeats a row."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rl_training.display.progress import Progress
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment import files, logging
from rl_training.experiment.config import TrainConfig, load_config
from rl_training.experiment.loggers import Row
from rl_training.experiment.logging import CsvSink, MetricsLog, TensorBoardSink
from rl_training.experiment.runs import RunDirectory, machine_changes, read_run_record


def config(folder: Path, **changes: Any) -> TrainConfig:
    values = {"algo": "sac", "env_id": "Pendulum-v1", "seed": 3, "total_timesteps": 100, "output_dir": folder}
    return TrainConfig(**values | changes)


def create(folder: Path, **changes: Any) -> RunDirectory:
    made = config(folder, **changes)
    return RunDirectory.create(made, made.to_dict())


def test_a_run_folder_has_its_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "a b"])
    made = config(tmp_path, algo_kwargs={"learning_rate": 3e-4})
    text = "algo: sac # as written\n"
    with RunDirectory.create(made, made.to_dict(), suffix="try 1", text=text) as run:
        assert run.path.parent == tmp_path
        assert run.path.name.startswith("Pendulum-v1__sac__s3__20")
        assert run.path.name.endswith("__try-1")
        assert (run.path / "config.yaml").read_text() == text
        assert load_config(run.path / "config.resolved.yaml").config == made
        assert (run.path / "command.txt").read_text() == "x 'a b'\n"
        record = json.loads((run.path / "run.json").read_text())
        assert record["status"] == "running"
        assert set(record["versions"]) >= {"python", "torch", "numpy", "gymnasium", "mujoco"}
        assert record["cpu_capability"]
        assert record["threads"] >= 1
        run.update(status="finished", exact_resume=True)
        assert read_run_record(run.path)["status"] == "finished"
        assert read_run_record(run.path)["exact_resume"] is True
    assert not list(run.path.glob(".tmp-*"))


def test_two_runs_of_one_second_get_two_folders(tmp_path: Path) -> None:
    runs = [create(tmp_path) for _ in range(4)]
    assert len({run.path for run in runs}) == 4
    for run in runs:
        run.close()


@pytest.mark.parametrize(
    ("env_id", "start"), [("ALE/Pong-v5", "ALE-Pong-v5__"), (None, "no-env__"), ("../../x:Y", "x-Y__")]
)
def test_an_environment_name_cannot_leave_the_folder(tmp_path: Path, env_id: str | None, start: str) -> None:
    with create(tmp_path / "runs", env_id=env_id) as run:
        assert run.path.parent == tmp_path / "runs"
        assert run.path.name.startswith(start)


def test_an_unusable_output_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^output_dir .*/file/runs cannot hold a run .*: Not a directory$"):
        create(tmp_path / "file" / "runs")


def test_a_run_is_reopened_with_its_history(tmp_path: Path) -> None:
    run = create(tmp_path)
    run.update(status="interrupted")
    run.close()
    with RunDirectory.open(run.path) as again:
        assert machine_changes(again.record, "cpu") == []
        assert again.record["status"] == "running"
        assert len(again.record["resumed"]) == 1
        assert again.record["created"] == run.record["created"]
        again.update(versions={**again.record["versions"], "torch": "1.0"}, threads=99)
    with RunDirectory.open(run.path) as changed:
        assert [change.split()[0] for change in machine_changes(changed.record, "cpu")] == ["torch", "threads"]


def test_a_folder_that_is_not_a_run_is_refused_and_unchanged(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a run folder"):
        RunDirectory.open(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"run\.json: damaged"):
        RunDirectory.open(tmp_path)


def holder(action: Callable[[Callable[[bytes], None]], None]) -> tuple[int, str]:
    """Fork a process that runs `action(report)` and then waits to be killed; returns its pid and report."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            action(lambda data: os.write(writer, data + b"\n") and None)
            time.sleep(60)
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as lines:
        return pid, lines.readline().strip()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_the_lock_names_its_holder_and_dies_with_it(tmp_path: Path) -> None:
    run = create(tmp_path)
    run.close()

    def hold(report: Callable[[bytes], None]) -> None:
        RunDirectory.open(run.path)
        report(b"held")

    pid, _ = holder(hold)
    with pytest.raises(ConfigError, match=f"in use by process {pid};") as caught:
        RunDirectory.open(run.path)
    assert caught.value.exit_code == 2
    kill(pid)
    RunDirectory.open(run.path).close()


def test_a_worker_that_outlives_its_run_does_not_hold_the_lock(tmp_path: Path) -> None:
    run = create(tmp_path)
    run.close()

    def hold_and_fork(report: Callable[[bytes], None]) -> None:
        RunDirectory.open(run.path)
        worker = os.fork()
        if worker == 0:
            report(str(os.getpid()).encode())
            time.sleep(60)

    pid, worker = holder(hold_and_fork)
    try:
        kill(pid)
        RunDirectory.open(run.path).close()
    finally:
        os.kill(int(worker), signal.SIGKILL)


def test_run_json_is_never_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with create(tmp_path) as run:

        def stop(name: str) -> None:
            if name == "after write .tmp-run.json":
                raise KeyboardInterrupt

        monkeypatch.setattr(files, "failpoint", stop)
        with pytest.raises(KeyboardInterrupt):
            run.update(status="finished")
        monkeypatch.undo()
        assert read_run_record(run.path)["status"] == "running"
        run.update(status="failed")
        assert read_run_record(run.path)["status"] == "failed"
        assert not list(run.path.glob(".tmp-*"))


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def fill(path: Path, steps: list[int]) -> CsvSink:
    sink = CsvSink(path)
    for step in steps:
        sink.write(step, 1.5, {"loss": step / 3})
    return sink


def test_csv_numbers_are_exact_and_columns_grow(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    sink = fill(path, [1, 2])
    sink.write(3, 2.0, {"eval/mean_reward": -0.1, "odd, name": float("nan")})
    sink.close()
    assert path.read_text().splitlines()[0] == 'step,time,schema,loss,eval/mean_reward,"odd, name"'
    rows = rows_of(path)
    assert [row["step"] for row in rows] == ["1", "2", "3"]
    assert float(rows[0]["loss"]) == 1 / 3
    assert rows[0]["eval/mean_reward"] == rows[2]["loss"] == ""
    assert rows[2]["odd, name"] == "nan"
    assert None not in rows[0]


def test_resuming_drops_the_rows_past_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    fill(path, [10, 20, 30, 40])
    with path.open("a") as file:
        file.write("50,1.5,0.33")  # a process killed in mid-line
    sink = CsvSink(path)
    sink.truncate_after(20)
    sink.write(30, 2.0, {"loss": 7.0})
    sink.close()
    assert [(row["step"], row["loss"]) for row in rows_of(path)][2:] == [("30", "7.0")]
    assert [row["step"] for row in rows_of(path)] == ["10", "20", "30"]


OLD = "step,time,schema,eval/mean_reward,loss\n20,1.0,2,,0.5\n40,2.0,2,-7.0,\n40,2.5,2,,0.25\n40,3.0,2,-6.0,\n"


def test_rows_of_a_file_that_has_several_for_a_step_are_cut_by_count(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(OLD)
    sink = CsvSink(tmp_path / "metrics.csv")
    kept = sink.truncate_after(40, rows=3)
    sink.write(60, 4.0, {"loss": 0.125, "eval/mean_reward": -5.0})
    sink.close()
    assert [row["step"] for row in rows_of(tmp_path / "metrics.csv")] == ["20", "40", "40", "60"]
    both = {"eval/mean_reward": -7.0, "loss": 0.25}
    assert [(row.step, row.time, row.values) for row in kept] == [(20, 1.0, {"loss": 0.5}), (40, 2.0, both)]


def test_further_values_of_a_step_complete_its_row(tmp_path: Path) -> None:
    sink = fill(tmp_path / "metrics.csv", [10, 20])
    sink.write(20, 9.0, {"eval/mean_reward": -1.0})
    sink.write(20, 9.0, {"loss": 8.0})
    sink.write(30, 9.0, {"loss": 3.0})
    sink.close()
    first, second, third = rows_of(tmp_path / "metrics.csv")
    assert second == {"step": "20", "time": "1.500", "schema": "2", "loss": "8.0", "eval/mean_reward": "-1.0"}
    assert (first["step"], first["eval/mean_reward"], third["step"]) == ("10", "", "30")
    reopened = CsvSink(tmp_path / "metrics.csv")
    reopened.write(30, 10.0, {"eval/mean_reward": -0.5})
    reopened.close()
    assert [row["eval/mean_reward"] for row in rows_of(tmp_path / "metrics.csv")] == ["", "-1.0", "-0.5"]


@pytest.mark.parametrize("where", ["before write", "after write", "after fsync", "before rename", "after rename"])
def test_a_kill_while_a_row_is_completed_leaves_the_row(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.csv"
    sink = fill(path, [10, 20])

    def stop(name: str) -> None:
        if name.startswith(where):
            raise KeyboardInterrupt

    monkeypatch.setattr(files, "failpoint", stop)
    with pytest.raises(KeyboardInterrupt):
        sink.write(20, 9.0, {"eval/mean_reward": -1.0})
    monkeypatch.undo()
    assert [(row["step"], row["loss"]) for row in rows_of(path)][1:] == [("20", repr(20 / 3))]
    CsvSink(path).close()
    assert [row["step"] for row in rows_of(path)] == ["10", "20"]


def test_what_completed_the_row_of_a_checkpoint_after_it_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    sink = fill(path, [10, 20])
    sink.write(20, 9.0, {"eval/mean_reward": -1.0})
    sink.write(30, 9.0, {"late": 1.0})
    kept = sink.truncate_after(20, rows=2, columns=["loss"])
    sink.close()
    assert path.read_text().splitlines()[0] == "step,time,schema,loss"
    assert [(row.step, row.values) for row in kept] == [(10, {"loss": 10 / 3}), (20, {"loss": 20 / 3})]
    assert len(rows_of(path)) == 2


def test_a_file_that_is_not_a_log_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("")
    fill(tmp_path / "metrics.csv", [1]).close()
    assert [row["step"] for row in rows_of(tmp_path / "metrics.csv")] == ["1"]


class ListSink:
    name = "list"

    def __init__(self, act: Callable[[int], None] = lambda step: None) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.act = act
        self.closed = False

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        self.act(step)
        self.rows.append((step, dict(values)))

    def flush(self) -> None: ...

    def close(self) -> None:
        self.closed = True


def test_every_sink_gets_every_row_in_order() -> None:
    sinks = [ListSink(), ListSink()]
    log = MetricsLog(sinks, warn=pytest.fail, rows=5)
    for step in range(200):
        log.log(step, {"a": step})
    log.flush()
    assert [row[0] for row in sinks[0].rows] == list(range(200))
    assert sinks[0].rows == sinks[1].rows
    assert log.rows == 205
    log.close()
    assert sinks[0].closed


def test_what_is_logged_at_one_step_is_one_row() -> None:
    sink = ListSink()
    log = MetricsLog([sink], warn=pytest.fail)
    log.log(5, {"eval": 1.0})
    log.log(5, {"loss": 2.0})
    log.settle()
    log.log(6, {"loss": 3.0})
    log.log(7, {"loss": 4.0})
    log.flush()
    assert sink.rows == [(5, {"eval": 1.0, "loss": 2.0}), (6, {"loss": 3.0}), (7, {"loss": 4.0})]
    log.log(7, {"eval": 5.0})  # after a checkpoint
    assert (log.rows, log.columns(7), log.columns(6)) == (3, ["eval", "loss"], [])
    log.close()
    assert sink.rows[3:] == [(7, {"eval": 5.0})]


def test_a_sink_that_raises_is_dropped_with_one_warning() -> None:
    def fail(step: int) -> None:
        if step >= 3:
            raise OSError("disk on fire")

    warnings: list[str] = []
    bad, good = ListSink(fail), ListSink()
    log = MetricsLog([bad, good], warn=warnings.append)
    for step in range(50):
        log.log(step, {})
    log.flush()
    log.close()
    assert len(good.rows) == 50
    assert len(bad.rows) == 3
    assert warnings == ["list is switched off for the rest of the run: OSError: disk on fire"]


def test_a_sink_that_hangs_does_not_hold_the_run() -> None:
    release = threading.Event()
    warnings: list[str] = []
    good = ListSink()
    log = MetricsLog([ListSink(lambda step: release.wait() and None), good], warn=warnings.append, timeout=0.2)
    started = time.monotonic()
    log.log(0, {})
    log.flush()
    for step in range(1, 1000):
        log.log(step, {})
        if step % 100 == 0:
            log.flush()
    log.close()
    assert time.monotonic() - started < 3
    assert [row[0] for row in good.rows] == list(range(1000))
    assert warnings == ["list is switched off for the rest of the run: it did not finish within 0.2 s"]
    release.set()


def test_a_full_queue_drops_the_sink_instead_of_waiting() -> None:
    release = threading.Event()
    warnings: list[str] = []
    log = MetricsLog([ListSink(lambda step: release.wait() and None)], warn=warnings.append, queue_size=8)
    for step in range(100):
        log.log(step, {})
    assert len(warnings) == 1
    release.set()
    log.close()


def test_tensorboard_hides_what_was_logged_after_the_checkpoint(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = MetricsLog([TensorBoardSink(tmp_path)], warn=pytest.fail)
    for step in (10, 20, 30):
        log.log(step, {"train/loss": float(step)})
    log.close()
    log = MetricsLog([TensorBoardSink(tmp_path, resumed_from=20)], warn=pytest.fail)
    log.log(30, {"train/loss": 99.0})
    log.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [
        (10, 10),
        (20, 20),
        (30, 99),
    ]


def test_event_files_of_one_second_are_read_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process numbers its files, and viewers sort the numbers as text: the tenth before the ninth."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.summary.writer import event_file_writer

    now = [time.time()]  # a clock that only sleeping moves

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(9))
    monkeypatch.setattr(event_file_writer, "socket", socket)
    monkeypatch.setattr(event_file_writer, "time", SimpleNamespace(time=lambda: now[0]))
    monkeypatch.setattr(logging, "time", SimpleNamespace(**vars(time) | {"sleep": sleep}))
    for resumed_from, value in ((None, 1.0), (20, 2.0)):
        sink = TensorBoardSink(tmp_path, resumed_from=resumed_from)
        sink.write(30, 0.0, {"loss": value})
        sink.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [event.value for event in events.Scalars("loss")] == [2.0]


def test_tensorboard_has_the_step_of_the_checkpoint_once(tmp_path: Path) -> None:
    """A viewer has seen the evaluation after the checkpoint of step 20; the resumed run repeats it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = MetricsLog([TensorBoardSink(tmp_path)], warn=pytest.fail)
    for step, values in [(10, {"loss": 1.0}), (20, {"loss": 2.0}), (20, {"eval": -1.0})]:
        log.log(step, values)
        log.flush()
    log.close()
    last = Row(20, 1.0, {"loss": 2.0})
    log = MetricsLog([TensorBoardSink(tmp_path, resumed_from=20, last=last)], warn=pytest.fail, last=last)
    log.log(20, {"eval": -3.0})
    log.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(10, 1), (20, 2)]
    assert [(event.step, event.value) for event in events.Scalars("eval")] == [(20, -3)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show(stream: io.StringIO, **options: Any) -> str:
    progress = Progress(1_000, stream=stream, **options)
    progress.advance(50)
    progress.write(100, 0.0, {"rollout/ep_rew_mean": -1234.5, "train/critic_loss": 0.25, "train/n_updates": 7.0})
    progress.say("a warning with [brackets]")
    progress.close()
    return stream.getvalue()


def test_plain_lines_without_a_terminal() -> None:
    first, second = show(io.StringIO()).splitlines()
    assert first[8:].startswith("  100/1,000 steps  return -1234  critic_loss 0.25  ")
    assert first.endswith(" left")
    assert "steps/s" in first
    assert "n_updates" not in first
    assert "\x1b" not in first
    assert second == "a warning with [brackets]"


def test_a_bar_on_a_terminal_and_only_warnings_when_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    shown = show(Terminal())
    assert "100/1000" in shown
    assert "return -1234" in shown
    assert "a warning with [brackets]" in shown
    assert show(io.StringIO(), quiet=True) == show(Terminal(), quiet=True) == "a warning with [brackets]\n"
