"""The table of docs/reliability.md matches the tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", (ROOT / "docs" / "reliability.md").read_text(), re.MULTILINE)


def test_every_promise_has_a_row() -> None:
    assert [int(number) for number, _, _ in ROWS] == [*range(1, 34), 35, 36]


@pytest.mark.parametrize(("number", "promise", "tests"), ROWS, ids=[row[0] for row in ROWS])
def test_a_promise_is_a_sentence_and_its_tests_exist(number: str, promise: str, tests: str) -> None:
    assert promise.endswith(".")
    names = re.findall(r"`([^`]+)`", tests)
    assert names
    for name in names:
        file, _, function = name.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert (function in functions) if function else any(f.startswith("test_") for f in functions), name


def test_every_module_here_belongs_to_a_promise() -> None:
    told = {name.partition("::")[0] for _, _, tests in ROWS for name in re.findall(r"`([^`]+)`", tests)}
    here = {str(path.relative_to(ROOT)) for path in Path(__file__).parent.glob("test_*.py")}
    assert here - told == {"tests/reliability/test_promises.py"}


def test_a_module_names_the_promise_it_tests() -> None:
    for number, _, tests in ROWS:
        for file in re.findall(r"`(tests/reliability/[^`:]+)", tests):
            assert (ROOT / file).read_text().startswith(f'"""Promise {number}: '), file
