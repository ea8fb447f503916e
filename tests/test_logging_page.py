"""docs/guides/logging.md: its programs run, its configuration is valid, and its tables are those of the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.loggers import Logger, Row, RunFacts
from rl_training.experiment.metric_names import METRICS
from rl_training.experiment.registry import resolve
from rl_training.experiment.strict_yaml import parse_yaml
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session
from tests.runs import logged, tiny, train
from tests.test_readme import shortened

pytestmark = pytest.mark.pages

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "guides" / "logging.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^<!-- run: (\w+) -->\n```python\n(.*?)^```$", PAGE, re.M | re.S))


def public(kind: type) -> set[str]:
    return {name for name, value in vars(kind).items() if inspect.isfunction(value) and not name.startswith("_")}


def methods_in(section: str) -> set[str]:
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?`) \|", text, re.M)
    return {name for cell in cells for name in re.findall(r"`(\w+)\(", cell)}


def test_every_python_block_is_marked_to_be_run() -> None:
    run_elsewhere = PAGE.count("<!-- not run: tests/test_recording.py runs it -->\n```python")
    assert len(BLOCKS) == PAGE.count("```python") - run_elsewhere > 0


@pytest.mark.parametrize("name", BLOCKS)
def test_programs_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = shortened(BLOCKS[name]).replace("% 100 ==", "% 10 ==").replace('v1", ', 'v1", log_interval=20, ')
    exec(compile(code, f"logging.md ({name})", "exec", dont_inherit=True), {"__name__": name})
    [run] = (tmp_path / "runs").iterdir()
    rows = logged(run)
    if name == "callback":
        assert "custom/largest_target" in rows[0]
    else:
        lines = (run / "metrics.jsonl").read_text().splitlines()
        assert [f'{{"step": {row["step"]}, ' in line for row, line in zip(rows, lines)] == [True] * len(rows)


def test_the_configuration_is_valid() -> None:
    [text] = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)
    resolve(TrainConfig(**parse_yaml(text, "logging.md").value))


def test_the_table_of_names_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (?:`([\w/]+)`|–) \| (.+) \|$", PAGE, re.M)
    assert rows == [tuple(metric) for metric in METRICS]


def test_every_method_is_listed() -> None:
    assert methods_in("Callbacks") == public(Callback)
    assert methods_in("Loggers") == public(Logger)


def test_what_is_named_is_there(tmp_path: Path) -> None:
    """What the page says a callback may read and call, and what a logger is given."""
    seen: dict[str, Any] = {}

    class Look(Callback):
        def on_training_end(self, session: Session) -> None:
            for dotted in re.findall(r"`session\.([\w.]+)", PAGE):
                value: Any = session
                for part in dotted.split("."):
                    value = getattr(value, part)
                seen[dotted] = value

    train(tiny("sac", tmp_path), [Look()])
    assert {"clock", "config", "run.path", "learner", "log", "evaluate", "stop", "say"} <= seen.keys()
    assert all(f"`{name}`" in PAGE for name in RunFacts.__dataclass_fields__)
    assert all(f"`{name}`" in PAGE for name in Row.__dataclass_fields__)
