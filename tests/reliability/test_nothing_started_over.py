"""Promise 27: existing results are never overwritten: a run with results is not restarted in its folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rl_training.errors import ConfigError
from tests.reliability.selection import REGIMES_IN_ONE
from tests.runs import logged, resume, run_record, tiny, train


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name != "lock"}


def emptied(run: Path) -> Path:
    """Delete all checkpoints, as users do to save disk space."""
    for path in (run / "checkpoints").iterdir():
        shutil.rmtree(path)
    return run


@pytest.mark.parametrize("algo", REGIMES_IN_ONE)
def test_a_finished_run_whose_checkpoints_were_deleted(algo: str, tmp_path: Path) -> None:
    run = emptied(train(tiny(algo, tmp_path, kwargs={"eval_interval": 20})).run_dir)
    before = contents(run)
    message = rf"{run.name}: has no checkpoint to resume from, but it is finished; --init-from {run}/best starts"
    with pytest.raises(ConfigError, match=message):
        resume(run)
    with pytest.raises(ConfigError, match=message):
        resume(run, changes={"total_timesteps": 200})
    assert contents(run) == before


def test_a_stopped_run_without_a_best_policy_names_another_way(tmp_path: Path) -> None:
    result = train(tiny("sac", tmp_path, eval_episodes=0))
    emptied(result.run_dir)
    with pytest.raises(
        ConfigError, match=r"it is finished; rl-training train --config .*config\.resolved\.yaml makes it again"
    ):
        resume(result.run_dir)


def test_a_run_that_had_saved_before_it_was_killed(tmp_path: Path) -> None:
    result = train(tiny("sac", tmp_path, eval_episodes=0))
    record = (result.run_dir / "run.json").read_text().replace('"status": "finished"', '"status": "running"')
    (result.run_dir / "run.json").write_text(record)
    emptied(result.run_dir)
    with pytest.raises(ConfigError, match="but its checkpoints were deleted; "):
        resume(result.run_dir)


def test_a_run_without_results_starts_again_and_keeps_its_log(tmp_path: Path) -> None:
    """The run was killed before its first checkpoint; its old rows are kept next to the new ones."""
    config = tiny("sac", tmp_path, eval_episodes=0)
    result = train(config)
    run = emptied(result.run_dir)
    record = (run / "run.json").read_text().replace('"status": "finished"', '"status": "running"')
    (run / "run.json").write_text(record.replace('"saved": true', '"saved": false'))
    old = (run / "metrics.csv").read_bytes()
    with pytest.warns(UserWarning, match="ended before its first checkpoint; it starts again"):
        again = resume(run)
    assert again.run_dir == run
    assert again.metrics == result.metrics
    assert (run / "metrics.before-1.csv").read_bytes() == old
    assert [row["step"] for row in logged(run)] == ["20", "40", "60"]
    assert run_record(run)["status"] == "finished"
