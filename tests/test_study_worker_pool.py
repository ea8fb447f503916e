"""Several worker processes of one sweep: killed ones are replaced, signals reach them, none outlives its parent."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment.strict_yaml import dump_yaml
from rl_training.study import Study
from rl_training.study.claims import read_claim
from rl_training.study.plan import read_plan
from rl_training.study.worker_pool import LocalPool, parse_gpus
from tests.reliability.processes import Child, command, fork_for_spawn, wait_for
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


def sweeping(tmp_path: Path, **fields: object) -> tuple[Child, Path]:
    """A sweep with two workers, under way."""
    (tmp_path / "tiny.yaml").write_text(dump_yaml(tiny_study(set=LONGER, **fields)))
    words = ("sweep", tmp_path / "tiny.yaml", "--workers", 2, "--output-dir", tmp_path / "studies")
    return Child(command(*words), tmp_path / "output"), tmp_path / "studies" / "tiny"


def is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


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
    sweep, folder = sweeping(tmp_path)
    wait_for(lambda: len({path.parent for path in folder.glob("runs/*/checkpoints/step_*")}) == 2)
    workers = owners(folder)
    assert len(workers) == 2
    sweep.send(signal.SIGINT)
    assert sweep.wait() == 130, sweep.text()
    assert "\ninterrupted; the same command goes on" in sweep.text()
    assert not any(is_there(pid) for pid in workers)
    assert owners(folder) == set()
    assert Study(folder).run().counts["done"] == 2


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
