"""`rl-training report` and `plot`: what they write, and mistakes in one line."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from rl_training.cli import main
from rl_training.experiment import files
from rl_training.study.packing import pack_study
from tests.report_files import two_methods, write_run
from tests.report_pages import require_alone
from tests.runs import mostly_slow
from tests.studies import study_in


def run(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(arg) for arg in args])
    return int(ended.value.code or 0)


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_command_on_a_packed_study(
    whole: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole page takes its time for the figures in PDF."""
    if not whole:
        monkeypatch.setattr("rl_training.report.page.rendered", lambda *_: b"%PDF")
    study = study_in(tmp_path, grid={"gamma": [0.9, 0.99]}, set={"eval_interval": 20})
    study.run(1, quiet=True)
    pack_study(study.folder, tmp_path / "tiny.zip")
    capsys.readouterr()
    out = tmp_path / "new" / "report.html"
    options = ["--reference", "CartPole-v1=0,500", "--threshold", "CartPole-v1=20", "--name", "dqn (gamma=0.9)=A"]
    assert run("report", tmp_path / "tiny.zip", "-o", out, *options, "--best") == 0
    assert capsys.readouterr().out.strip() == str(out)
    record = json.loads(out.with_suffix(".json").read_text())
    assert set(record["methods"]) == {"A", "dqn (gamma=0.99)"}
    assert record["tasks"]["CartPole-v1"]["scale"] == {"low": 0.0, "high": 500.0, "source": "given"}
    require_alone(out.read_text())


@pytest.mark.parametrize("kind", mostly_slow(["svg", "pdf", "png"], "svg", "pdf"))
def test_plot(tmp_path: Path, kind: str) -> None:
    folder = two_methods(tmp_path / "runs", ("Pendulum-v1", "Hopper-v5"), seeds=2)
    out = tmp_path / f"curve.{kind}"
    assert run("plot", folder, "-o", out, "--x", "updates", "--seeds") == 0
    start = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}[kind]
    assert out.read_bytes().startswith(start)


def test_a_figure_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, data: bytes) -> int:
        with path.open("wb"):
            raise OSError(errno.ENOSPC, "No space left on device")

    folder, out = write_run(tmp_path / "runs" / "a"), tmp_path / "curve.svg"
    out.write_text("old")
    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr(files, "write_durably", full)
    assert run("plot", folder, "-o", out) == 2
    assert capsys.readouterr().err.endswith(f"error: {out}: cannot be written: No space left on device\n")
    assert out.read_text() == "old"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["report", "nowhere", "-o", "report.html"], "nowhere: no such file or folder"),
        (["report", ".", "-o", "report.html"], "no runs in it"),
        (["report", ".", "-o", "report.txt"], "a report is an .html file"),
        (["report", ".", "-o", "report.html", "--reference", "a=1"], "expected TASK=LOW,HIGH"),
        (["report", ".", "-o", "report.html", "--threshold", "x"], "expected a number"),
        (["report", ".", "-o", "report.html", *2 * ("--external", "a=x.csv")], "--external: a is given twice"),
        (["report", ".", "-o", "report.html", "--name", "sac=a", "--name", "sac=b"], "--name: sac is given twice"),
        (["report", ".", "-o", "report.html", "--at", "nan"], "at: must be a step, got nan"),
        (["plot", ".", "-o", "curve.gif"], "a figure is an .svg"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*args) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1
    assert message in error[0]
    assert not list(tmp_path.iterdir())


def test_a_metric_that_was_not_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "runs" / "a")
    assert run("plot", tmp_path / "runs", "-o", tmp_path / "a.svg", "--metric", "custom/none") == 2
    assert "no run has evaluations of custom/none" in capsys.readouterr().err
