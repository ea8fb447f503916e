"""docs/adding-an-algorithm.md: every file of the page works on its own, and the lines around an addition exist."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest
from typer.testing import CliRunner

from rl_training.cli import main
from rl_training.experiment import registry
from tests.test_readme import shortened

pytestmark = pytest.mark.pages

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "adding-an-algorithm.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^ *<!-- run: (\w+) -->\n( *```python\n.*?)^ *```$", PAGE, re.M | re.S)
DIFFS = re.findall(r"^ *```diff\n(.*?)^ *```$", PAGE, re.M | re.S)


def module_of(code: str) -> str:
    """The module that the first line of a block names as its file; otherwise one of the page."""
    found = re.match(r"# (?:src/)?([\w/]+)\.py\n", code)
    return found[1].replace("/", ".") if found else "adding_page"


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in PROGRAMS))
def test_the_files_of_a_program_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in its own module, with only its own imports; the learner is also a module of this package."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
    for code in (dedent(block).partition("\n")[2] for block_name, block in PROGRAMS if block_name == name):
        module = ModuleType(module_of(code))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(sys.modules, f"rl_training.algorithms.{module.__name__}", module)
        exec(compile(shortened(code), module.__name__, "exec", dont_inherit=True), module.__dict__)
    assert len(list((tmp_path / "runs").glob("*/run.json"))) == 1


def test_every_python_block_is_run() -> None:
    assert len(PROGRAMS) == PAGE.count("```python") == 5


@pytest.mark.parametrize("diff", DIFFS, ids=lambda diff: diff.split()[1])
def test_the_lines_around_an_addition_exist(diff: str) -> None:
    first, *lines = dedent(diff).splitlines()
    text = (ROOT / first.removeprefix("# ")).read_text(encoding="utf-8")
    assert any(line.startswith("+") for line in lines)
    assert [line for line in lines if not line.startswith("+") and f"{line[1:]}\n" not in text] == []


@pytest.mark.parametrize("line", re.findall(r"^ *(rl-training .+)$", PAGE, re.M))
def test_commands_exist(line: str) -> None:
    assert CliRunner().invoke(main, [*shlex.split(line)[1:], "--help"]).exit_code == 0


def test_the_newest_algorithm_has_every_file_of_the_checklist() -> None:
    named = re.findall(r"`((?:src|tests|docs|benchmarks)/[\w./-]+)`", PAGE)
    assert len(named) > 10
    assert [place for place in named if not (ROOT / place.replace("meanq", "cal_ql")).exists()] == []
