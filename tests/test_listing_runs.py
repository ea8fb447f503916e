"""`rl-training runs` and `rl_training.report.runs`: filters, order, broken folders, studies packed and not."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import time
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

import rl_training
from rl_training import cli
from rl_training.console.listing import Sort
from rl_training.display.text import age
from rl_training.errors import ConfigError
from rl_training.report import listing, runs
from rl_training.study.packing import pack_study
from rl_training.study.trials import Failure, note_failure
from tests.bare import Bare
from tests.report_files import settings_of, write_run
from tests.studies import study_in


def command(*arguments: object) -> Any:
    return CliRunner().invoke(cli.main, ["runs", *map(str, arguments)])


def names(found: Any) -> list[str]:
    return [run.name for run in found.runs]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four runs and two broken folders."""
    place = tmp_path / "runs"
    write_run(place / "a", [1.0, 3.0, 2.0], seed=2)
    td3 = settings_of("td3", "Hopper-v5") | {"tags": ["paper", "first"]}
    write_run(place / "b", [5.0], seed=10, settings=td3, status="diverged", cause="loss is NaN\nat update 7")
    write_run(place / "deep" / "c", [], seed=0, settings=settings_of("iql", None), status="running", resumed=[])
    population = {"members": ["d", "e", "f"]}
    write_run(place / "d", [4.0] * 5, seed=1, settings=settings_of("sac", "Hopper-v4"), population=population)
    (write_run(place / "half") / "run.json").unlink()
    (write_run(place / "torn") / "run.json").write_text("{")
    return place


def test_a_run_whose_process_was_killed_is_interrupted(tmp_path: Path) -> None:
    """Its process wrote no status; runs of other machines keep theirs."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    fields: dict[str, Any] = {"status": "running", "host": platform.node(), "pid": ended.pid}
    write_run(tmp_path / "a", **fields)
    write_run(tmp_path / "b", **fields | {"pid": os.getpid()})
    write_run(tmp_path / "c", **fields | {"host": "elsewhere"})
    write_run(tmp_path / "d", **fields | {"pid": 10**30})
    assert [run.status for run in runs(tmp_path).runs] == ["interrupted", "running", "running", "interrupted"]


def test_every_run_and_every_broken_folder_is_listed(folder: Path) -> None:
    found = runs(folder)
    assert names(found) == ["a", "b", "d", "c"]
    assert [(Path(one.place).name, one.kind) for one in found.unread] == [("half", "broken"), ("torn", "broken")]
    assert rl_training.report.runs is runs


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        ({"algo": "SAC"}, ["a", "d"]),
        ({"algo": ["td3", "iql"]}, ["b", "c"]),
        ({"env": "hopper*"}, ["b", "d"]),
        ({"env": "none"}, ["c"]),
        ({"tag": "paper"}, ["b"]),
        ({"tag": "pap"}, []),
        ({"status": "finished"}, ["a", "d"]),
        ({"status": ["running", "diverged"]}, ["b", "c"]),
        ({"algo": "sac", "env": "Hopper-v4"}, ["d"]),
        ({"sort": "return"}, ["b", "d", "a", "c"]),
        ({"sort": "return", "reverse": True}, ["a", "d", "b", "c"]),
        ({"sort": "best"}, ["b", "d", "a", "c"]),
        ({"sort": "seed"}, ["c", "d", "a", "b"]),
        ({"sort": "step"}, ["d", "a", "b", "c"]),
        ({"sort": "env"}, ["d", "b", "a", "c"]),
        ({"sort": "name", "reverse": True}, ["d", "c", "b", "a"]),
        ({"reverse": True}, ["c", "d", "b", "a"]),
    ],
)
def test_filters_and_order(wanted: dict[str, Any], kept: list[str], folder: Path) -> None:
    assert names(runs(folder, **wanted)) == kept


@pytest.mark.parametrize(("status", "step"), [("interrupted", 496), ("failed", 496), ("running", 200)])
def test_a_run_that_ended_after_its_last_row(status: str, step: int, tmp_path: Path) -> None:
    write_run(tmp_path / "a", [1.0, 2.0], status=status, ended_at=496)
    assert [run.step for run in runs(tmp_path).runs] == [step]


def test_unreadable_runs_are_listed_unless_a_filter_needs_their_content(folder: Path) -> None:
    assert len(runs(folder, status="broken").unread) == 2
    assert names(runs(folder, status="broken")) == []
    assert not runs(folder, status="finished").unread
    assert not runs(folder, algo="sac").unread


def test_the_sorts_of_the_command_are_those_of_python(folder: Path) -> None:
    assert set(get_args(Sort)) == set(listing.SORTS)
    with pytest.raises(ConfigError, match="sort: unknown 'retrun'; did you mean 'return'"):
        runs(folder, sort="retrun")


def test_the_table(folder: Path) -> None:
    done = command(folder, "--sort", "return")
    assert done.exit_code == 0, done.stderr
    header, first, *others = done.stdout.splitlines()
    columns = ["algo", "environment", "seed", "status", "step", "return", "best", "age"]
    assert header.split() == [*columns, "tags", "members", "folder", "remark"]  # no study
    assert first.split()[:7] == ["td3", "Hopper-v5", "10", "diverged", "100", "5.00", "5.00"]
    assert re.search(rf"{folder}/b +loss is NaN at update 7$", first)
    assert "paper, first" in first
    assert others[0].split()[9:12] == ["-", "3", f"{folder}/d"]
    assert others[2].split()[:7] == ["iql", "none", "0", "running", "0", "-", "-"]
    assert others[3] == ""
    assert others[4].startswith(f"broken  {folder}/half  a run folder without run.json")
    assert others[5].startswith(f"broken  {folder}/torn  torn/run.json: damaged")


def test_json(folder: Path) -> None:
    found = json.loads(command(folder, "--algo", "sac", "--algo", "td3", "--tag", "paper", "--json").stdout)
    assert found["unread"] == []
    [run] = found["runs"]
    assert run["updated"] > 0
    del run["updated"]
    assert run == {
        "place": f"{folder}/b", "algo": "td3", "env_id": "Hopper-v5", "seed": 10, "status": "diverged",
        "cause": "loss is NaN\nat update 7", "step": 100, "total_timesteps": 1000, "return": 5.0, "best": 5.0,
        "seconds": 10.0, "tags": ["paper", "first"], "members": 1, "study": None, "varied": {}, "notes": [],
    }  # fmt: skip
    unread = json.loads(command(folder, "--status", "broken", "--json").stdout)
    assert unread["runs"] == []
    assert [one["kind"] for one in unread["unread"]] == ["broken", "broken"]


def test_missing_runs_and_folders_are_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = command(folder, "--algo", "dqn")
    assert (none.exit_code, none.stdout, none.stderr) == (0, "", "no run matches\n")
    monkeypatch.chdir(folder.parent)
    assert command("--status", "finished").stdout.count("finished") == 2  # runs/ by default
    monkeypatch.chdir(folder)
    wrong = command()
    assert (wrong.exit_code, wrong.stderr) == (2, "error: runs: no such file or folder\n")
    assert command(folder, "--sort", "colour").exit_code == 2


def test_a_study_and_the_same_packed(tmp_path: Path) -> None:
    study = study_in(tmp_path, set={"tags": ["grid"]}, seeds=[0, 1, 2])
    plan = study.plan()
    for trial in plan.trials[:1]:
        settings = plan.configurations[trial.configuration].settings
        write_run(study.folder / "runs" / trial.name, [7.0], seed=trial.seed, settings=settings)
    note_failure(study.folder, plan.trials[1], Failure(4, "it diverged"))
    pack_study(study.folder, tmp_path / "tiny.zip")
    for place in (study.folder, tmp_path / "tiny.zip"):
        found = runs(place, sort="best")
        [run] = found.runs
        assert (run.study, run.tags, run.best, run.seed) == ("tiny", ("grid",), 7.0, 0)
        assert [(one.kind, one.reason) for one in found.unread] == [
            ("failed", "it diverged"),
            ("missing", "planned, not started"),
        ]
        assert names(runs(place, tag="grid")) == [run.name]
    assert "tiny" in command(tmp_path / "tiny.zip").stdout.splitlines()[1].split()


def test_ages() -> None:
    shown = [age(seconds) for seconds in (-5, 0, 119, 121, 7_199, 7_201, 3_600 * 47, 86_400 * 2, 86_400 * 400)]
    assert shown == ["0 s", "0 s", "119 s", "2 min", "120 min", "2 h", "47 h", "2 d", "400 d"]
    assert age(time.time()).endswith(" d")


def test_runs_are_listed_without_torch(folder: Path, commanded: Bare) -> None:
    program = (
        "import sys; from typer.testing import CliRunner; from rl_training import cli;"
        f"done = CliRunner().invoke(cli.main, ['runs', {str(folder)!r}]);"
        "print(done.exit_code, sorted({'torch', 'gymnasium', 'matplotlib', 'scipy'} & sys.modules.keys()))"
    )
    done = commanded.run(program)
    assert done.stdout == "0 []\n", done.stderr


def test_a_folder_name_with_a_line_break_stays_on_its_line(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "two\nlines", [1.0])
    write_run(tmp_path / "runs" / "plain", [1.0])
    result = command(tmp_path / "runs")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 3  # the header and a line for each run
