"""docs/guides/report.md: its program runs, and its commands and options are those of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rl_training.cli import main
from tests.test_readme import shortened

pytestmark = pytest.mark.pages

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "guides" / "report.md").read_text(encoding="utf-8")
[PROGRAM] = re.findall(
    r"^<!-- not run: tests/test_report_page\.py runs it -->\n```python\n(.*?)^```$", PAGE, re.M | re.S
)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(args))
    return int(ended.value.code or 0), capsys.readouterr().out


def test_the_python_block_is_the_one_that_is_run() -> None:
    assert PAGE.count("```python") == 1


@pytest.mark.slow
def test_the_program_and_the_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a fraction of the steps; then the commands on what it left."""
    monkeypatch.chdir(tmp_path)
    Path("corl.csv").write_text("step,seed,value\n30,0,-900\n30,1,-1000\n", encoding="utf-8")
    code = shortened(PROGRAM).replace("eval_interval=500", "eval_interval=10, device='cpu'")
    scope: dict[str, Any] = {"__name__": "report"}
    exec(compile(code, "report.md", "exec", dont_inherit=True), scope)
    assert capsys.readouterr().out.count("td3 (gamma=0.9") == 2
    assert scope["latex"].startswith("\\begin{tabular}")
    assert {path.name for path in tmp_path.iterdir()} == {
        "corl.csv",
        "runs",
        "report.html",
        "report.json",
        "curve.pdf",
    }
    for line in re.findall(r"^rl-training (.*?)(?:  +#.*)?$", PAGE, re.M):
        words = [word if not word.startswith(("runs", "studies")) else "runs" for word in line.split()]
        assert run(capsys, *words)[0] == 0, line


def test_every_option_is_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, text = run(capsys, "report", "--help")
    assert code == 0
    options = set(re.findall(r"--[a-z]+", text)) - {"--help", "--output"}
    assert len(options) > 8
    assert options <= set(re.findall(r"--[a-z]+", PAGE))
