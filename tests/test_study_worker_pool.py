"""Several worker processes of one sweep: killed ones are replaced, signals reach them, none outlives its parent."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment.strict_yaml import dump_yaml
from rl_training.runs.session import Session
from rl_training.runs.signals import TrainingInterrupted
from rl_training.study import Study, worker_pool
from rl_training.study.claims import ClaimRecord, Owner, read_claim, take
from rl_training.study.plan import read_plan
from rl_training.study.worker_pool import LocalPool, parse_gpus
from tests.reliability.processes import Child, command, fork_for_spawn, is_there, wait_for
from tests.studies import differing, study_in, tiny_study

SOURCE = Path(__file__).parents[1]
LONGER = {"total_timesteps": 1000, "checkpoint_interval": 50}


@pytest.fixture(autouse=True)
def _same_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{SOURCE / 'src'}{os.pathsep}{SOURCE}")


def owners(folder: Path) -> set[int]:
    """The processes that hold a group now."""
    if not (folder / "plan.json").exists():
        return set()
    claims = [read_claim(folder, group.name) for group in read_plan(folder).groups]
    return {claim.owner.pid for claim in claims if claim and claim.owner and not claim.released}


def sweeping(tmp_path: Path, workers: int = 2, steps: int = 1000, **fields: object) -> tuple[Child, Path]:
    """A sweep with several workers, under way."""
    (tmp_path / "tiny.yaml").write_text(dump_yaml(tiny_study(set={**LONGER, "total_timesteps": steps}, **fields)))
    words = ("sweep", tmp_path / "tiny.yaml", "--workers", workers, "--output-dir", tmp_path / "studies")
    return Child(command(*words), tmp_path / "output"), tmp_path / "studies" / "tiny"


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced_and_the_results_are_the_same(tmp_path: Path) -> None:
    sweep, folder = sweeping(tmp_path, seeds=[0, 1, 2])
    wait_for(lambda: list(folder.glob("runs/*/checkpoints/step_*")))
    os.kill(min(owners(folder)), signal.SIGKILL)
    assert sweep.wait() == 0, sweep.text()
    assert "tiny: 3 done" in sweep.text()
    assert "3/3 done: CartPole-v1__dqn__" in sweep.text()
    study_in(tmp_path / "b", set=LONGER, seeds=[0, 1, 2]).run()
    assert differing(folder, tmp_path / "b" / "tiny") == []


@pytest.mark.parametrize("forked", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_signal_to_the_sweep_stops_its_workers_who_save(
    forked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if forked:
        monkeypatch.setattr(os, "posix_spawn", fork_for_spawn)
    # Interpreters start at different times; a run must not end before the other one has begun.
    sweep, folder = sweeping(tmp_path, steps=1000 if forked else 20_000)
    wait_for(lambda: len({path.parent for path in folder.glob("runs/*/checkpoints/step_*")}) == 2)
    workers = owners(folder)
    assert len(workers) == 2
    sweep.send(signal.SIGINT)
    assert sweep.wait() == 130, sweep.text()
    assert "\ninterrupted; the same command continues" in sweep.text()
    assert not any(is_there(pid) for pid in workers)
    assert owners(folder) == set()
    assert Study(folder).run().counts["done"] == 2


def test_a_worker_that_compiles_is_killed_with_its_compiler_and_loses_only_what_it_had_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Session.save

    def compile_after_saving(session: Session) -> None:
        save(session)
        if session.config.seed == 1:
            compiler = subprocess.Popen(["sleep", "1000"])
            (tmp_path / "compiler").write_text(f"{compiler.pid}\n")
            while True:  # handlers of signals run, and nothing reads their flags
                time.sleep(0.01)

    monkeypatch.setattr(os, "posix_spawn", fork_for_spawn)
    monkeypatch.setattr(worker_pool, "_PATIENCE", 0.3)
    with monkeypatch.context() as patched:
        patched.setattr(Session, "save", compile_after_saving)
        sweep, folder = sweeping(tmp_path, workers=3, steps=300, seeds=[0, 1, 2], population="off")
        wait_for(lambda: len({path.parent for path in folder.glob("runs/*/checkpoints/step_*")}) == 3)
        wait_for(lambda: (tmp_path / "compiler").exists() and "\n" in (tmp_path / "compiler").read_text())
        workers = owners(folder) | {int((tmp_path / "compiler").read_text())}
        sweep.send(signal.SIGTERM)
        assert sweep.wait() == 128 + signal.SIGTERM, sweep.text()
    assert not any(is_there(pid) for pid in workers)
    claims = [read_claim(folder, group.name) for group in read_plan(folder).groups]
    assert [claim is not None and claim.released for claim in claims] == [True, False, True]
    assert Study(folder).run().counts["done"] == 3
    study_in(tmp_path / "b", set={**LONGER, "total_timesteps": 300}, seeds=[0, 1, 2], population="off").run()
    assert differing(folder, tmp_path / "b" / "tiny") == []


def test_a_signal_during_the_start_of_a_worker_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = study_in(tmp_path, seeds=[0])
    start = worker_pool.start_worker

    def interrupted(*words: object, **options: object) -> worker_pool.WorkerProcess:
        process = start(*words, **options)  # type: ignore[arg-type]
        signal.raise_signal(signal.SIGTERM)
        return process

    monkeypatch.setattr(worker_pool, "start_worker", interrupted)
    with pytest.raises(TrainingInterrupted, match="the same command continues"):
        LocalPool(study.folder, study.plan(), 1).run(lambda: None)
    assert study.status().counts["waiting"] == 1


def test_a_worker_that_saves_is_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "_PATIENCE", 0.0)
    study = study_in(tmp_path, seeds=[0])
    (home,) = (study.folder / "runs" / trial.name for trial in study.plan().trials)
    home.mkdir(parents=True)
    child = Child(lambda: _write_until_stopped(study.folder, home), tmp_path / "output")
    wait_for(lambda: (home / "0").exists())
    process = worker_pool.WorkerProcess(child.pid, study.folder)
    process.stop(signal.SIGUSR1)
    for number in range(1, 5):
        assert process.exit_code() is None
        (home / str(number)).touch()
    assert is_there(child.pid)
    wait_for(lambda: process.exit_code() == -signal.SIGKILL)


def test_writes_to_a_run_of_another_worker_with_the_same_id_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id of a worker on another machine, or of one that has exited, may be that of this child."""
    study = study_in(tmp_path, seeds=[0])
    (home,) = (study.folder / "runs" / trial.name for trial in study.plan().trials)
    home.mkdir(parents=True)
    process, me = worker_pool.WorkerProcess(os.getpid(), study.folder), Owner.me()
    for owner, counts in ((replace(me, machine="another"), False), (replace(me, started="1"), False), (me, True)):
        claim = ClaimRecord(0, owner, released=False, deaths=0, progress=0, touched=0.0)
        monkeypatch.setattr(worker_pool, "read_claim", lambda *of, claim=claim: claim)
        assert (process._last_write() > 0) == counts


def _write_until_stopped(folder: Path, home: Path) -> None:
    os.setsid()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    assert take(folder, "g00000", Owner.me(), 60.0) is not None
    (home / "0").touch()
    while True:
        time.sleep(1.0)


@pytest.mark.slow
def test_workers_do_not_outlive_a_sweep_that_is_killed(tmp_path: Path) -> None:
    sweep, folder = sweeping(tmp_path)
    wait_for(lambda: len(owners(folder)) == 2)
    workers = owners(folder)
    sweep.kill()
    wait_for(lambda: not any(is_there(pid) for pid in workers))
    assert owners(folder) == set()


@pytest.mark.parametrize(("text", "gpus"), [(None, []), ("0,1", ["0", "1"]), ("GPU-1a", ["GPU-1a"])])
def test_gpus(text: str | None, gpus: list[str]) -> None:
    assert parse_gpus(text) == gpus


def test_odd_gpus_are_refused() -> None:
    with pytest.raises(ConfigError, match="--gpus: write 0,1"):
        parse_gpus("0,,1")


def test_workers_get_the_threads_of_the_plan_and_gpus_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []

    def spawn(program: str, command: list[str], environment: dict[str, str], **options: object) -> int:
        started.append((command, environment))
        return 1

    monkeypatch.setattr(os, "posix_spawn", spawn)
    study = study_in(tmp_path, threads=3)
    pool = LocalPool(study.folder, study.plan(), 3, ["0", "5"], allow_import=True)
    for place in range(3):
        pool._start(place)
    assert [environment["CUDA_VISIBLE_DEVICES"] for _, environment in started] == ["0", "5", "0"]
    assert {environment["OMP_NUM_THREADS"] for _, environment in started} == {"3"}
    words = ["-m", "rl_training", "work", str(study.folder), "--parent", str(os.getpid()), "--allow-import"]
    assert started[0][0][1:] == words


def test_workers_that_cannot_work_end_the_sweep_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(RLTrainingError, match=r"workers keep dying, the last by exit code 1; see .*logs"):
        study_in(tmp_path).run(workers=2)


def test_a_python_that_is_not_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ConfigError, match="a worker cannot be started: No such file"):
        study_in(tmp_path).run(workers=2)
