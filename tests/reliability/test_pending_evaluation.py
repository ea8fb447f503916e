"""Promise 9: a run of version 0.2 that was saved during an evaluation by another process still resumes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rl_training.experiment.checkpointing import latest_valid, read_checkpoint, write_checkpoint
from rl_training.experiment.config import TrainConfig
from tests.runs import differences, interrupted, logged, resume, run_record, tiny, train


def evaluating(folder: Path) -> TrainConfig:
    """Evaluations at 10, 20, … and the end; checkpoints at 15, 30, …; a row of the log at every third step."""
    fields: dict[str, Any] = {"checkpoint_interval": 15, "log_interval": 3, "total_timesteps": 47}
    return tiny("bc", folder, kwargs={"eval_interval": 10}, eval_max_steps=20, **fields)


def as_saved_by_0_2(run: Path, killed: bool) -> None:
    """Rewrite the checkpoint of step 15 as if the evaluation of step 10 were still running.

    The rows from step 10 on are in the checkpoint; the log of a `killed` run lacks them.
    """
    newest, _ = latest_valid(run / "checkpoints")
    checkpoint, rows = read_checkpoint(newest), logged(run)
    late = [row for row in rows if int(row["step"]) >= 10]
    held = [{"step": int(row["step"]), "time": 1.0, "values": _of_training(row)} for row in late]
    assert [row["step"] for row in held] == [10, 12, 15]
    trainer = checkpoint.records["trainer"]
    before = {"best_return": None, "last_evaluation": {}, "evaluated_at": None, "log_rows": len(rows) - len(held)}
    records = {
        **checkpoint.records,
        "config": checkpoint.records["config"] | {"evaluate_beside": True},
        "trainer": trainer | before,
        "judged": {"tick": 10, "records": {"trainer": trainer}, "held": held},
    }
    networks = checkpoint.tensors["networks"]
    policy = {"weights": next(iter(networks.values())).flatten()}
    tensors = {**checkpoint.tensors, "judged": networks, "judged_policy": policy}
    shutil.rmtree(newest)
    write_checkpoint(run / "checkpoints", 15, tensors=tensors, records=records)
    shutil.rmtree(run / "best")
    if killed:
        log = (run / "metrics.csv").read_text().splitlines(keepends=True)
        (run / "metrics.csv").write_text("".join(log[: -len(held)]))


def _of_training(row: dict[str, str]) -> dict[str, float]:
    own = ("step", "time", "schema")
    return {name: float(value) for name, value in row.items() if name not in own and not name.startswith("eval/")}


@pytest.mark.parametrize("killed", [True, False])
def test_a_pending_evaluation_is_dropped_and_nothing_else(
    killed: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    straight = train(evaluating(tmp_path / "a"))
    run = interrupted(evaluating(tmp_path / "b"), 15)
    as_saved_by_0_2(run, killed)
    resumed = resume(run)
    said = capfd.readouterr().err
    dropped = "the evaluation of step 10 was not finished when the run was saved; it is dropped"
    assert said.count(f"warning: not an exact resume: {dropped}") == 1
    record = run_record(run)
    assert record["exact_resume"] is False
    assert record["inexact"] == [f"step 15: {dropped}"]
    assert logged(run) == [row for row in logged(straight.run_dir) if row["step"] != "10"]
    expected = {"config/output_dir", "trainer/log_rows", "metrics.csv"}
    assert set(differences(straight, resumed)) - {"trainer/best_return", "metrics", "checkpoints"} == expected
