"""Threads wait for each other asleep, unless the user has decided otherwise, and no number depends on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS", "OMP_DISPLAY_ENV")
CLEAN = {key: value for key, value in os.environ.items() if key not in VARIABLES} | {"PYTHONPATH": str(SOURCE)}


def python(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=CLEAN | variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    ("variables", "policy"),
    [
        ({}, "PASSIVE"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"),
        ({"GOMP_SPINCOUNT": "7"}, "None"),
        ({"KMP_BLOCKTIME": "1"}, "None"),
    ],
)
def test_what_the_user_has_set_stays(variables: dict[str, str], policy: str) -> None:
    program = "import os, rl_training; print(os.environ.get('OMP_WAIT_POLICY'))"
    assert python(program, **variables).stdout.strip() == policy


def test_openmp_gets_to_know() -> None:
    """It prints its settings when it is loaded; other builds of torch may have no GNU OpenMP."""
    shown = python("import rl_training, torch", OMP_DISPLAY_ENV="VERBOSE").stderr
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in shown


# Threads of the process after a learner was built twice, and a fingerprint of its networks after some updates.
TRAIN = """
import hashlib, os
import torch as first
from benchmarks import cases
from rl_training.runtime.building import prepare_process
for _ in range(2): prepare_process(first.device("cpu"))
updater = cases.updater(cases.find(["sac"])[0], first.device("cpu"))
updater.run(3)
digest = hashlib.sha256()
for parameter in updater.learner.model.parameters(): digest.update(parameter.detach().numpy().tobytes())
print(first.get_num_threads(), len(os.listdir("/proc/self/task")), digest.hexdigest())
"""


@pytest.mark.slow
def test_neither_import_order_nor_waiting_changes_a_number() -> None:
    path = {"PYTHONPATH": f"{SOURCE}:{SOURCE.parent}", "OMP_NUM_THREADS": "2"}
    asked = python("import rl_training\n" + TRAIN, **path).stdout.split()
    spinning = python(TRAIN, **path, OMP_WAIT_POLICY="ACTIVE").stdout.split()
    late = python(TRAIN, **path).stdout.split()
    assert asked == spinning
    assert late[0] == asked[0] == "2"
    assert late[2] == asked[2]
    assert int(late[1]) == int(asked[1]) + 2  # an idle team: the thread that called for it, and one more
