"""The notebook runs from its first to its last cell, and its stored outputs are current."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from tools.run_notebook import executed

pytestmark = pytest.mark.pages

NOTEBOOK = Path(__file__).resolve().parent.parent / "examples" / "first_steps.ipynb"
SHORTER = [
    (r"total_timesteps=(\d)_000", r"total_timesteps=\g<1>00"),
    (r"(learning_starts|eval_interval)=500", r"\1=100"),
]


def notebook() -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOK, as_version=4)


def answers(found: nbformat.NotebookNode) -> list[str]:
    """What the last line of each cell gave."""
    return [
        output.data["text/plain"]
        for cell in found.cells
        for output in cell.get("outputs", [])
        if output.output_type == "execute_result"
    ]


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel runs alongside other tests, and more threads would compete with them."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.slow
def test_it_runs(tmp_path: Path) -> None:
    shorter = notebook()
    for cell in shorter.cells:
        for long, short in SHORTER:
            cell.source = re.sub(long, short, cell.source)
    assert shorter != notebook()
    found = answers(executed(shorter, tmp_path))
    assert found[1] == "400"
    assert found[-2:] == ["True", "True"]


@pytest.mark.slow
def test_as_it_stands_it_learns(tmp_path: Path) -> None:
    found = answers(executed(notebook(), tmp_path))
    mean, returns = re.match(r"\((-?\d+), \[(.*)\]\)", found[2]).groups()  # type: ignore[union-attr]
    assert int(mean) > -600
    assert len(returns.split(",")) == 10


def test_it_holds_what_it_showed() -> None:
    cells = [cell for cell in notebook().cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell.outputs for cell in cells)
    kinds = {kind for cell in cells for output in cell.outputs for kind in output.get("data", {})}
    assert "image/png" in kinds
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)
