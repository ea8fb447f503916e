"""docs/guides/ope.md: its program runs, its configuration is valid, its commands exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rl_training.cli import main
from rl_training.data.formats import write_columns
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import resolve
from rl_training.experiment.strict_yaml import parse_yaml
from tests.judging_worlds import Linear

pytestmark = pytest.mark.pages

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "guides" / "ope.md").read_text(encoding="utf-8")
[PROGRAM] = re.findall(
    r"^<!-- not run: tests/test_ope_page\.py runs it -->\n```python\n(.*?)^```$", PAGE, re.M | re.S
)
COMMANDS = [
    line
    for block in re.findall(r"^```bash\n(.*?)^```$", PAGE.replace("\\\n", " "), re.M | re.S)
    for line in block.splitlines()
]
# Small enough for a moment.
SMALL = {
    "seed=0, validation": "seed=0, hidden_sizes=[8], validation",
    "20_000": "20",
    'dataset="logs.npz", validation_fraction=0.2)': 'dataset="logs.npz", validation_fraction=0.5, updates=20)',
}


def test_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_columns("logs.npz", Linear().data(20).columns())
    code = PROGRAM
    for old, new in SMALL.items():
        assert old in code
        code = code.replace(old, new)
    exec(compile(code, "ope.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[-3:]] == ["1", "2", "best:"]
    assert Path(printed[-1].split()[-1]).is_dir()


def test_the_configuration_is_valid() -> None:
    [text] = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)
    config = TrainConfig(**parse_yaml(text, "ope.md").value)
    assert resolve(config).to_dict()["validation_fraction"] == 0.2


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exist_with_their_options(command: str) -> None:
    answer = CliRunner().invoke(main, [*shlex.split(command)[1:], "--help"])
    assert answer.exit_code == 0, answer.output
    options = re.findall(r"--[a-z-]+", command)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", answer.output)
    assert all(option in plain for option in options)
