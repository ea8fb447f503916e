"""A resume that is refused or fails early leaves the run folder as it was."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.transitions import RowLayout
from rl_training.errors import ConfigError, RunInUse
from rl_training.experiment.checkpointing import find_checkpoint, read_checkpoint, write_checkpoint
from rl_training.experiment.logging import CsvSink
from rl_training.experiment.runs import lock_run
from rl_training.runs import state
from rl_training.runs.resume_points import turns_of
from rl_training.runtime import online
from rl_training.runtime.populations import members_of, train_population
from rl_training.runtime.resume import resume_population as resume_all
from tests.runs import QUIET, KillAt, Killed, resume, run_record, tiny, train


def finished(tmp_path: Path, **kwargs: Any) -> Path:
    return train(tiny("sac", tmp_path, kwargs=kwargs)).run_dir


def test_the_log_of_a_run_in_use_is_not_renamed(tmp_path: Path) -> None:
    run = finished(tmp_path)
    for checkpoint in (run / "checkpoints").iterdir():
        checkpoint.rename(tmp_path / checkpoint.name)
    (run / "best").rename(tmp_path / "best")
    record = run_record(run)
    (run / "run.json").write_text(record_text(record | {"saved": False, "metrics": None, "status": "running"}))
    before = (run / "metrics.csv").read_bytes()
    with lock_run(run), pytest.raises(RunInUse):
        resume(run)
    assert (run / "metrics.csv").read_bytes() == before
    assert not list(run.glob("metrics.before-*"))


def record_text(record: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in record.items() if value is not None})


def population(tmp_path: Path, **fields: Any) -> list[Path]:
    config = tiny("sac", tmp_path, **fields).replace(seed=None, seeds=[1, 2])
    return [result.run_dir for result in train_population(members_of(config), options=QUIET)]


def test_a_log_that_cannot_be_opened_does_not_leave_the_run_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished(tmp_path)

    def fail(*_: Any) -> None:
        raise OSError("disk error")

    monkeypatch.setattr(CsvSink, "truncate_after", fail)
    with pytest.raises(OSError, match="disk error"):
        resume(run, changes={"total_timesteps": 80})
    assert run_record(run)["status"] == "finished"


def test_another_buffer_capacity_is_refused_before_the_log_is_cut(tmp_path: Path) -> None:
    config = tiny("sac", tmp_path, kwargs={"buffer_capacity": 100})
    with pytest.raises(Killed) as killed:
        train(config, [KillAt(30)])
    run = Path(killed.value.args[0])
    before = (run / "metrics.csv").read_bytes(), run_record(run)
    kwargs = read_checkpoint(find_checkpoint(run)).records["config"]["algo_kwargs"]
    with pytest.raises(ConfigError, match="buffer_capacity: 50 differs from the checkpoint's 100"):
        resume(run, changes={"algo_kwargs": kwargs | {"buffer_capacity": 50}})
    assert ((run / "metrics.csv").read_bytes(), run_record(run)) == before


def test_an_error_before_the_state_is_restored_keeps_the_step_of_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished(tmp_path)
    end = run_record(run)["ended_at"]

    def fail(*_: Any) -> None:
        raise ValueError("no")

    monkeypatch.setattr(state, "restore", fail)
    with pytest.raises(ValueError, match="no"):
        resume(run, changes={"total_timesteps": 80})
    assert (run_record(run)["status"], run_record(run)["ended_at"]) == ("finished", end > 0 and end)


def test_a_member_is_not_taken_out_while_another_is_in_use(tmp_path: Path) -> None:
    runs = population(tmp_path)
    before = [run_record(run) for run in runs]
    with lock_run(runs[1]), pytest.raises(RunInUse):
        resume_all(runs[0], alone=True, quiet=True)
    assert [run_record(run) for run in runs] == before


def test_a_buffer_in_another_memory_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished(tmp_path)

    def on_host(capacity: int, spaces: Any, learner: Any, num_envs: int) -> ReplayBuffer:
        return ReplayBuffer(capacity, RowLayout.of(spaces), torch.Generator())

    monkeypatch.setattr(online, "make_buffer", on_host)
    result = resume(run, changes={"total_timesteps": 80})
    assert "the replay buffer was in another memory" in run_record(result.run_dir)["inexact"][0]


def test_other_arithmetic_is_not_an_exact_resume(tmp_path: Path) -> None:
    run = finished(tmp_path)
    resume(run, changes={"total_timesteps": 80, "tf32": True})
    assert "tf32 False -> True" in run_record(run)["inexact"][0]


def test_a_finished_member_without_checkpoints_does_not_block_the_others(tmp_path: Path) -> None:
    done, going = population(tmp_path)
    shutil.rmtree(done / "checkpoints")
    record = run_record(going)
    (going / "run.json").write_text(record_text(record | {"status": "interrupted", "ended_at": None}))
    turns = turns_of({done: True, going: True}, [going], lambda text: None)
    assert [[point.home for point in turn] for turn in turns] == [[going]]
    turns = turns_of({done: True, going: True}, [done, going], lambda text: None)
    assert [[point.home for point in turn] for turn in turns] == [[going], [done]]


def test_an_older_checkpoint_alone_leaves_the_population_as_it_is(tmp_path: Path) -> None:
    runs = population(tmp_path, checkpoint_interval=20)
    before = [run_record(run) for run in runs]
    older = sorted((runs[0] / "checkpoints").iterdir())[0]
    (result,) = resume_all(older, alone=True, quiet=True)
    assert result.run_dir not in runs
    assert [run_record(run) for run in runs] == before
    assert f"trained together with {runs[1].name}" in run_record(result.run_dir)["inexact"][0]


def test_a_failed_resume_does_not_hide_that_versions_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished(tmp_path)
    record = run_record(run)
    (run / "run.json").write_text(record_text(record | {"versions": record["versions"] | {"torch": "1.0"}}))
    with monkeypatch.context() as broken:
        broken.setattr(state, "restore", lambda *_: (_ for _ in ()).throw(ValueError("no")))
        with pytest.raises(ValueError, match="no"):
            resume(run, changes={"total_timesteps": 80})
    resume(run, changes={"total_timesteps": 80})
    assert "torch 1.0 -> " in run_record(run)["inexact"][0]


@pytest.mark.parametrize("path", [".", "checkpoints", "checkpoints/{newest}"])
def test_a_run_is_found_from_inside_its_folder(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished(tmp_path)
    newest = find_checkpoint(run).name
    monkeypatch.chdir(run)
    (result,) = resume_all(path.format(newest=newest), changes={"total_timesteps": 80}, quiet=True)
    assert result.run_dir.resolve() == run
    assert result.run_dir.name == run.name


def test_an_interrupted_round_of_callbacks_continues_with_those_that_were_not_called() -> None:
    before = ["evaluation", "early_stopping", "mine"]
    assert state._callback_index(None, before, before) is None
    assert state._callback_index(1, before, before) == 1
    assert state._callback_index(1, before, ["early_stopping", "mine"]) == 0
    assert state._callback_index(1, before, ["evaluation", "mine"]) == 1
    assert state._callback_index(3, before, before) == 3
    assert state._callback_index(2, before, ["evaluation"]) == 1


def test_a_run_of_a_gpu_that_resumes_on_the_cpu_names_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A random state of 16 bytes is that of a GPU; `device: auto` continues on the CPU if there is no GPU."""
    run = train(tiny("bc", tmp_path)).run_dir
    saved = read_checkpoint(find_checkpoint(run))
    tensors = {**saved.tensors, "random": {"updates": torch.zeros(16, dtype=torch.uint8)}}
    write_checkpoint(run / "checkpoints", saved.step, tensors=tensors, records=saved.records)
    resume(run, changes={"total_timesteps": 80, "device": "cpu" if torch.cuda.is_available() else "auto"})
    (problem,) = run_record(run)["inexact"]
    expected = "the checkpoint was written on a GPU and the run continues on the CPU, with a new random state"
    assert (run_record(run)["exact_resume"], problem) == (False, f"step {saved.step}: {expected}")
    assert f"warning: not an exact resume: {expected}" in capsys.readouterr().err
