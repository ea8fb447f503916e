"""Rounding: which operations give bit-identical results in a stack of learners and alone, for every instruction
set.

torch selects its CPU kernels by `ATEN_CPU_CAPABILITY` when it is imported, so each set needs a new interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from benchmarks.speed.rounding import available_sets
from tests.rounding import activation, differing
from tests.runs import mostly_slow

ROOT = Path(__file__).parents[1]


def test_operations_of_losses_do_not_depend_on_the_size_of_a_tensor() -> None:
    """Products aside: how a library rounds these for one shape and for another is up to it."""
    assert differing() == []


VECTORS = ("AVX2", "AVX512")


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() not in VECTORS, reason="needs a vector instruction set")
def test_the_sweep_finds_an_operation_that_does() -> None:
    """With vectors the last elements of a tensor are computed one by one, here by another formula."""
    found = {"softplus": lambda x: F.softplus(-2.0 * x)} | {name: activation(name) for name in ("elu", "silu")}
    assert differing(found) == sorted(found)


# Under every instruction set that the machine has.


def start(capability: str, *words: str) -> subprocess.Popen[str]:
    """A new interpreter, because torch chooses its kernels when it is imported."""
    places = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, *words],
        env=os.environ | {"ATEN_CPU_CAPABILITY": capability, "OMP_NUM_THREADS": "1", "PYTHONPATH": places},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("capability", mostly_slow(available_sets(), "default"))
def test_the_handful_of_bits_under_every_instruction_set(capability: str) -> None:
    """What `tests.rounding` checks; the set of this process is that of the suite."""
    if capability == torch.backends.cpu.get_cpu_capability().lower():
        pytest.skip("the suite itself runs under it")
    process = start(capability, "-m", "tests.rounding")
    text, _ = process.communicate(timeout=240)
    assert process.returncode == 0, text
    found = json.loads(text.splitlines()[-1])
    assert found.pop("set") == capability
    assert found == {check: [] for check in found}
    assert len(found) == 5


BIT_LEVEL = (
    "test_exact_resume",
    "test_population_runs",
    "test_population_resume",
    "test_population_updates",
    "test_overlap",
    "test_joint_acting",
    "test_study_origins",
    "test_evaluation",
    "test_acceleration",
)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("capability", available_sets())
def test_files_that_compare_bits_under_every_instruction_set(capability: str, tmp_path: Path) -> None:
    if capability == torch.backends.cpu.get_cpu_capability().lower():
        pytest.skip("the suite itself runs under it")
    files = [f"tests/{name}.py" for name in BIT_LEVEL]
    words = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "runs"), *files]
    process = start(capability, *words)
    text, _ = process.communicate()
    assert process.returncode == 0, text[-4_000:]
