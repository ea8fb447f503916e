"""Several worker processes of one sweep: killed ones are replaced, signals reach them, none outlives its parent."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rl_training.errors import ConfigError
from rl_training.experiment.strict_yaml import dump_yaml
from rl_training.study import Study
from rl_training.study.claims import read_claim
from rl_training.study.crew import parse_gpus
from rl_training.study.plan import read_plan
from tests.reliability.processes import Child, command, wait_for
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


def test_a_worker_that_is_killed_is_replaced_and_the_results_are_the_same(tmp_path: Path) -> None:
    sweep, folder = sweeping(tmp_path, seeds=[0, 1, 2])
    wait_for(lambda: list(folder.glob("runs/*/checkpoints/step_*")))
    os.kill(min(owners(folder)), signal.SIGKILL)
    assert sweep.wait() == 0, sweep.text()
    assert "tiny: 3 done" in sweep.text()
    assert "3/3 done: CartPole-v1__dqn__" in sweep.text()
    study_in(tmp_path / "b", set=LONGER, seeds=[0, 1, 2]).run()
    assert differing(folder, tmp_path / "b" / "tiny") == []


def test_a_signal_to_the_sweep_stops_its_workers_who_save(tmp_path: Path) -> None:
    sweep, folder = sweeping(tmp_path)
    wait_for(lambda: len(owners(folder)) == 2 and len(list(folder.glob("runs/*/checkpoints/step_*"))) > 1)
    workers = owners(folder)
    sweep.send(signal.SIGINT)
    assert sweep.wait() == 130, sweep.text()
    assert "the same command goes on" in sweep.text()
    assert not any(is_there(pid) for pid in workers)
    assert owners(folder) == set()
    assert Study(folder).run().counts["done"] == 2


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
