"""Every program and every command in the README and on the command-line page works, with a hundredth of the steps.

The guides are run by tests/test_docs_pages.py.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from benchmarks.speed import picture
from rl_training.cli import main
from rl_training.experiment import registry
from rl_training.experiment.config import TrainConfig, packaged_configs
from rl_training.experiment.registry import AlgorithmSpec, resolve
from rl_training.experiment.strict_yaml import parse_yaml

pytestmark = pytest.mark.pages

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
# The other pages of docs/ have tests of their own.
PAGES = [DOCS / "command-line.md"]
GUIDES = sorted(DOCS.glob("guides/*.md"))
TEXTS = {page.name: page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *PAGES]}
README = TEXTS["README.md"]
MARKED = re.compile(r"^<!-- run: (\w+) -->\n```python\n(.*?)^```$", re.M | re.S)
BLOCKS = {page: MARKED.findall(text) for page, text in TEXTS.items()}
PROGRAMS = [(page, name) for page, blocks in BLOCKS.items() for name in dict.fromkeys(name for name, _ in blocks)]
CONFIGS = [
    text
    for page in [ROOT / "README.md", *PAGES, *GUIDES]
    for text in re.findall(r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    if "algo:" in text  # else a study's
]
COMMANDS = [
    line.partition("  #")[0].strip()
    for text in TEXTS.values()
    for block in re.findall(r"^```bash\n(.*?)^```$", text, re.M | re.S)
    for line in block.splitlines()
    if line.startswith("rl-training")
]


def shortened(code: str) -> str:
    """The same program with a hundredth of its steps."""
    number = r"(total_timesteps|learning_starts)=(\d[\d_]*)"
    return re.sub(number, lambda found: f"{found[1]}={max(1, int(found[2]) // 100)}", code)


def transitions() -> dict[str, NDArray[Any]]:
    """The data of the program that learns offline: an episode of Pendulum-v1 with random numbers."""
    rng = np.random.default_rng(0)
    return {
        "observations": rng.normal(size=(200, 3)),
        "actions": rng.uniform(-2, 2, size=(200, 1)),
        "rewards": rng.normal(size=200),
        "terminals": np.zeros(200, bool),
        "timeouts": np.arange(200) == 199,
    }


@pytest.mark.parametrize("page", TEXTS)
def test_every_python_block_is_marked_to_be_run(page: str) -> None:
    assert len(BLOCKS[page]) == TEXTS[page].count("```python")


def test_the_readme_is_short_and_starts_with_what_a_stranger_needs() -> None:
    """Installation, a program of each kind, numbers and limits, before the first picture."""
    assert len(README.splitlines()) < 283  # half of its length when it contained all of docs/
    assert README.count("](") <= 30
    order = [
        "pip install",
        "from rl_training import SAC",
        "from rl_training import IQL",
        "<!-- begin numbers -->",
        "**Not included:** PPO",
        "<picture>",
    ]
    places = [README.index(text) for text in order]
    assert places == sorted(places)
    assert len(README[: places[-1]].splitlines()) < 60
    code = {name: text.splitlines() for name, text in BLOCKS["README.md"]}
    assert (len(code["api"]), len(code["offline"])) == (8, 5)


def test_the_readme_leads_to_every_guide() -> None:
    assert [page for page in [*PAGES, *GUIDES] if f"]({page.relative_to(ROOT).as_posix()})" not in README] == []


@pytest.mark.parametrize(("name", "text"), [("speed", picture.speed()), ("numbers", picture.numbers())])
def test_the_speed_in_the_readme_is_what_was_measured(name: str, text: str) -> None:
    section = f"<!-- begin {name} -->\n{text}\n<!-- end {name} -->"
    assert section in README, "run: python -m benchmarks.speed.picture"


@pytest.mark.parametrize(("page", "name"), PROGRAMS)
def test_programs_run(page: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
    np.savez("log.npz", **transitions())
    scope: dict[str, Any] = {"__name__": name}
    for _, code in (block for block in BLOCKS[page] if block[0] == name):
        exec(compile(shortened(code), f"{page} ({name})", "exec", dont_inherit=True), scope)
        if isinstance(spec := scope.get("SPEC"), AlgorithmSpec):
            monkeypatch.setitem(registry._SPECS, spec.name, spec)
    assert len(list((tmp_path / "runs").glob("*/run.json"))) == 1


@pytest.mark.parametrize("text", CONFIGS)
def test_configurations_are_valid(text: str) -> None:
    resolve(TrainConfig(**parse_yaml(text, "page").value))


@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS))
def test_commands_exist_with_their_options(command: str) -> None:
    """`--help` is answered only after every option before it was understood."""
    arguments = shlex.split(command)[1:]
    answer = CliRunner().invoke(main, [*arguments, "--help"])
    assert answer.exit_code == 0, answer.output
    if "--config" in arguments:
        assert arguments[arguments.index("--config") + 1] in packaged_configs()
