"""A GPU that fails: the worker exits, and a new process resumes its trials; a trial that fails again has failed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from rl_training.cli import main
from rl_training.errors import CheckpointError, DeviceLostError, device_error
from rl_training.experiment.runs import read_run_record
from rl_training.runs.session import Session
from rl_training.study import Study, worker_pool
from rl_training.study.claims import read_claim
from rl_training.study.plan import read_plan
from rl_training.study.trials import Failure, failure_of
from rl_training.study.worker import work
from rl_training.study.worker_pool import LocalPool
from tests.reliability.processes import fork_for_spawn
from tests.runs import checkpoint_names
from tests.studies import differing, homes, study_in

Fail = Callable[[Callable[[Session], bool], int], list[int]]
SENTENCE = "CUDA error: an illegal memory access was encountered"
ADVICE = "\nSearch for `cudaErrorIllegalAddress' in https://docs.nvidia.com\nCompile with `TORCH_USE_CUDA_DSA`\n"


def illegal_access() -> RuntimeError:
    error: RuntimeError = torch.AcceleratorError(SENTENCE + ADVICE)
    return error


def planned(folder: Path, **fields: Any) -> Path:
    study = study_in(folder, **{"population": "off", **fields})
    study.plan()
    return study.folder


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Fail:
    """Raise the error in the runs that `chosen` returns True for, instead of saving after `saves` checkpoints.

    Returns the steps at which it was raised.
    """

    def fail(chosen: Callable[[Session], bool], saves: int) -> list[int]:
        raised: list[int] = []

        def save(session: Session) -> None:
            count = len(checkpoint_names(session.run.path))
            if count >= saves and chosen(session):
                raised.append(session.clock.ticks)
                raise illegal_access()
            original(session)

        monkeypatch.setattr(Session, "save", save)
        return raised

    original = Session.save
    return fail


class Unprintable(Exception):
    def __str__(self) -> str:
        raise AttributeError("message")


UNPRINTABLE = Unprintable()


def with_cause(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (illegal_access(), SENTENCE),
        (RuntimeError("Triton Error [CUDA]: misaligned address"), "Triton Error [CUDA]: misaligned address"),
        (with_cause(CheckpointError("not saved"), illegal_access()), SENTENCE),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), None),
        (torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be"), None),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), None),
        (RuntimeError("shape '[2]' is invalid for input of size 3"), None),
        (CheckpointError("a file is named CUDA error: x"), None),
        (with_cause(UNPRINTABLE, UNPRINTABLE), None),
    ],
)
def test_errors_after_which_a_process_cannot_use_its_gpu(error: Exception, found: str | None) -> None:
    assert device_error(error) == found


def test_a_trial_whose_error_is_its_own_cause_has_failed() -> None:
    error = ValueError("no")
    assert failure_of(with_cause(error, error)) == Failure(1, "ValueError: no")


def test_the_worker_exits_and_the_next_resumes_the_trial_from_its_checkpoint(
    tmp_path: Path, fail: Fail, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, said = planned(tmp_path / "a"), list[str]()
    raised = fail(lambda session: session.config.seed == 0, 2)
    with pytest.raises(DeviceLostError, match=f"^{SENTENCE}; this process cannot use the GPU any more"):
        work(folder, say=said.append)
    first, second = homes(folder)
    assert raised == [60]  # a second attempt to save would read from the GPU
    assert said == [f"released: {first.name}: {SENTENCE}"]
    assert checkpoint_names(first) == ["checkpoints/step_000000020", "checkpoints/step_000000040"]
    assert read_run_record(first)["cause"] == f"AcceleratorError: {SENTENCE}"
    assert not second.exists()
    assert Study(folder).status().counts == {"done": 0, "running": 0, "waiting": 2, "failed": 0}
    monkeypatch.undo()
    assert work(folder).failed == 0
    study_in(tmp_path / "b", population="off").run()
    assert differing(folder, tmp_path / "b" / "tiny") == []


def test_a_trial_that_fails_in_two_workers_without_progress_has_failed(
    tmp_path: Path, fail: Fail, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = planned(tmp_path)
    fail(lambda session: session.config.seed == 0, 0)
    for failed in (0, 1):
        with pytest.raises(DeviceLostError):
            work(folder)
        assert Study(folder).status().counts["failed"] == failed
    (one,) = Study(folder).status().failed
    assert one.failure == Failure(1, SENTENCE)
    assert work(folder).failed == 1
    assert Study(folder).status().counts["done"] == 1
    with pytest.raises(DeviceLostError):  # tried again on request, and again by two workers
        Study(folder).run(retry_failed=True)
    assert Study(folder).status().counts["waiting"] == 1
    monkeypatch.undo()
    assert Study(folder).run().counts["done"] == 2


def test_progress_between_two_errors_counts(tmp_path: Path, fail: Fail) -> None:
    folder = planned(tmp_path, seeds=[0])
    for saves in (1, 2):
        fail(lambda session: True, saves)
        with pytest.raises(DeviceLostError):
            work(folder)
    (group,) = read_plan(folder).groups
    claim = read_claim(folder, group.name)
    assert claim is not None
    assert (claim.released, claim.device_errors) == (True, 1)
    assert Study(folder).status().counts["waiting"] == 1


def test_all_members_of_a_population_are_released(tmp_path: Path, fail: Fail) -> None:
    folder = planned(tmp_path, population=2)
    fail(lambda session: True, 1)
    with pytest.raises(DeviceLostError):
        work(folder)
    assert [checkpoint_names(home) for home in homes(folder)] == 2 * [["checkpoints/step_000000020"]]
    assert Study(folder).status().counts["waiting"] == 2


def test_a_pool_replaces_workers_that_lost_their_gpu(
    tmp_path: Path, fail: Fail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One error in each of more trials than workers may fail."""
    seeds = list(range(worker_pool._MOST_ERRORS + 1))
    folder = planned(tmp_path / "a", seeds=seeds)
    monkeypatch.setattr(os, "posix_spawn", fork_for_spawn)

    def once(session: Session) -> bool:
        try:
            (tmp_path / f"failed-{session.config.seed}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    fail(once, 1)
    LocalPool(folder, read_plan(folder), 1).run(lambda: None)
    assert Study(folder).status().counts == {"done": len(seeds), "running": 0, "waiting": 0, "failed": 0}
    log = (folder / "logs" / "worker-1.log").read_text()
    assert log.count(f"{SENTENCE}; this process cannot use the GPU any more") == len(seeds)
    assert "Compile with" not in log


def test_a_command_reports_the_error_in_one_sentence(tmp_path: Path, fail: Fail) -> None:
    folder = planned(tmp_path, seeds=[0])
    fail(lambda session: True, 0)
    result = CliRunner().invoke(main, ["work", str(folder)])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        f"error: {SENTENCE}; this process cannot use the GPU any more: run it again"
    )
