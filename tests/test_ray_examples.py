"""The examples and the Ray section of docs/guides/seeds.md: programs run, commands and configuration are valid."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rl_training.cli import main
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import resolve
from rl_training.experiment.strict_yaml import parse_yaml
from rl_training.study import Study

pytestmark = [pytest.mark.slow, pytest.mark.pages]
pytest.importorskip("ray")
ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "guides" / "seeds.md").read_text(encoding="utf-8").partition("\n## Ray\n")[2]
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)


def program(*words: object, folder: Path) -> str:
    """What a Python program prints, in a folder and with this source."""
    variables = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    variables["RAY_ADDRESS"] = "local"  # not the cluster of a test that runs at the same time
    environment = os.environ | variables
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_programs_of_the_page_run(tmp_path: Path) -> None:
    [code] = BLOCKS
    assert PAGE.count("```python") == 1
    (tmp_path / "page.py").write_text(code.replace("20000", "1100").replace("0..2", "0..1"))
    assert "'gamma'" in program("page.py", folder=tmp_path)
    assert Study(tmp_path / "studies" / "gamma").status().counts["done"] == 4


def test_the_study_of_the_example(tmp_path: Path) -> None:
    words = ("--ray", "local", "--steps", 1100, "--seeds", "0..1", "--output-dir", "shared")
    text = program(ROOT / "examples" / "study_on_ray.py", *words, folder=tmp_path)
    assert re.search(r"^4/4 done: ", text, re.M), text
    assert re.search(r"^best: \{'gamma': 0\.9+\}, return \d", text, re.M), text


def test_ray_tune_calls_a_managed_class(tmp_path: Path) -> None:
    pytest.importorskip("ray.tune", exc_type=ImportError, reason="needs ray[tune]")
    words = ("--trials", 2, "--steps", 400, "--output-dir", "tuned")
    text = program(ROOT / "examples" / "ray_tune.py", *words, folder=tmp_path)
    assert re.search(r"^best: \{'learning_rate': .*\}, return -\d", text, re.M), text
    assert len(list((tmp_path / "tuned" / "runs").glob("*/*/run.json"))) == 2


@pytest.mark.parametrize("command", re.findall(r"^(rl-training .*?)(?:  #.*)?$", PAGE, re.M))
def test_commands_exist_with_their_options(command: str) -> None:
    answer = CliRunner().invoke(main, [*shlex.split(command)[1:], "--help"])
    assert answer.exit_code == 0, answer.output


def test_the_configuration_is_valid() -> None:
    [text] = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)
    config = TrainConfig(**parse_yaml(text, "seeds.md").value)
    resolve(config)
    assert config.environments == "ray"
