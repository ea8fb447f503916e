"""Every program and every command in the README works, with budgets a hundred times smaller."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rl_training.cli import main
from rl_training.experiment import registry
from rl_training.experiment.config import TrainConfig, packaged_configs
from rl_training.experiment.registry import AlgorithmSpec, resolve
from rl_training.experiment.strict_yaml import parse_yaml

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^<!-- run: (\w+) -->\n```python\n(.*?)^```$", README, re.M | re.S)
COMMANDS = [
    line.partition("  #")[0].strip()
    for block in re.findall(r"^```bash\n(.*?)^```$", README, re.M | re.S)
    for line in block.splitlines()
    if line.startswith("rl-training")
]


def shortened(code: str) -> str:
    """The same program with a hundredth of its steps."""
    number = r"(total_timesteps|learning_starts)=(\d[\d_]*)"
    return re.sub(number, lambda found: f"{found[1]}={max(1, int(found[2]) // 100)}", code)


def test_every_python_block_is_marked_to_be_run() -> None:
    assert len(BLOCKS) == README.count("```python") > 0


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in BLOCKS))
def test_programs_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": name}
    for _, code in (block for block in BLOCKS if block[0] == name):
        exec(compile(shortened(code), f"README.md ({name})", "exec", dont_inherit=True), scope)
        if isinstance(spec := scope.get("SPEC"), AlgorithmSpec):
            monkeypatch.setitem(registry._SPECS, spec.name, spec)
    assert len(list((tmp_path / "runs").glob("*/run.json"))) == 1


@pytest.mark.parametrize("text", re.findall(r"^```yaml\n(.*?)^```$", README, re.M | re.S))
def test_configurations_are_valid(text: str) -> None:
    resolve(TrainConfig(**parse_yaml(text, "README.md").value))


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exist_with_their_options(command: str) -> None:
    """`--help` is answered only after every option before it was understood."""
    arguments = shlex.split(command)[1:]
    answer = CliRunner().invoke(main, [*arguments, "--help"])
    assert answer.exit_code == 0, answer.output
    if "--config" in arguments:
        assert arguments[arguments.index("--config") + 1] in packaged_configs()
