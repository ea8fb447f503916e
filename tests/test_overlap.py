"""`overlap`: updates run while the environments step, on rows up to the previous step."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from rl_training.experience.collector import Collector
from rl_training.experiment.checkpointing import find_checkpoint, read_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.populations import members_of, train_population
from rl_training.updates.updater import Updater
from tests.reliability.processes import Child
from tests.runs import EVERY_STEP, QUIET, KillAt, differences, mostly_slow, resume, run_record, tiny, train, unlike
from tests.test_exact_resume import assert_exact, eventful

OVERLAP = {"overlap": True}


def overlapped(algo: str, folder: Path, **fields: Any) -> TrainConfig:
    return eventful(algo, folder, kwargs=OVERLAP | fields.pop("kwargs", {}), **fields)


def seen_by_updates(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows there were to draw from, at each update."""
    seen: list[int] = []
    original = Updater.run

    def run(self: Updater, count: int) -> None:
        seen.extend([len(self.source)] * count)
        original(self, count)

    with monkeypatch.context() as watching:
        watching.setattr(Updater, "run", run)
        train(config)
    return seen


@pytest.mark.parametrize("num_envs", [1, 3])
def test_an_update_sees_the_rows_up_to_the_step_before(
    num_envs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many updates as without, at the same steps; each sees one step of all environments less."""
    timing = EVERY_STEP | {"learning_starts": 6, "buffer_capacity": 1_000}
    config = tiny("sac", tmp_path, kwargs=timing, num_envs=num_envs, total_timesteps=30)
    plain = seen_by_updates(config, monkeypatch)
    late = seen_by_updates(config.replace(algo_kwargs=config.algo_kwargs | OVERLAP), monkeypatch)
    assert plain
    assert late == [rows - num_envs for rows in plain]


def test_the_first_update_waits_for_the_first_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timing = OVERLAP | EVERY_STEP | {"learning_starts": 0, "buffer_capacity": 1_000}
    seen = seen_by_updates(tiny("td3", tmp_path, kwargs=timing, total_timesteps=5), monkeypatch)
    assert seen == [1, 1, 2, 3, 4]


def test_it_is_recorded_and_is_another_run(tmp_path: Path) -> None:
    late, plain = train(overlapped("sac", tmp_path)), train(eventful("sac", tmp_path))
    assert differences(late, plain)
    assert read_checkpoint(find_checkpoint(late.run_dir)).records["config"]["algo_kwargs"]["overlap"] is True


@pytest.mark.parametrize(
    ("algo", "num_envs"), mostly_slow([("sac", 1), ("dqn", 2), ("rlpd", 1)], ("dqn", 2), ("rlpd", 1))
)
def test_exact_resume(algo: str, num_envs: int, tmp_path: Path) -> None:
    assert_exact(overlapped(algo, tmp_path, num_envs=num_envs), 40)


def test_environments_in_processes_change_nothing(tmp_path: Path) -> None:
    config = overlapped("sac", tmp_path, num_envs=2)
    assert differences(train(config), train(config.replace(environments="processes"))) == ["config/environments"]


@pytest.mark.slow
def test_members_of_a_population_are_their_single_runs(tmp_path: Path) -> None:
    config = overlapped("sac", tmp_path)
    results = train_population(members_of(config.replace(seeds=[3, 4])), options=QUIET)
    for result, seed in zip(results, (3, 4)):
        assert unlike(result, train(config.replace(seed=seed))) == []


def test_killed_in_the_middle_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the updates, before the answers of the environments are received."""
    receive = Collector.receive

    def killed(self: Collector) -> None:
        if self.steps == 57:
            assert self.learner.updates > 0
            os.kill(os.getpid(), signal.SIGKILL)
        receive(self)

    runs = tmp_path / "runs"
    with monkeypatch.context() as patched:
        patched.setattr(Collector, "receive", killed)
        child = Child(lambda: train(overlapped("sac", runs), [KillAt()]), tmp_path / "output.txt")
    assert child.wait() == -signal.SIGKILL, child.text()
    [run] = runs.iterdir()
    resumed = resume(run, [KillAt()])
    assert run_record(run)["exact_resume"] is True
    assert differences(train(overlapped("sac", runs), [KillAt()]), resumed) == []
