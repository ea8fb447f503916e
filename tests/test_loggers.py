"""User-defined loggers: what they receive and when, and which are refused."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import rl_training
from rl_training import BC, Logger, importing
from rl_training.errors import ConfigError
from rl_training.experiment.loggers import Row, RunFacts, as_loggers
from rl_training.experiment.metric_names import METRICS, log_row, tag_of, term_tag, words_of
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session
from rl_training.runs.signals import TrainingInterrupted
from rl_training.runs.spec import RunOptions
from tests.runs import KillAt, Killed, differences, logged, mostly_slow, resume, run_record, tiny, train

EVERY = {"log_interval": 10, "checkpoint_interval": 20, "total_timesteps": 60}


class Diary(Logger):
    """Records everything it receives."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.calls: list[str] = []
        self.facts: list[RunFacts] = []
        self.status: str | None = None

    def open(self, run: RunFacts) -> None:
        self.facts.append(run)
        self.calls.append("open")

    def write(self, row: Row) -> None:
        self.rows.append(row)
        self.calls.append(f"row {row.step}")

    def flush(self) -> None:
        self.calls.append("flush")

    def close(self, status: str) -> None:
        self.status = status
        self.calls.append("close")


class Covered(Diary):
    only_covered = True


def launched(*loggers: Logger) -> RunOptions:
    return RunOptions(quiet=True, loggers=loggers)


def as_logged(rows: list[Row]) -> list[dict[str, str]]:
    """Rows as `logged` reads them from metrics.csv."""
    found = []
    for row in rows:
        values = {"step": str(row.step), "schema": "2"} | {name: repr(value) for name, value in row.values.items()}
        found.append({name: value for name, value in values.items() if name != "time/fps"})
    return found


def test_rows_as_they_are_logged(tmp_path: Path) -> None:
    diary = Diary()
    result = train(tiny("bc", tmp_path, **EVERY), options=launched(diary))
    assert diary.calls == [
        "open",
        *("row 10", "row 20", "flush", "row 30", "row 40", "flush", "row 50", "row 60", "flush"),
        "flush",  # the last step is saved, evaluated and saved again
        "row 60",
        "flush",
        "close",
    ]
    [facts] = diary.facts
    assert (facts.folder, facts.name, facts.resumed_from) == (result.run_dir, result.run_dir.name, None)
    assert facts.config["algo_kwargs"]["batch_size"] == 16
    assert diary.status == "finished"
    *rows, judged = diary.rows
    assert as_logged([*rows[:-1], rows[-1].completed(judged)]) == logged(result.run_dir)
    assert {name.partition("/")[0] for name in judged.values} == {"eval"}


def test_loggers_receive_only_rows_covered_by_a_checkpoint(tmp_path: Path) -> None:
    """The row of the checkpoint's own step may still be completed: it is sent with the next one, or at the end."""
    diary = Covered()
    result = train(tiny("bc", tmp_path, **EVERY), options=launched(diary))
    assert diary.calls == [
        "open",
        *("row 10", "flush"),
        *("row 20", "row 30", "flush"),
        *("row 40", "row 50", "flush"),
        *("row 60", "flush", "close"),
    ]
    assert as_logged(diary.rows) == logged(result.run_dir)


@pytest.mark.parametrize("algo", mostly_slow(["sac", "iql", "rlpd"], "rlpd"))
def test_after_a_kill_every_row_is_complete_and_final(algo: str, tmp_path: Path) -> None:
    """A resumed run sends its earlier rows first; a logger that remembers the last step gets each row once."""
    config = tiny(algo, tmp_path, kwargs={"eval_interval": 20}, **EVERY | {"checkpoint_interval": 25})
    straight = train(config, [KillAt()])
    first, second = Covered(), Covered()
    with pytest.raises(Killed) as killed:
        train(config, [KillAt(50)], options=launched(first))
    assert first.status == "failed"
    assert resume(run := Path(killed.value.args[0]), [KillAt()], loggers=[second]).run_dir == run
    [facts], reached = second.facts, first.rows[-1].step
    assert facts.resumed_from is not None
    assert 0 < reached < facts.resumed_from
    whole = [*first.rows, *(row for row in second.rows if row.step > reached)]
    assert as_logged(whole) == logged(straight.run_dir) == as_logged(second.rows)


def test_an_interrupted_run_sends_its_last_row(tmp_path: Path) -> None:
    """A signal during the last evaluation: the row of step 60 is sent when it is complete."""

    class Signal(Callback):
        def on_training_end(self, session: Session) -> None:
            session._guard.received = 15

    diary, again = Covered(), Covered()
    with pytest.raises(TrainingInterrupted):
        train(tiny("bc", tmp_path, **EVERY), [Signal()], options=launched(diary))
    assert ([row.step for row in diary.rows], diary.status) == ([10, 20, 30, 40, 50], "interrupted")
    [run] = tmp_path.iterdir()
    resume(run, loggers=[again])
    assert as_logged(again.rows) == logged(run)
    assert "eval/mean_reward" in again.rows[-1].values


def test_a_run_that_continues_in_a_new_folder_is_a_new_run_for_loggers(tmp_path: Path) -> None:
    result = train(tiny("bc", tmp_path, **EVERY))
    diary = Covered()
    resume(sorted((result.run_dir / "checkpoints").iterdir())[0], loggers=[diary])
    assert [row.step for row in diary.rows] == [30, 40, 50, 60]
    assert diary.facts[0].folder != result.run_dir


class Raising(Logger):
    def write(self, row: Row) -> None:
        raise RuntimeError("the server is gone")


class Exiting(Logger):
    def open(self, run: RunFacts) -> None:
        raise SystemExit(3)


class Hanging(Logger):
    timeout = 0.2

    def open(self, run: RunFacts) -> None:
        time.sleep(1_000)


class HangingCovered(Hanging):
    only_covered = True


class Spoiling(Logger):
    def write(self, row: Row) -> None:
        row.values.clear()  # type: ignore[attr-defined]


# `reliability/test_loggers` has one that raises and one that hangs.
@pytest.mark.parametrize(
    "bad", mostly_slow([Raising, Exiting, Hanging, HangingCovered, Spoiling], Exiting, HangingCovered, Spoiling)
)
def test_a_failing_logger_does_not_stop_training(
    bad: type[Logger], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config, diary = tiny("bc", tmp_path, **EVERY), Covered()
    healthy = train(config)
    result = train(config, options=launched(bad(), diary))
    assert differences(healthy, result) == []
    assert run_record(result.run_dir)["status"] == "finished"
    assert as_logged(diary.rows) == logged(result.run_dir)
    said = [line for line in capfd.readouterr().err.splitlines() if f"{bad.__name__} is switched off" in line]
    assert len(said) == (bad is not Spoiling)


def test_learn_and_resume_take_loggers(tmp_path: Path) -> None:
    first, second = Diary(), Diary()
    model = BC(tiny("bc", tmp_path, **EVERY))
    model.learn(20, progress_bar=False, loggers=first)
    model.resume(40, progress_bar=False, loggers=[second])
    assert {row.step for row in first.rows} == {10, 20}
    assert {row.step for row in second.rows} == {30, 40}
    assert rl_training.Logger is Logger


class Named(Diary):
    def open(self, run: RunFacts) -> None:
        super().open(run)
        self.name = run.name


def test_a_logger_may_keep_the_name_of_its_run(tmp_path: Path) -> None:
    logger = Named()
    BC(tiny("bc", tmp_path, **EVERY)).learn(20, progress_bar=False, loggers=logger)
    assert logger.name == logger.facts[0].name
    assert {row.step for row in logger.rows} == {10, 20}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("wandb", r"^loggers: 'wandb' is a name; give names to the class: the setting loggers=\['wandb'\]$"),
        (["wandb"], r"^loggers: 'wandb' is a name; "),
        (Diary, r"^loggers: Diary is a class; give an instance of it, Diary\(\)$"),
        ([7], r"^loggers: give a Logger or a list of loggers, got 7$"),
    ],
)
def test_objects_that_are_not_loggers_are_refused(given: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        BC(tiny("bc", tmp_path / "runs")).learn(20, loggers=given)
    assert not (tmp_path / "runs").exists()


class Kept(Diary):
    """Stores the last instance."""

    last: Kept

    def __init__(self) -> None:
        super().__init__()
        Kept.last = self


class Fussy(Diary):
    def __init__(self, path: str) -> None:
        super().__init__()


def test_a_class_in_the_setting_is_made_for_each_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "_KNOWN", {})
    settings = {"eval_episodes": 0, "batch_size": 8, "hidden_sizes": [8], "log_interval": 10}
    data = {"dataset_kind": "random", "dataset_size": 100}
    model = BC("Pendulum-v1", loggers=[Kept], output_dir=str(tmp_path), **settings, **data)
    assert model.config.loggers == (f"{__name__}:Kept",)
    result = model.learn(20, progress_bar=False)
    first = Kept.last
    assert ({row.step for row in first.rows}, first.status) == ({10, 20}, "finished")
    importing._KNOWN.clear()  # as in a new process
    refused = rf"^loggers: '{__name__}:Kept' would import the module '{__name__}'; allow it with --allow-import"
    with pytest.raises(ConfigError, match=refused):
        rl_training.load(result.run_dir).resume(40, progress_bar=False)
    rl_training.load(result.run_dir, allow_import=True).resume(40, progress_bar=False)
    assert Kept.last is not first
    assert {row.step for row in Kept.last.rows} == {30, 40}
    importing._KNOWN.clear()
    resume(result.run_dir, changes={"loggers": []}, overrides=["total_timesteps=50"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Row", "is not a Logger class$"),
        ("EVERY", "is not a Logger class$"),
        ("Nothing", f"the module {__name__} has no 'Nothing'$"),
        ("Fussy", r"Fussy\(\) fails: TypeError: .*missing 1 required positional argument: 'path'$"),
    ],
)
def test_a_wrong_class_is_one_line(name: str, message: str, tmp_path: Path) -> None:
    config = tiny("bc", tmp_path / "runs", loggers=[f"{__name__}:{name}"], allow_import=True)
    with pytest.raises(ConfigError, match=f"^loggers: .*{message}"):
        train(config)


def test_no_loggers_are_none() -> None:
    assert as_loggers(None) == as_loggers([]) == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["wandbb"], r"^loggers: unknown logger 'wandbb'; did you mean 'wandb'\?; known: wandb$"),
        (["wandb", "wandb"], r"^loggers: 'wandb' is given twice$"),
        (3, r"^loggers must be a list, got 3$"),
        ([Diary()], r"^loggers: takes names \(wandb\); objects are given to learn\(loggers=\[…\]\)$"),
    ],
)
def test_the_setting_takes_known_names(given: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny("bc", tmp_path, loggers=given)


def test_one_name_is_a_list_of_one(tmp_path: Path) -> None:
    assert tiny("bc", tmp_path, loggers="wandb").loggers == ("wandb",)


def test_one_table_of_names() -> None:
    assert tag_of("eval_return_mean") == tag_of("eval/mean_reward") == "eval/mean_reward"
    assert (term_tag("critic_loss"), term_tag("alpha")) == ("train/critic_loss", "train/ent_coef")
    assert log_row({"eval_return_std": 1.0, "mine/x": 2.0}) == {"eval/std_reward": 1.0, "mine/x": 2.0}
    assert words_of("eval_return_mean") == "mean return"
    for column in zip(*METRICS):
        names = [name for name in column if name]
        assert len(set(names)) == len(names)


def test_results_and_log_have_names_of_the_table(tmp_path: Path) -> None:
    result = train(tiny("sac", tmp_path, eval_episodes=2, kwargs={"eval_interval": 20, "alpha": "auto"}))
    names = {metric.name for metric in METRICS}
    assert {name for name in result.metrics if name.startswith("eval")} <= names
    tags = {metric.tag for metric in METRICS}
    columns = {name for row in logged(result.run_dir) for name in row} | {"time/fps"}
    assert {name for name in columns if name.partition("/")[0] in ("eval", "time", "rollout")} <= tags
    assert {tag_of(name) for name in result.metrics if name.startswith("eval_")} - {"eval_return_best"} <= columns
    assert "train/ent_coef" in columns
