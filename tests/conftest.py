"""Fixtures of all tests: one thread, so that sums have a fixed order; finished runs for tests that read them."""

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
    """Exclude all objects imported so far from garbage collection."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _fsync_returns_at_once() -> None:
    """Disable fsync: a killed process loses none of its writes, and tests cannot simulate a power failure.
    `test_durable_writes` checks the calls of fsync."""
    os.fsync = lambda fd: None


@pytest.fixture(autouse=True, scope="session")
def _event_files_in_the_order_of_their_names() -> None:
    """Viewers sort event files by second, host and process, so a run resumed within the same second may have to
    wait for the next one. Here the host name is a counter."""
    from tensorboard.summary.writer import event_file_writer

    event_file_writer.socket = SimpleNamespace(gethostname=lambda: f"{time.monotonic_ns():020d}")


@pytest.fixture(autouse=True, scope="session")
def _commands_are_built_once() -> None:
    """Cache the command objects; `CliRunner` makes Typer rebuild them for each call, which takes 30 ms."""
    typer.testing._get_command = functools.cache(typer.testing._get_command)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Seed torch's global generator, which initialises networks, so that tests do not depend on their order."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_flags() -> None:
    """Reset the flags of commands (`--quiet`, …), which otherwise persist after a command."""
    for name, value in vars(Flags()).items():
        setattr(flags, name, value)


class Library:
    """Finished runs, each trained once for all workers on first use. Tests only read them; a test that changes a
    run folder copies it first."""

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
    """A process that has imported the slow libraries, but not this package."""
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
    """A process that has called a few commands that import no heavy modules."""
    from tests.bare import Bare
    from tests.test_startup import ENVIRONMENT, SHARED

    made = Bare(ENVIRONMENT, SHARED, at_once=True)
    yield made
    made.close()
