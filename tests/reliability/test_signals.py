"""Promise 7: after a signal the current step is finished, the state is saved, and the run resumes exactly."""

from __future__ import annotations

import functools
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from rl_training.experiment.checkpointing import list_checkpoints
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session
from rl_training.runs.signals import SignalGuard
from tests.reliability.faulty_worlds import FAULTY
from tests.reliability.processes import Child, wait_for
from tests.reliability.selection import BOTH_LOOPS
from tests.runs import differences, mostly_slow, resume, run_record, tiny, train

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}


class SignalAt(Callback):
    """Sends a signal to this process at a tick; None sends nothing."""

    name = "SignalAt"

    def __init__(self, number: int | None = None, tick: int = 0) -> None:
        self.number, self.tick, self.sent = number, tick, False

    def next_due(self, now: int) -> int | None:
        return self.tick if now < self.tick else None

    def on_step(self, session: Session) -> None:
        if self.number is not None and session.clock.now >= self.tick and not self.sent:
            self.sent = True
            os.kill(os.getpid(), self.number)


def only_run(folder: Path) -> Path:
    [run] = folder.iterdir()
    return run


@pytest.mark.parametrize("number", mostly_slow(CODES, next(iter(CODES))))
@pytest.mark.parametrize("algo", BOTH_LOOPS)
def test_a_run_that_a_signal_ended_resumes_exactly(algo: str, number: int, tmp_path: Path) -> None:
    config = tiny(algo, tmp_path, total_timesteps=45, checkpoint_interval=1_000, kwargs={"eval_interval": 15})
    tick = random.Random(f"{algo}{number}").randint(1, 40)
    child = Child(lambda: train(config, [SignalAt(number, tick)]), tmp_path.with_suffix(".txt"))
    assert child.wait() == CODES[signal.Signals(number)], child.text()
    run = only_run(tmp_path)
    assert f"interrupted at step {tick}; go on with: rl-training resume {run}" in child.text()
    assert run_record(run)["status"] == "interrupted"
    [checkpoint] = list_checkpoints(run / "checkpoints")
    assert checkpoint.name == f"step_{tick:09d}"
    resumed = resume(run, [SignalAt()])
    assert run_record(run)["exact_resume"] is True
    straight = train(config, [SignalAt()])
    ends = {"checkpoints"}  # the checkpoint saved for the signal exists in addition to the last
    assert set(differences(straight, resumed)) <= ends


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_at_any_moment_of_a_process(number: int, tmp_path: Path, children: list[Child]) -> None:
    config = tiny("sac", tmp_path / "runs", total_timesteps=240, checkpoint_interval=50)
    straight = train(config)
    straight.run_dir.rename(tmp_path / "straight")
    moved = type(straight)(
        tmp_path / "straight",
        tmp_path / "straight" / "checkpoints" / straight.checkpoint_path.name,
        straight.metrics,
    )
    rng = random.Random(number)
    for _ in range(2):
        runs = list((tmp_path / "runs").iterdir())
        action = functools.partial(resume, runs[0]) if runs else functools.partial(train, config)
        child = Child(action, tmp_path / "output.txt")
        children.append(child)
        wait_for(functools.partial(_busy, tmp_path / "runs", child))
        time.sleep(rng.uniform(0.0, 0.3))
        child.send(number)
        assert child.wait() in (0, CODES[signal.Signals(number)]), child.text()
    resumed = resume(only_run(tmp_path / "runs"))
    assert set(differences(moved, resumed)) <= {"checkpoints"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_child_of_these_tests_handles_signals_in_a_background_job_too(number: int, tmp_path: Path) -> None:
    """`nohup make test &` ignores both signals, and its children would inherit that."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        child = Child(lambda: os.kill(os.getpid(), number), tmp_path / "output.txt")
    finally:
        signal.signal(number, before)
    assert child.wait() == {signal.SIGINT: 130, signal.SIGHUP: -signal.SIGHUP}[signal.Signals(number)]


def test_a_signal_handler_installed_by_c_code_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python returns None for such a handler and cannot restore it."""
    install, before = signal.signal, signal.getsignal(signal.SIGTERM)

    def foreign(signum: int, handler: Any) -> Any:
        replaced = install(signum, handler)
        return None if signum == signal.SIGTERM and replaced is before else replaced

    try:
        with monkeypatch.context() as patched:
            patched.setattr(signal, "signal", foreign)
            with SignalGuard() as guard:
                os.kill(os.getpid(), signal.SIGTERM)
                assert guard.received == signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def _busy(folder: Path, child: Child) -> bool:
    """Whether the child has a run that handles signals, or has ended."""
    if child.poll() is not None:
        return True
    runs = [run for run in folder.glob("*") if (run / "run.json").exists() and list(run.glob("tb/events*"))]
    return any(run_record(run)["pid"] == child.pid for run in runs)


def test_sigusr1_saves_and_continues(tmp_path: Path) -> None:
    config = tiny("td3", tmp_path, checkpoint_interval=1_000)
    child = Child(lambda: train(config, [SignalAt(signal.SIGUSR1, 17)]), tmp_path.with_suffix(".txt"))
    assert child.wait() == 0, child.text()
    names = [path.name for path in list_checkpoints(only_run(tmp_path) / "checkpoints")]
    assert names == ["step_000000017", "step_000000060"]
    assert run_record(only_run(tmp_path))["status"] == "finished"


def test_a_second_ctrl_c_aborts_at_once(tmp_path: Path, children: list[Child]) -> None:
    """The environment hangs in its step, which never ends."""
    config = tiny("sac", tmp_path, env_id=FAULTY, env_kwargs={"at": 5, "how": "hang"}, eval_episodes=0)
    child = Child(lambda: train(config), tmp_path.with_suffix(".txt"))
    children.append(child)
    wait_for(lambda: _busy(tmp_path, child))
    time.sleep(0.2)
    child.send(signal.SIGINT)
    wait_for(lambda: "SIGINT: ending this step" in child.text())
    time.sleep(0.1)
    assert child.poll() is None, "the first one waits for the step"
    child.send(signal.SIGINT)
    assert child.wait(10) == 130
    assert run_record(only_run(tmp_path))["status"] == "interrupted"
