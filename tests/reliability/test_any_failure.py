"""Promise 26: after any failure the run is saved and can be resumed, and run.json has the cause."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_training.algorithms.base import Learner
from rl_training.errors import EnvironmentFailure
from rl_training.experiment.checkpointing import list_checkpoints
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session
from rl_training.updates.updater import Updater
from tests.reliability.faulty_worlds import FAULTY
from tests.reliability.processes import Child, command, wait_for
from tests.reliability.selection import BOTH_LOOPS, REGIMES_IN_ONE
from tests.runs import EVERY_STEP, differences, mostly_slow, owned, resume, run_record, tiny, train


class At(Callback):
    """Calls a function once at a tick; without a tick it does nothing."""

    def __init__(self, tick: int | None = None, action: Callable[[], object] = lambda: None) -> None:
        self.tick, self.action = tick, action

    def next_due(self, now: int) -> int | None:
        return self.tick if self.tick is not None and now < self.tick else None

    def on_step(self, session: Session) -> None:
        if self.tick is not None and session.clock.ticks >= self.tick:
            self.tick = None
            self.action()


def lose_the_network() -> None:
    raise ConnectionError("the dashboard is gone")


FAILURES: dict[str, tuple[Callable[[], object], type[BaseException], str]] = {
    "an error": (lose_the_network, ConnectionError, "ConnectionError: the dashboard is gone"),
    "sys.exit": (lambda: sys.exit(3), SystemExit, "SystemExit: 3"),
}


@pytest.mark.parametrize("failure", mostly_slow(FAILURES, next(iter(FAILURES))))
@pytest.mark.parametrize("algo", BOTH_LOOPS)
def test_a_callback_that_raises(algo: str, failure: str, tmp_path: Path) -> None:
    """The run resumes from the step of the failure and ends as an uninterrupted one."""
    action, kind, cause = FAILURES[failure]
    tick = random.Random(f"{algo}{failure}").randint(1, 55)
    config = tiny(algo, tmp_path, checkpoint_interval=1_000, log_interval=5, kwargs={"eval_interval": 15})
    with pytest.raises(kind):
        train(config, [At(tick, action)])
    [run] = tmp_path.iterdir()
    record = run_record(run)
    assert (record["status"], record["cause"]) == ("failed", cause)
    assert [path.name for path in list_checkpoints(run / "checkpoints")] == [f"step_{tick:09d}"]
    resumed = resume(run, [At()])
    assert set(differences(train(config, [At()]), resumed)) <= {"checkpoints"}
    record = run_record(run)
    assert (record["status"], record["cause"], record["exact_resume"]) == ("finished", None, True)


@pytest.mark.parametrize("algo", REGIMES_IN_ONE)
def test_an_update_that_raises(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """No parameter has changed, so the state is saved; the step in which it failed is not resumed exactly."""
    run_updates = Updater.run

    def failing(self: Updater, count: int) -> None:
        if self.learner.updates >= 20 and count:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
        run_updates(self, count)

    config = tiny(algo, tmp_path, kwargs=owned(algo, EVERY_STEP), checkpoint_interval=1_000, log_interval=10)
    with monkeypatch.context() as patch:
        patch.setattr(Updater, "run", failing)
        with pytest.raises(RuntimeError, match="shapes"):
            train(config)
    [run] = tmp_path.iterdir()
    assert run_record(run)["status"] == "failed"
    assert run_record(run)["exact_resume"] is False
    assert "warning: a resumed run will not be exact: RuntimeError was raised inside" in capfd.readouterr().err
    assert len(list_checkpoints(run / "checkpoints")) == 1
    assert resume(run).metrics["update_count"] >= 40


def test_a_learner_that_failed_during_an_optimiser_step_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def torn(self: Learner, *_: Any, **__: Any) -> Any:
        self.step_interrupted = True
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "minimize", torn)
        with pytest.raises(RuntimeError, match="out of memory"):
            train(tiny("bc", tmp_path))
    [run] = tmp_path.iterdir()
    assert list_checkpoints(run / "checkpoints") == []
    assert "not saved: it failed in the middle of an update" in capfd.readouterr().err


def test_an_environment_that_calls_sys_exit(tmp_path: Path) -> None:
    config = tiny("sac", tmp_path, env_id=FAULTY, env_kwargs={"at": 38, "how": "sys.exit"}, eval_episodes=0)
    with pytest.raises(EnvironmentFailure, match=r"^environment 0 failed \(seed \d+, step 13\): SystemExit: 0$"):
        train(config)
    [run] = tmp_path.iterdir()
    assert run_record(run)["status"] == "failed"
    assert "SystemExit: 0" in run_record(run)["cause"]
    assert [path.name for path in list_checkpoints(run / "checkpoints")] == ["step_000000030", "step_000000037"]
    assert resume(run, changes={"env_kwargs": {}}).metrics["global_step"] == 60


def test_the_command_reports_the_failure_and_exits_with_an_error(tmp_path: Path) -> None:
    config = tiny("sac", tmp_path / "runs", env_id=FAULTY, env_kwargs={"at": 38, "how": "sys.exit"})
    values = config.to_dict()
    del values["allow_import"]
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    child = Child(command("train", "--config", tmp_path / "run.yaml"), tmp_path / "output.txt")
    assert child.wait() == 1
    assert "error: environment 0 failed" in child.text()


@pytest.mark.parametrize("algo", REGIMES_IN_ONE)
def test_a_terminal_that_is_closed(algo: str, tmp_path: Path) -> None:
    tick = random.Random(algo).randint(1, 40)
    config = tiny(algo, tmp_path, checkpoint_interval=1_000)

    def hang_up() -> None:
        os.kill(os.getpid(), signal.SIGHUP)

    child = Child(lambda: train(config, [At(tick, hang_up)]), tmp_path.with_suffix(".txt"))
    assert child.wait() == 129, child.text()
    assert "SIGHUP: ending this step and saving" in child.text()
    [run] = tmp_path.iterdir()
    assert run_record(run)["status"] == "interrupted"
    assert set(differences(train(config, [At()]), resume(run, [At()]))) <= {"checkpoints"}


def test_a_run_under_nohup_ignores_a_closed_terminal(tmp_path: Path) -> None:
    def started() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        train(tiny("td3", tmp_path), [At(10, lambda: os.kill(os.getpid(), signal.SIGHUP))])

    child = Child(started, tmp_path.with_suffix(".txt"))
    assert child.wait() == 0, child.text()
    [run] = tmp_path.iterdir()
    assert run_record(run)["status"] == "finished"


def test_the_command_under_nohup_survives_a_closed_terminal(tmp_path: Path, children: list[Child]) -> None:
    settings = tiny("sac", tmp_path / "runs", env_id=FAULTY, env_kwargs={"wait": 0.005}).to_dict()
    del settings["allow_import"]
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
    train_it = command("train", "--config", tmp_path / "run.yaml")

    def started() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        train_it()

    child = Child(started, tmp_path / "output.txt")
    children.append(child)
    wait_for(lambda: list(tmp_path.glob("runs/*/checkpoints/step_*")) or child.poll() is not None)
    child.send(signal.SIGHUP)
    assert child.wait() == 0, child.text()
    [run] = (tmp_path / "runs").iterdir()
    assert run_record(run)["status"] == "finished"


def test_the_first_ctrl_c_is_acknowledged(tmp_path: Path) -> None:
    def started() -> None:
        train(tiny("td3", tmp_path), [At(10, lambda: os.kill(os.getpid(), signal.SIGINT))])

    child = Child(started, tmp_path.with_suffix(".txt"))
    assert child.wait() == 130
    assert "SIGINT: ending this step and saving; again to abort" in child.text()
