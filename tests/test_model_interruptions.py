"""A model whose training was interrupted or failed: it keeps its run."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_training import SAC
from rl_training.errors import DivergedError, RunInUse
from rl_training.experiment.checkpointing import list_checkpoints
from rl_training.experiment.runs import lock_run
from rl_training.runs.fleet import MembersFailed
from rl_training.runs.session import Session
from rl_training.runs.signals import TrainingInterrupted
from tests.runs import tiny


def fail(session: Session) -> None:
    if session.clock.ticks == 25:
        raise ZeroDivisionError


def interrupt(session: Session) -> None:
    if session.clock.ticks == 25 and session.config.seed == 3:
        signal.raise_signal(signal.SIGTERM)  # a background job ignores SIGINT


@pytest.mark.parametrize(
    ("watcher", "error", "message"),
    [
        (fail, ZeroDivisionError, "^$"),
        (interrupt, TrainingInterrupted, r"at step 25; go on with: .*; in Python: model\.resume\(\)$"),
    ],
)
def test_a_model_keeps_its_run(
    watcher: Callable[[Session], None], error: type[Exception], message: str, tmp_path: Path
) -> None:
    model = SAC(tiny("sac", tmp_path, total_timesteps=40, checkpoint_interval=1_000))
    with pytest.raises(error, match=message):
        model.learn(callbacks=watcher, progress_bar=False)
    [run] = tmp_path.iterdir()
    assert model.run_dir == run
    assert [model.checkpoint_path] == list_checkpoints(run / "checkpoints")
    assert repr(model).endswith(f"trained 25 steps, {run}")
    model.predict([1.0, 0.0, 0.0])
    assert model.resume(progress_bar=False).metrics["global_step"] == 40
    assert model.learn(5, progress_bar=False).metrics["global_step"] == 45
    assert list(tmp_path.iterdir()) == [run]


def test_a_resumed_model_that_fails_has_its_newest_checkpoint(tmp_path: Path) -> None:
    model = SAC(tiny("sac", tmp_path, total_timesteps=20, checkpoint_interval=1_000, keep_checkpoints=1))
    model.learn(progress_bar=False)
    with pytest.raises(ZeroDivisionError):
        model.resume(40, fail, progress_bar=False)
    [run] = tmp_path.iterdir()
    assert [model.checkpoint_path] == list_checkpoints(run / "checkpoints")
    assert model.learn(5, progress_bar=False).metrics["global_step"] == 30


def test_a_population_keeps_its_runs(tmp_path: Path) -> None:
    model = SAC(tiny("sac", tmp_path, seed=None, seeds=[3, 2], total_timesteps=40))
    with pytest.raises(TrainingInterrupted):
        model.learn(callbacks=interrupt, progress_bar=False)
    assert [member.config.seed for member in model.members] == [3, 2]
    assert [member.run_dir for member in model.members] == sorted(tmp_path.iterdir(), reverse=True)
    results = model.learn(5, progress_bar=False)
    assert [result.metrics["global_step"] for result in results] == [30, 30]  # type: ignore[attr-defined]


@pytest.mark.parametrize("again", [40, None])
@pytest.mark.parametrize(("population", "twice"), [("off", False), ("off", True), (1, True)])
def test_seeds_one_after_another_all_continue(
    population: str | int, twice: bool, again: int | None, tmp_path: Path
) -> None:
    """Also if they were interrupted, once or twice, before the last of them was resumed.

    Those that were not resumed continue to the new total, also if it is not given `again`.
    """
    config = tiny("sac", tmp_path, seed=None, seeds=[3, 2, 1], population=population, total_timesteps=20)
    model: Any = SAC(config)
    model.learn(progress_bar=False)
    assert [result.metrics["global_step"] for result in model.learn(10, progress_bar=False)] == [30] * 3
    runs = [member.run_dir for member in model.members]

    def second(session: Session) -> None:
        if session.config.seed == 2 and session.clock.ticks == 35:
            if twice:
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt if twice else TrainingInterrupted):
        model.resume(40, second, progress_bar=False)
    assert [member._steps for member in model.members] == [40, 30 if twice else 35, 30]
    assert [result.metrics["global_step"] for result in model.resume(again, progress_bar=False)] == [40] * 3
    assert [member.run_dir for member in model.members] == runs
    assert sorted(runs) == sorted(tmp_path.iterdir())


def test_the_others_continue_if_a_member_is_interrupted_before_its_turn(tmp_path: Path) -> None:
    config = tiny("sac", tmp_path, seed=None, seeds=[3, 2], population=1, total_timesteps=20, checkpoint_interval=5)
    model: Any = SAC(config)
    model.learn(progress_bar=False)

    def stop(session: Session) -> None:
        if session.clock.ticks == 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.members[1].learn(20, stop, progress_bar=False)
    assert [member._steps for member in model.members] == [30, 20]
    assert [result.metrics["global_step"] for result in model.learn(5, progress_bar=False)] == [35, 35]
    assert len(list(tmp_path.iterdir())) == 2


def test_no_seed_is_resumed_while_one_is_in_use(tmp_path: Path) -> None:
    config = tiny("sac", tmp_path, seed=None, seeds=[3, 2], population="off", total_timesteps=20)
    model: Any = SAC(config)
    model.learn(progress_bar=False)
    with lock_run(model.members[1].run_dir), pytest.raises(RunInUse):
        model.resume(30, progress_bar=False)
    assert [member._steps for member in model.members] == [20, 20]
    for _ in range(2):  # to the last total that was trained, not to the one that was refused
        assert [result.metrics["global_step"] for result in model.resume(progress_bar=False)] == [20, 20]
    assert [result.metrics["global_step"] for result in model.resume(30, progress_bar=False)] == [30, 30]


def test_a_total_that_was_refused_is_forgotten(tmp_path: Path) -> None:
    model: Any = SAC(tiny("sac", tmp_path, total_timesteps=20))
    model.learn(progress_bar=False)
    for again in (model, SAC.load(model.run_dir)):
        with lock_run(model.run_dir), pytest.raises(RunInUse):
            again.resume(30, progress_bar=False)
        for _ in range(2):
            assert again.resume(progress_bar=False).metrics["global_step"] == 20


def test_a_diverged_seed_keeps_its_place(tmp_path: Path) -> None:
    def diverge(session: Session) -> None:
        if session.config.seed == 2 and session.clock.ticks == 15:
            raise DivergedError("a loss is NaN", first_bad="loss")

    config = tiny("sac", tmp_path, seed=None, seeds=[3, 2, 1], population="off", total_timesteps=20)
    model: Any = SAC(config.replace(checkpoint_interval=10))
    with pytest.raises(MembersFailed, match="seed 2"):
        model.learn(20, diverge, progress_bar=False)
    assert [result.metrics["global_step"] for result in model.resume(30, progress_bar=False)] == [30, 10, 30]


def test_a_model_without_a_checkpoint_is_not_trained(tmp_path: Path) -> None:
    class Unsaved(BaseException):
        """Like a second Ctrl-C: nothing is saved."""

    def end(session: Session) -> None:
        raise Unsaved

    model = SAC(tiny("sac", tmp_path))
    with pytest.raises(Unsaved):
        model.learn(callbacks=end, progress_bar=False)
    assert model.run_dir is None
