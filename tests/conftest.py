"""Fixtures of every test: one thread, so that sums have one order; finished runs for tests that only read one."""

from __future__ import annotations

import fcntl
import functools
import gc
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import typer.testing

from rl_training.display.output import Flags, flags

if TYPE_CHECKING:
    from rl_training.runs.session import TrainResult
    from tests.bare import Bare


gc.disable()  # until everything is imported


def pytest_collection_finish() -> None:
    """What was imported until here stays: the garbage collector need not look through it again and again."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _fsync_returns_at_once() -> None:
    """A killed process loses nothing that it has written; only a power cut would, and no test can make one.
    `test_durable_writes` checks where fsync is called."""
    os.fsync = lambda fd: None


@pytest.fixture(autouse=True, scope="session")
def _event_files_in_the_order_of_their_names() -> None:
    """Viewers sort event files by second, host and process: a run that is resumed in the second in which its last
    file was made may have to wait for the next one. Here the host is a clock."""
    from tensorboard.summary.writer import event_file_writer

    event_file_writer.socket = SimpleNamespace(gethostname=lambda: f"{time.monotonic_ns():020d}")


@pytest.fixture(autouse=True, scope="session")
def _commands_are_built_once() -> None:
    """`CliRunner` has Typer build every command anew for each call, which takes 30 ms."""
    typer.testing._get_command = functools.cache(typer.testing._get_command)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Networks are drawn from torch's global generator; a test's outcome may not depend on its neighbours."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_flags() -> None:
    """A command sets its flags (`--quiet`, …) when it starts and leaves them; the next test has none."""
    for name, value in vars(Flags()).items():
        setattr(flags, name, value)


class Library:
    """Finished runs, each trained once for all workers when a test first asks for it. Tests only read them; a test
    that changes a run folder copies it first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def get(self, key: object, make: Callable[[Path], TrainResult]) -> TrainResult:
        """The run of `key`, trained by `make(folder)` if no worker has trained it yet."""
        from rl_training.runs.session import TrainResult

        name = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:16]
        record = self.folder / f"{name}.json"
        with (self.folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not record.exists():
                result = make(self.folder / name)
                record.write_text(
                    json.dumps([str(result.run_dir), str(result.checkpoint_path), result.metrics]), encoding="utf-8"
                )
        run_dir, checkpoint, metrics = json.loads(record.read_text(encoding="utf-8"))
        return TrainResult(Path(run_dir), Path(checkpoint), metrics)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    base = tmp_path_factory.getbasetemp()
    return Library((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "finished-runs")


@pytest.fixture(scope="session")
def finished(library: Library) -> Callable[..., TrainResult]:
    """`finished(algo, kwargs=…, **fields)`: the finished run of `tests.runs.tiny` with these arguments."""
    from tests.runs import tiny, train

    def run(algo: str, **options: Any) -> TrainResult:
        return library.get(["tiny", algo, options], lambda folder: train(tiny(algo, folder, **options)))

    return run


@pytest.fixture(scope="session")
def runs(library: Library) -> Callable[[str], TrainResult]:
    """`runs(algo)`: a short finished run in a world with skewed observations and bounds."""
    from tests.exports import trained

    return lambda algo: library.get(["skewed", algo], lambda folder: trained(algo, folder))


@pytest.fixture(scope="session")
def loaded() -> Iterator[Bare]:
    """A process that has imported the libraries that take seconds, and nothing of this package."""
    from tests.bare import Bare

    source = Path(__file__).resolve().parent.parent / "src"
    libraries = "gymnasium.envs.classic_control, numpy, pydantic.main, rich.live, safetensors.torch, sympy"
    libraries += ", tensorboard, torch.utils.tensorboard, typer, yaml"
    variables = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    made = Bare(variables, f"import {libraries}", at_once=True)
    yield made
    made.close()


@pytest.fixture(scope="session")
def commanded() -> Iterator[Bare]:
    """A process that has called a few commands, none of which imports what is heavy."""
    from tests.bare import Bare
    from tests.test_startup import ENVIRONMENT, SHARED

    made = Bare(ENVIRONMENT, SHARED, at_once=True)
    yield made
    made.close()
