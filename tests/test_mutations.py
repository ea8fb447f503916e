"""`tools.mutations`: its table fits the source, a mistake is planted in a copy only, and a survivor is reported."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from rl_training.experiment.registry import algorithm_names
from tools.mutation_table import KINDS, MUTATIONS, Mutation
from tools.mutations import FAILED, PASSED, Pool, Verdict, check_mutations, chosen, mutated, planted

ROOT = Path(__file__).parents[1]
WRONG_SUM = Mutation("sign", "a sum is a difference", "sums.py", "1 + 1", "1 - 1", ("test_sums.py",))


def test_every_text_occurs_once_and_its_replacement_is_python() -> None:
    for mutation in MUTATIONS:
        source = (ROOT / "src" / "rl_training" / mutation.file).read_text(encoding="utf-8")
        ast.parse(mutated(source, mutation), mutation.name)
        assert mutation.old != mutation.new, mutation.name
        for name in mutation.tests:
            assert (ROOT / "tests" / name).is_file(), f"{mutation.name}: no tests/{name}"


def test_every_kind_and_every_learner_is_covered() -> None:
    assert {mutation.kind for mutation in MUTATIONS} == set(KINDS)
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
    files = {Path(mutation.file).stem for mutation in MUTATIONS}
    assert files >= {*algorithm_names(), "fqe", "discrete_cql"}
    assert files >= {"policies", "mlp", "replay_buffer", "sources", "collector", "moments", "schedules"}


def test_a_text_that_moved_is_an_error() -> None:
    for source, times in (("2 + 2", 0), ("1 + 1, 1 + 1", 2)):
        with pytest.raises(ValueError, match=rf"^sums.py: .* occurs {times} times, not once; change `old`"):
            mutated(source, WRONG_SUM)


def test_mistakes_are_chosen_by_name_kind_or_file() -> None:
    assert chosen([]) == list(MUTATIONS)
    assert {mutation.kind for mutation in chosen(["tanh slope"])} == {"tanh slope"}
    assert {mutation.file for mutation in chosen(["replay_buffer.py"])} == {"data/replay_buffer.py"}
    assert chosen(["no such mistake"]) == []


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A repository with one module and two test files; one of them does not test the module."""
    folder = tmp_path / "copy"
    for name, text in {
        "pyproject.toml": "[tool.pytest.ini_options]\n",
        "src/rl_training/__init__.py": "",
        "src/rl_training/sums.py": "TWO = 1 + 1\n",
        "tests/test_sums.py": "from rl_training.sums import TWO\n\n\ndef test_two():\n    assert TWO == 2\n",
        "tests/test_blind.py": "def test_nothing():\n    pass\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_planted_mistake_leaves_no_trace(copy: Path) -> None:
    path = copy / "src/rl_training/sums.py"
    with planted(copy, WRONG_SUM):
        assert path.read_text() == "TWO = 1 - 1\n"
    assert path.read_text() == "TWO = 1 + 1\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_mistake_in_the_copy_is_caught(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("rl_training", "tests")]:
        monkeypatch.delitem(sys.modules, name)  # the child imports the package of the copy
    found: list[Verdict] = []
    pool = Pool([copy])
    pool.submit(["test_blind.py", "test_sums.py"], WRONG_SUM, found.append)
    pool.wait_for_all()
    assert [verdict.code for verdict in found] == [FAILED], found[0].output
    assert found[0].failed_test == "test_sums.py::test_two"
    assert pool.free == [copy]


def test_only_a_failed_test_counts_as_caught(capsys: pytest.CaptureFixture[str]) -> None:
    codes = {"caught": FAILED, "survived": PASSED, "not collected": 2, "killed": -9}
    mutations = [WRONG_SUM._replace(name=name) for name in codes]

    class Told(Pool):
        def submit(self, tests: Any, mutation: Any, report: Any) -> None:
            report(Verdict(codes[mutation.name], "FAILED tests/test_sums.py::test_two - assert 0 == 2", 0.5))

    survivors = check_mutations(Told([]), mutations)
    assert [mutation.name for mutation in survivors] == ["survived", "not collected", "killed"]
    said = capsys.readouterr().out
    assert "caught      0.5 s  sign: caught by test_sums.py::test_two\n" in said
    assert "SURVIVED    0.5 s  sign: survived\n" in said
