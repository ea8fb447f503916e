"""The seeds and populations of docs/guides/seeds.md: programs run, the configuration is valid, commands exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rl_training.cli import main
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import resolve
from rl_training.experiment.strict_yaml import parse_yaml
from rl_training.runtime.populations import members_of
from tests.runs import run_record
from tests.test_readme import shortened

pytestmark = pytest.mark.pages

WHOLE = (Path(__file__).resolve().parent.parent / "docs" / "guides" / "seeds.md").read_text(encoding="utf-8")
PAGE = WHOLE.partition("\n## Studies\n")[0]  # what follows has tests in test_study_api.py and test_ray_examples.py
BLOCKS = dict(zip(("seeds", "grid"), re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)))
[COMMANDS] = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.M | re.S)
# Small enough for a moment: networks, the budget before the first update, evaluations, random data.
SMALL = {
    "learning_starts=1_000)": "learning_starts=100, hidden_sizes=[8], device='cpu', eval_episodes=1)",
    "num_episodes=10": "num_episodes=1",
    '{"dataset_kind": "random"}': '{"dataset_kind": "random", "dataset_size": 200, "hidden_sizes": [8]}',
    "total_timesteps=50_000": "total_timesteps=1_000, device='cpu', eval_episodes=1",
}


def test_every_python_block_is_run() -> None:
    assert len(BLOCKS) == PAGE.count("```python")


@pytest.mark.parametrize(("name", "members"), [("seeds", 3), ("grid", 4)])
def test_programs_run(name: str, members: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = BLOCKS[name]
    for old, new in SMALL.items():
        code = code.replace(old, new)
    exec(compile(shortened(code).replace("learning_starts=1,", "learning_starts=100,"), name, "exec"), {})
    runs = list((tmp_path / "runs").iterdir())
    assert len(runs) == members
    assert {len(run_record(run)["population"]["members"]) for run in runs} == {members}


def test_the_configuration_is_valid() -> None:
    [text] = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)
    config = TrainConfig(**parse_yaml(text, "seeds.md").value)
    resolve(config)
    assert [member.seed for member in members_of(config)] == [*range(10)]


@pytest.mark.parametrize("command", [line.partition("  #")[0] for line in COMMANDS.splitlines()])
def test_commands_exist_with_their_options(command: str) -> None:
    answer = CliRunner().invoke(main, [*shlex.split(command)[1:], "--help"])
    assert answer.exit_code == 0, answer.output
