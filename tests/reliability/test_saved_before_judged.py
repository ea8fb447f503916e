"""Promise 25: work is saved before evaluation; a signal ends an evaluation; evaluation episodes are bounded."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from rl_training.environments.playing import UNLIMITED_EPISODE_STEPS, Evaluator
from rl_training.experiment.checkpointing import list_checkpoints
from rl_training.experiment.config import TrainConfig
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session
from rl_training.runtime.workflows import evaluate_checkpoint
from tests.reliability.faulty_worlds import FAULTY
from tests.reliability.processes import Child, wait_for
from tests.reliability.selection import REGIMES_IN_ONE
from tests.runs import differences, mostly_slow, resume, run_record, tiny, train, trainer_state


def endless(algo: str, folder: Path, **fields: Any) -> TrainConfig:
    """An environment without a time limit whose episodes never end."""
    world = {"env_id": FAULTY, "env_kwargs": {"endless": True}}
    return tiny(algo, folder, **world | fields)


@pytest.mark.parametrize("algo", REGIMES_IN_ONE)
def test_an_environment_that_never_ends_does_not_block_a_run(
    algo: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = train(endless(algo, tmp_path, eval_max_steps=70))
    assert result.metrics["eval_length_mean"] == 70
    assert run_record(result.run_dir)["status"] == "finished"
    said = [line for line in capfd.readouterr().err.splitlines() if "are cut after 70 steps" in line]
    [line] = said
    assert line.startswith("warning: evaluation episodes are cut after 70 steps, which Faulty-v0 does not end by ")


def test_the_default_bound_of_evaluation_episodes(tmp_path: Path) -> None:
    """The environment's own limit applies; without one, the default does; a setting overrides both."""

    def bound(**fields: Any) -> int | None:
        return Evaluator(tiny("sac", tmp_path, **{"eval_max_steps": None} | fields), None).bound  # type: ignore[arg-type]

    assert bound(env_id="Pendulum-v1") is None
    assert bound(env_id="Pendulum-v1", eval_max_steps=9) == 9
    assert bound(env_id=FAULTY) == UNLIMITED_EPISODE_STEPS
    assert bound(env_id=FAULTY, env_kwargs={"max_episode_steps": 40}) is None


def test_episodes_with_their_own_time_limit_are_not_truncated(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = train(tiny("sac", tmp_path, eval_max_steps=200))  # Pendulum's own
    assert result.metrics["eval_length_mean"] == 200
    assert "are cut" not in capfd.readouterr().err


def test_evaluating_a_checkpoint_is_bounded_too(tmp_path: Path) -> None:
    result = train(endless("sac", tmp_path, eval_episodes=0))
    with pytest.warns(UserWarning, match="evaluation episodes are cut after 33 steps"):
        metrics = evaluate_checkpoint(result.run_dir, 2, changes={"eval_max_steps": 33})
    assert metrics["eval_length_mean"] == 33


@pytest.mark.parametrize("number", mostly_slow([signal.SIGTERM, signal.SIGINT, signal.SIGHUP], signal.SIGTERM))
def test_a_signal_ends_the_last_evaluation_and_nothing_is_lost(
    number: int, tmp_path: Path, children: list[Child]
) -> None:
    config = endless("td3", tmp_path, eval_max_steps=10**9, env_kwargs={"endless": True, "wait": 0.001})
    child = Child(lambda: train(config), tmp_path.with_suffix(".txt"))
    children.append(child)
    wait_for(lambda: list(tmp_path.glob("*/checkpoints/step_000000060")))
    time.sleep(0.2)
    assert child.poll() is None, "it plays for ever"
    child.send(number)
    assert child.wait(20) == 128 + number, child.text()
    [run] = tmp_path.iterdir()
    assert run_record(run)["status"] == "interrupted"
    resumed = resume(run, changes={"eval_max_steps": 50})
    assert resumed.metrics["eval_length_mean"] == 50


class SignalWhileEvaluating(Callback):
    """Sends a signal to this process in the middle of the evaluation at a tick."""

    def __init__(self, tick: int | None = None) -> None:
        self.tick = tick

    def on_training_start(self, session: Session) -> None:
        assert session.evaluations._evaluator is not None
        play = session.evaluations._evaluator.run

        def run(policy: Any, episodes: int, interrupted: Any) -> Any:
            if session.clock.ticks == self.tick:
                os.kill(os.getpid(), signal.SIGTERM)
                self.tick = None
            return play(policy, episodes, interrupted)

        session.evaluations._evaluator.run = run  # type: ignore[method-assign]


@pytest.mark.parametrize("algo", REGIMES_IN_ONE)
def test_an_interrupted_evaluation_is_repeated_by_the_resumed_run(algo: str, tmp_path: Path) -> None:
    """The resumed run has the same evaluations, log and patience as an uninterrupted one."""
    kwargs = {"eval_interval": 10, "early_stopping": {"patience": 50}}
    config = tiny(algo, tmp_path, kwargs=kwargs, log_interval=10)
    child = Child(lambda: train(config, [SignalWhileEvaluating(30)]), tmp_path.with_suffix(".txt"))
    assert child.wait() == 143, child.text()
    [run] = tmp_path.iterdir()
    [checkpoint] = list_checkpoints(run / "checkpoints")
    assert checkpoint.name == "step_000000030"
    assert trainer_state(checkpoint)["broken_off"] == 0
    resumed = resume(run, [SignalWhileEvaluating()])
    straight = train(config, [SignalWhileEvaluating()])
    assert differences(straight, resumed) == []
    assert run_record(run)["exact_resume"] is True


@pytest.mark.parametrize("algo", REGIMES_IN_ONE)
def test_the_last_step_is_saved_before_it_is_evaluated(algo: str, tmp_path: Path) -> None:
    seen: list[tuple[str, Any]] = []

    class Look(Callback):
        def on_training_start(self, session: Session) -> None:
            assert session.evaluations._evaluator is not None
            play = session.evaluations._evaluator.run

            def run(*arguments: Any) -> Any:
                saved = list_checkpoints(session.run.checkpoints)[-1]
                seen.append((saved.name, trainer_state(saved)["evaluated_at"]))
                return play(*arguments)

            session.evaluations._evaluator.run = run  # type: ignore[method-assign]

    result = train(tiny(algo, tmp_path), [Look()])
    assert seen == [(result.checkpoint_path.name, None)]
    last = trainer_state(result.checkpoint_path)
    assert last["last_evaluation"]["eval_return_mean"] == result.metrics["eval_return_mean"]
