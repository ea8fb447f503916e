"""Reading run folders: any depth, age and state; what cannot be read is listed with its reason."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from rl_training import report
from rl_training.console.reports import _show_summary
from rl_training.errors import ConfigError
from rl_training.experiment.strict_yaml import dump_yaml, parse_yaml, read_dumped
from rl_training.report.curves import first_above
from rl_training.report.facts import facts_of
from rl_training.report.logs import read_log
from rl_training.report.reading import read_runs
from rl_training.study.packing import pack_study
from rl_training.study.plan import read_plan
from rl_training.study.trials import Failure, note_failure
from tests.report_files import CREATED, log_of, record_of, settings_of, write_run
from tests.runs import interrupted, tiny, train
from tests.studies import study_in


def test_a_run_folder(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", [-3.0, -1.0, -2.0], seed=4, settings=settings_of("td3", gamma=0.9))
    reading = read_runs(run)
    [found] = reading.runs
    assert not reading.unread
    assert (found.algo, found.env_id, found.seed, found.status) == ("td3", "Pendulum-v1", 4, "finished")
    assert found.settings["algo_kwargs.gamma"] == 0.9
    assert "seed" not in found.settings
    assert "output_dir" not in found.settings
    assert found.curve.steps.tolist() == [100, 200, 300]
    assert found.curve.updates.tolist() == [100, 200, 250]  # the log has them between evaluations only
    assert found.curve.seconds.tolist() == [2, 4, 6]
    assert found.curve.values.tolist() == [-3, -1, -2]
    assert (found.last, found.best, found.step) == (-2.0, -1.0, 300)
    assert (found.created, found.updated) == (CREATED, CREATED + 6)


HUGE = 10**400


@pytest.mark.parametrize("field", ["seed", "seconds", "metrics", "dataset", "schema", "population"])
def test_a_number_that_no_float_holds_costs_its_run_alone(tmp_path: Path, field: str) -> None:
    write_run(tmp_path / "good")
    value = (
        HUGE if field in ("seed", "seconds", "schema") else {"update_count": HUGE, "rows": HUGE, "members": [HUGE]}
    )
    write_run(tmp_path / "bad", **{"seed": 0, field: value})
    found = report.read(tmp_path)
    assert [run.name for run in found.summary.reading.runs] == ["good"]
    [unread] = found.summary.reading.unread
    assert unread.reason == "bad/run.json: damaged: an integer of 401 digits, at most 300 are read"
    assert found.tables["runs"].csv().count("\n") == 2


STRANGE = (-1, 10**25, True, 1.5, "x", [], [[]], {}, {"a": 1}, None)
FIELDS = (
    *("seed", "status", "seconds", "created", "updated", "resumed", "metrics", "population", "dataset", "versions"),
    *("dataset.rows", "dataset.fingerprint", "dataset.raw_rows", "dataset.raw_fingerprint", "dataset.name"),
    *("metrics.update_count", "metrics.eval_return_std", "population.members", "cause", "host", "device"),
)


@pytest.mark.parametrize("field", FIELDS)
def test_a_report_survives_strange_fields(tmp_path: Path, field: str) -> None:
    settings = settings_of("iql", dataset_path="d.npz")
    data = {"name": "d.npz", "rows": 10, "fingerprint": "aa", "raw_rows": 10, "raw_fingerprint": "aa"}
    good = write_run(tmp_path / "good", settings=settings, dataset=data, population={"members": ["a", "b"]})
    for number, value in enumerate(STRANGE):
        record = {**record_of(good), "seed": 1 + number}
        section, _, key = field.rpartition(".")
        (record[section] if section else record)[key] = value
        folder = write_run(tmp_path / f"strange-{number}", settings=settings)
        (folder / "run.json").write_text(json.dumps(record))
    found = report.read(tmp_path)
    assert len(found.summary.reading.runs) + len(found.summary.reading.unread) == 1 + len(STRANGE)
    json.dumps(found.to_dict())
    assert all(table.markdown() for table in found.tables.values())


def test_strange_numbers_in_settings_and_logs(tmp_path: Path) -> None:
    write_run(tmp_path / "good")
    one = write_run(tmp_path / "settings", seed=1)
    (one / "config.resolved.yaml").write_text(json.dumps(settings_of(learning_rate=HUGE)))
    two = write_run(tmp_path / "log", [1.0, 2.0, 3.0], seed=2)
    log = (two / "metrics.csv").read_text().replace("\n200,", f"\n{HUGE},").replace("\n100,", f"\n{10**25},")
    (two / "metrics.csv").write_text(log)
    found = report.read(tmp_path)
    by_name = {run.name: run for run in found.summary.reading.runs}
    assert any("learning_rate is not a finite number" in note for note in by_name["settings"].notes)
    assert by_name["log"].curve.steps.tolist() == [300]
    assert found.tables["runs"].markdown()


def test_the_command_names_a_run_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "good")
    write_run(tmp_path / "bad", seed=HUGE)
    _show_summary(report.read(tmp_path), tmp_path / "report.html")
    line = f"warning: 1 run could not be read or is missing: {tmp_path / 'bad'}: bad/run.json: damaged"
    assert line in capsys.readouterr().err


def test_folders_at_any_depth_each_run_once(tmp_path: Path) -> None:
    for place in ("a", "deep/er/b", "deep/c"):
        write_run(tmp_path / place)
    (tmp_path / "deep" / "again").symlink_to(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "a" / "checkpoints" / "step_1").mkdir(parents=True)
    names = [run.name for run in read_runs([tmp_path, tmp_path / "a", str(tmp_path / "deep")]).runs]
    assert names == ["a", "c", "b"]
    assert len(read_runs([tmp_path / "deep" / "er" / "b", tmp_path / "deep" / "er"]).runs) == 1


def test_paths_without_runs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("text")
    for name, message in (
        ("empty", "no runs in it"),
        ("nowhere", "no such file"),
        ("text.txt", "neither a folder"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_runs(tmp_path / name)


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("run.json", b"{", "damaged"),
        ("run.json", b"[]", "expected a mapping"),
        ("run.json", b'{"algo": 3}', "algo is 3"),
        ("run.json", None, "without run.json"),
    ],
)
def test_broken_runs_are_listed(tmp_path: Path, file: str, text: bytes | None, reason: str) -> None:
    write_run(tmp_path / "whole")
    broken = write_run(tmp_path / "broken")
    (broken / file).unlink()
    if text is not None:
        (broken / file).write_bytes(text)
    reading = read_runs(tmp_path)
    assert [run.name for run in reading.runs] == ["whole"]
    [unread] = reading.unread
    assert (unread.place, unread.kind) == (str(broken), "broken")
    assert reason in unread.reason


@pytest.mark.parametrize(
    ("file", "text", "note"),
    [
        ("metrics.csv", b"a,b\n1,2\n", "not a log"),
        ("metrics.csv", b'step,time\n"1', ""),
        ("metrics.csv", None, ""),
        ("metrics.csv", b"", ""),
        ("config.resolved.yaml", None, "settings are unknown"),
        ("config.resolved.yaml", b"a: [", "settings are unknown"),
        ("config.resolved.yaml", b"- 1\n", "not a configuration"),
        ("config.resolved.yaml", b"a: &x 1\nb: *x\n", "anchors"),
        ("config.resolved.yaml", b"- " * 100_000, "nested deeper"),
        ("config.resolved.yaml", b"\xff\xfe\x00", "settings are unknown"),
    ],
)
def test_a_run_with_a_broken_file_is_read_with_a_note(
    tmp_path: Path, file: str, text: bytes | None, note: str
) -> None:
    run = write_run(tmp_path / "a")
    (run / file).unlink()
    if text is not None:
        (run / file).write_bytes(text)
    shutil.copytree(run, tmp_path / "b")
    found, other = read_runs(tmp_path).runs
    assert note in " ".join(found.notes)
    assert bool(found.notes) == bool(note)
    assert other.notes == found.notes
    assert (found.last is None) == (file == "metrics.csv")


def test_a_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    (run / "metrics.csv").unlink()
    os.mkfifo(run / "metrics.csv")
    assert read_runs(run).runs[0].last is None


def test_updates_before_the_first_environment_step_are_below_0(tmp_path: Path) -> None:
    """So that online runs and runs that learned from data first are compared at the same environment step."""
    log = (
        b"step,time,schema,train/n_updates,time/total_timesteps,eval/mean_reward\n"
        b"200,1,1,200,0,1.0\n300,2,1,300,0,2.0\n350,3,1,,,3.0\n400,4,1,381,100,4.0\n"
    )
    assert read_log(log, "eval_return_mean").before == 300
    assert read_log(log[: log.index(b"350")], "eval_return_mean").before is None  # or the run is offline
    learned = settings_of("rlpd", offline_pretrain_updates=300)
    for number, (values, fields) in enumerate(
        [
            ((1.0, 2.0, 3.0, 4.0), {"ended_at": 400, "metrics": {"global_step": 100}}),  # nothing in the log
            ((1.0, 2.0), {"status": "running"}),  # not yet in the environment: as planned
        ]
    ):
        [run] = read_runs(write_run(tmp_path / str(number), values, settings=learned, **fields)).runs
        assert run.curve.steps.tolist() == [-200, -100, 0, 100][: len(values)]
    assert first_above(run.curve, 1.5) == 0.0
    [offline] = read_runs(
        write_run(tmp_path / "bc", settings=settings_of("bc"), ended_at=200, metrics={"global_step": 0})
    ).runs
    assert offline.curve.steps.tolist() == [100, 200]


def test_the_budget_of_an_interrupted_run_includes_its_updates_before_the_first_step(tmp_path: Path) -> None:
    learned = settings_of("rlpd", offline_pretrain_updates=300)
    for name, record, total in (("a", {}, "1,300"), ("b", {"pretraining": 360}, "1,360")):
        run = write_run(tmp_path / name, (1.0, 2.0, 3.0, 4.0), settings=learned, status="interrupted", **record)
        (trouble,) = report.read(run).summary.troubles
        assert trouble.reason == f"interrupted at step 400 of {total}"
    started = write_run(tmp_path / "c", (1.0, 2.0), settings=learned, status="interrupted")
    assert report.read(started, unfinished=True).summary.uneven == {}


def test_a_run_that_resumed_in_a_new_folder_has_no_rate(tmp_path: Path) -> None:
    """Its folder has the time since then, and all its updates."""
    for name, fields, rate in (("a", {}, 10.0), ("b", {"resumed_from": "runs/a/checkpoints/step_50"}, None)):
        place = write_run(tmp_path / name, metrics={"update_count": 100}, seconds=10.0, **fields)
        (facts,) = facts_of(report.read(place).summary.groups)
        assert facts.updates_per_second == rate


def test_a_run_that_was_continued_does_not_have_the_results_of_its_earlier_end(tmp_path: Path) -> None:
    earlier = {"stop_reason": "max_hours reached", "ended_at": 100, "metrics": {"update_count": 100}}
    for name, fields, cause in (
        ("stopped", {}, "max_hours reached"),
        ("interrupted", {}, None),
        ("diverged", {"cause": "loss is NaN"}, "loss is NaN"),
    ):
        [run] = read_runs(write_run(tmp_path / name, status=name, **earlier, **fields)).runs
        assert (run.cause, "update_count" in run.metrics) == (cause, name == "stopped")


def test_a_run_that_continues_the_updates_of_an_offline_run_has_no_rate(tmp_path: Path) -> None:
    for name, learned, rate in (("a", 0, 10.0), ("b", 60, None)):
        metrics = {"update_count": 100, "pretrain_updates_done": learned}
        settings = settings_of("sac") | {"init_from": "runs/offline"}
        place = write_run(tmp_path / name, settings=settings, metrics=metrics, seconds=10.0)
        (facts,) = facts_of(report.read(place).summary.groups)
        assert facts.updates_per_second == rate


def test_incomplete_lines_and_invalid_numbers_are_skipped() -> None:
    log = log_of([1.0, 2.0]).encode() + b"300,1800000010.0,2,,,inf,\n400,x,2,,,3.0,\n500,1800000012.0,2,,,4.0,9"
    found = read_log(log, "eval_return_mean")
    assert (found.curve.values.tolist(), found.bad, found.step) == ([1.0, 2.0], 1, 300)


def test_two_rows_of_a_step_are_one_evaluation() -> None:
    """As version 0.1 wrote them, without a schema."""
    log = b"step,time,train/n_updates,eval/mean_reward\n10,5.0,7.0,\n10,6.0,,1.5\n20,8.0,17.0,\n20,9.0,,2.5\n"
    curve = read_log(log, "eval/mean_reward", created=4.0).curve
    assert (curve.steps.tolist(), curve.updates.tolist()) == ([10, 20], [7, 17])
    assert (curve.values.tolist(), curve.seconds.tolist()) == ([1.5, 2.5], [2, 5])


def test_an_evaluation_before_the_first_report_has_fewer_updates() -> None:
    log = b"step,time,train/n_updates,eval/mean_reward\n5,1.0,,1.0\n10,2.0,8.0,2.0\n15,3.0,,3.0\n20,4.0,18.0,\n"
    assert read_log(log, "eval_return_mean").curve.updates.tolist() == [4, 8, 13]


def test_time_between_an_interruption_and_a_resume_is_not_counted() -> None:
    log = b"step,time,eval/mean_reward\n1,110.0,1.0\n2,120.0,2.0\n3,1010.0,3.0\n4,1020.0,4.0\n5,5005.0,5.0\n"
    curve = read_log(log, "eval_return_mean", created=100.0, resumed=[500.0, 1000.0, 5000.0]).curve
    assert curve.seconds.tolist() == [10, 20, 30, 40, 45]


def test_time_of_training_never_decreases_if_a_run_resumes_by_another_clock() -> None:
    rows = ((1, 110.0), (2, 120.0), (3, 20.0), (4, 30.0))  # the machine that resumed it at 15 is behind
    log = b"step,time,eval/mean_reward\n" + b"".join(b"%d,%.3f,0.0\n" % row for row in rows)
    curve = read_log(log, "eval_return_mean", created=100.0, resumed=[15.0]).curve
    assert curve.seconds.tolist() == [10, 20, 20, 30]


def test_another_metric(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [1.0])
    for name in ("eval_length_mean", "eval/mean_ep_length"):
        assert read_runs(tmp_path, metric=name).runs[0].last == 200.0
    assert read_runs(tmp_path, metric="custom/none").runs[0].last is None


def test_a_run_that_was_resumed_with_other_settings_has_a_remark(tmp_path: Path) -> None:
    """Its last settings, by which it is grouped, are not those of its whole training."""
    changed = "step 60: settings have changed: algo_kwargs.gamma 0.9 -> 0.99"
    write_run(tmp_path / "a", inexact=[changed, "step 60: changed since the run began: torch 2.10 -> 2.11"])
    write_run(tmp_path / "b", seed=1, inexact=7)
    one, other = read_runs(tmp_path).runs
    assert (one.notes, other.notes) == ((f"resumed at {changed}",), ())


def test_real_runs_finished_and_interrupted(tmp_path: Path) -> None:
    config = tiny("sac", tmp_path, kwargs={"eval_interval": 20}, seed=1)
    result = train(config)
    half = interrupted(config.replace(seed=2), 30)
    runs = {run.seed: run for run in read_runs(tmp_path).runs}
    assert runs[1].curve.steps.tolist() == [20, 40, 60]
    assert runs[1].last == result.metrics["eval_return_mean"]
    assert runs[1].best == result.metrics["eval_return_best"]
    assert runs[1].settings == runs[2].settings
    assert runs[1].seconds is not None
    assert (runs[2].name, runs[2].status) == (half.name, "failed")
    assert runs[2].cause
    assert np.all(runs[1].curve.updates <= runs[1].curve.steps)


def test_a_study_and_its_packed_file_give_the_same_report(tmp_path: Path) -> None:
    study = study_in(
        tmp_path, seeds=[0, 1, 2], grid={"gamma": [0.9, 0.99]}, set={"eval_interval": 30, "tags": ["a"]}
    )
    study.run(1, quiet=True)
    plan = read_plan(study.folder)
    doomed, failed, *_ = plan.trials
    for trial in (doomed, failed):
        home = study.folder / "runs" / trial.name
        home.rename(tmp_path / trial.name)
    note_failure(study.folder, failed, Failure(4, "it diverged"))
    write_run(study.folder / "runs" / "stray")
    folder = read_runs(study.folder)
    assert [(one.kind, one.reason) for one in folder.unread] == [
        ("missing", "planned, not started"),
        ("failed", "it diverged"),
    ]
    assert [run.name for run in folder.runs if run.study is None] == ["stray"]
    pack_study(study.folder, tmp_path / "packed.zip")
    packed = read_runs(tmp_path / "packed.zip")
    assert [one.kind for one in packed.unread] == ["missing", "failed"]
    ours = [run for run in folder.runs if run.study]
    assert [run.name for run in packed.runs] == [run.name for run in ours]
    assert len(read_runs([study.folder / "runs" / ours[0].name, study.folder]).runs) == len(folder.runs)
    for one, other in zip(packed.runs, ours):
        assert (one.settings, one.record, one.varied) == (other.settings, other.record, other.varied)
        assert one.curve.values.tolist() == other.curve.values.tolist()
        assert set(one.varied) == {"algo_kwargs.gamma"}
        assert one.tags == other.tags == ("a",)


def test_a_trial_that_was_resumed_with_another_budget_has_its_own_settings(tmp_path: Path) -> None:
    study = study_in(tmp_path, seeds=[0, 1])
    plan = study.plan()
    for trial, budget in zip(plan.trials, (60, 120)):
        settings = plan.configurations[0].settings | {"total_timesteps": budget}
        write_run(study.folder / "runs" / trial.name, seed=trial.seed, settings=settings)
    assert [run.settings["total_timesteps"] for run in read_runs(study.folder).runs] == [60, 120]


def test_a_damaged_packed_study_and_plan_are_listed(tmp_path: Path) -> None:
    study = study_in(tmp_path, seeds=[0], set={"eval_interval": 30})
    study.run(1, quiet=True)
    pack_study(study.folder, tmp_path / "packed.zip")
    data = bytearray((tmp_path / "packed.zip").read_bytes())
    data[200:260] = bytes(60)
    (tmp_path / "packed.zip").write_bytes(data)
    (study.folder / "plan.json").write_text("{}")
    reading = read_runs([tmp_path / "packed.zip", study.folder])
    assert [one.kind for one in reading.unread] == ["broken", "broken"]
    assert "its runs are read without its plan" in reading.unread[1].reason
    assert [run.algo for run in reading.runs] == ["dqn"]


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, {"b": None}], "on": "yes", "no": True, "x": 1e-6, "t": "# no\n&"},
        {"a": "1e3", "b": "*"},
        {"a": {}},
    ],
)
def test_settings_are_read_fast_and_the_same(value: dict[str, object]) -> None:
    assert read_dumped(dump_yaml(value), "x") == parse_yaml(dump_yaml(value), "x").value == value
