"""Callbacks: when they are called, what they can do, and how their state is saved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rl_training
from rl_training import SAC, Callback, TransitionDataset
from rl_training.runs.callbacks import as_callbacks
from rl_training.runs.session import Session
from tests.runs import (
    KillAt,
    Killed,
    differences,
    interrupted,
    logged,
    mostly_slow,
    resume,
    run_record,
    tiny,
    train,
    trainer_state,
)

LOOPS = ["sac", "bc", "rlpd"]


class Diary(Callback):
    """Records every call with its tick."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, int]] = []

    def _note(self, what: str, session: Session) -> None:
        self.entries.append((what, session.clock.ticks))

    def on_training_start(self, session: Session) -> None:
        self._note("start", session)

    def on_phase(self, session: Session) -> None:
        self._note("phase", session)

    def on_step(self, session: Session) -> None:
        self._note("step", session)

    def on_evaluation(self, session: Session, metrics: Mapping[str, float]) -> None:
        assert "eval_return_mean" in metrics
        self._note("evaluation", session)

    def on_checkpoint(self, session: Session, path: Path) -> None:
        assert path.is_dir()
        self._note("checkpoint", session)

    def on_training_end(self, session: Session) -> None:
        self._note("end", session)


class StopAt(Callback):
    """Stops the run at a tick; online and offline."""

    def __init__(self, tick: int) -> None:
        self.tick = tick

    def on_step(self, session: Session) -> None:
        if session.clock.ticks >= self.tick:
            session.stop(f"enough at {self.tick}")

    def next_due(self, now: int) -> int | None:
        return self.tick if now < self.tick else None


class Counter(Callback):
    def __init__(self) -> None:
        self.steps = 0

    def on_step(self, session: Session) -> None:
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]


class Predicting(Callback):
    """Stores the session and its policy's actions at each step."""

    def on_step(self, session: Session) -> None:
        self.session, self.actions = session, session.predict([[1.0, 0.0, 0.0]] * 2)
        session.predict([1.0, 0.0, 0.0], deterministic=False)


@pytest.mark.parametrize("algo", ["sac", "bc"])
def test_a_callback_uses_the_policy_and_the_data(algo: str, tmp_path: Path) -> None:
    watching = Predicting()
    plain, watched = train(tiny(algo, tmp_path / "a")), train(tiny(algo, tmp_path / "b"), [watching])
    assert differences(plain, watched) == ["config/output_dir", "trainer/callbacks"]
    expected = rl_training.load(watched.checkpoint_path).predict([1.0, 0.0, 0.0])
    np.testing.assert_allclose(watching.actions[0], expected, rtol=1e-6)
    data = watching.session.data
    assert data is None if algo == "sac" else isinstance(data, TransitionDataset)


def test_the_order_of_calls_online(tmp_path: Path) -> None:
    diary = Diary()
    kwargs = {"eval_interval": 2, "learning_starts": 4}
    config = tiny("sac", tmp_path, kwargs=kwargs, total_timesteps=4, checkpoint_interval=2)
    train(config, [diary])
    assert diary.entries == [
        ("start", 0),
        ("step", 1),
        ("evaluation", 2),  # the controls come first
        ("step", 2),
        ("checkpoint", 2),
        ("step", 3),
        ("evaluation", 4),
        ("step", 4),
        ("checkpoint", 4),
        ("end", 4),
        ("checkpoint", 4),  # the last one holds what happened at the end
    ]


def test_the_order_of_calls_through_both_phases(tmp_path: Path) -> None:
    diary = Diary()
    kwargs = {"offline_pretrain_updates": 3}
    train(tiny("rlpd", tmp_path, kwargs=kwargs, total_timesteps=2), [diary])
    assert diary.entries == [
        ("start", 0),
        ("step", 3),  # one block of updates
        ("phase", 3),
        ("step", 4),
        ("step", 5),
        ("end", 5),
        ("checkpoint", 5),  # saved before it is evaluated
        ("evaluation", 5),
        ("checkpoint", 5),  # and again, with its score
    ]


@pytest.mark.parametrize("num_envs", [1, 2, 3])
def test_a_step_is_a_vector_step(num_envs: int, tmp_path: Path) -> None:
    diary = Diary()
    config = tiny("sac", tmp_path, kwargs={"learning_starts": 12}, num_envs=num_envs, total_timesteps=12)
    train(config, [diary])
    assert [tick for what, tick in diary.entries if what == "step"] == list(range(num_envs, 13, num_envs))


@pytest.mark.parametrize("algo", LOOPS)
def test_a_callback_stops_each_loop(algo: str, tmp_path: Path) -> None:
    result = train(tiny(algo, tmp_path), [StopAt(25)])
    assert result.checkpoint_path.name == "step_000000025"
    state = trainer_state(result.checkpoint_path)
    assert (state["should_stop"], state["stop_reason"]) == (True, "enough at 25")
    assert run_record(result.run_dir)["status"] == "stopped"
    clock = state["clock"]
    assert clock["pretrain_updates" if algo == "rlpd" else "global_step"] == 25


def test_a_callback_stops_rlpd_online(tmp_path: Path) -> None:
    result = train(tiny("rlpd", tmp_path), [StopAt(30 + 25)])
    clock = trainer_state(result.checkpoint_path)["clock"]
    assert clock == {"phase": "online", "global_step": 25, "pretrain_updates": 30}


@pytest.mark.parametrize("algo", LOOPS)
def test_a_run_stopped_by_a_callback_resumes_to_the_same_result(algo: str, tmp_path: Path) -> None:
    config = tiny(algo, tmp_path, eval_episodes=0)
    stopped = train(config, [StopAt(25)])
    resumed = resume(stopped.run_dir, changes={"total_timesteps": 61})
    longer = train(config.replace(total_timesteps=61))
    assert differences(longer, resumed) == []


@pytest.mark.parametrize("algo", mostly_slow(LOOPS, "rlpd"))
def test_a_run_stopped_by_a_callback_resumes_to_its_own_budget(algo: str, tmp_path: Path) -> None:
    """A stopped run can be resumed, as with README's TimeLimit."""
    config = tiny(algo, tmp_path)
    stopped = train(config, [StopAt(25)])
    assert trainer_state(stopped.checkpoint_path)["stop_final"] is False
    resumed = resume(stopped.run_dir)
    assert set(differences(train(config), resumed)) <= {"checkpoints", "metrics.csv", *EVALUATED_ONCE_MORE}
    assert run_record(resumed.run_dir)["status"] == "finished"
    assert (trainer_state(resumed.checkpoint_path)["should_stop"], resumed.metrics["global_step"]) == (False, 60)


# A stopped run is evaluated where it stopped; an uninterrupted one is not.
EVALUATED_ONCE_MORE = {"trainer/best_return", "trainer/log_rows", "metrics"}


def test_the_first_reason_stays(tmp_path: Path) -> None:
    class Second(StopAt):
        def on_step(self, session: Session) -> None:
            if session.should_stop:
                session.stop("me too")

    result = train(tiny("sac", tmp_path), [StopAt(5), Second(5)])
    assert trainer_state(result.checkpoint_path)["stop_reason"] == "enough at 5"


def test_the_state_of_a_callback_is_saved_and_restored(tmp_path: Path) -> None:
    class KillCounter(KillAt):
        pass

    config = tiny("sac", tmp_path)
    with pytest.raises(Killed):
        train(config, [Counter(), KillCounter(30)])
    [run] = tmp_path.iterdir()
    counter = Counter()
    resume(run, [counter])
    assert counter.steps == 60


def test_the_state_of_a_callback_survives_a_resume_without_it(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(tiny("sac", tmp_path), [Counter(), KillAt(30)])
    [run] = tmp_path.iterdir()
    first = resume(run, changes={"total_timesteps": 40})
    second = resume(run, changes={"total_timesteps": 50})
    states = [trainer_state(result.checkpoint_path)["callbacks"] for result in (first, second)]
    assert states == [{"Counter": {"steps": 30}}] * 2
    counter = Counter()
    resume(run, [counter], changes={"total_timesteps": 60})
    assert counter.steps == 40


def test_the_state_of_a_setting_that_a_resume_leaves_out_is_dropped(tmp_path: Path) -> None:
    stopping = {"eval_interval": 10, "early_stopping": {"patience": 9}}
    config = tiny("sac", tmp_path, kwargs=stopping)
    run = interrupted(config, 30)
    off = {"eval_interval": None, "early_stopping": None}
    result = resume(run, changes={"algo_kwargs": config.algo_kwargs | off})
    assert trainer_state(result.checkpoint_path)["callbacks"] == {}


def test_two_callbacks_of_one_class_keep_their_states_apart(tmp_path: Path) -> None:
    class Late(Counter):
        name = "Counter"

        def on_step(self, session: Session) -> None:
            if session.clock.ticks > 20:
                super().on_step(session)

    result = train(tiny("sac", tmp_path), [Counter(), Late()])
    states = trainer_state(result.checkpoint_path)["callbacks"]
    assert (states["Counter"], states["Counter#2"]) == ({"steps": 60}, {"steps": 40})
    first, second = Counter(), Late()
    resume(result.run_dir, [first, second], changes={"total_timesteps": 70})
    assert (first.steps, second.steps) == (70, 50)


@pytest.mark.parametrize("names", ["abc", "cba"])
def test_a_resume_after_a_failure_calls_each_callback_once(names: str, tmp_path: Path) -> None:
    """The first two callbacks had been called at the step at which the third one failed."""

    class Named(Counter):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.label = name

        @property
        def name(self) -> str:
            return self.label

    class Faulty(Named):
        def on_step(self, session: Session) -> None:
            if session.clock.ticks == 45:
                raise ZeroDivisionError("mine")
            super().on_step(session)

    first, second, third = names
    with pytest.raises(ZeroDivisionError, match="mine"):
        train(tiny("sac", tmp_path), [Named(first), Named(second), Faulty(third)])
    [run] = tmp_path.iterdir()
    again = [Named(name) for name in names]
    resume(run, again)
    assert [one.steps for one in again] == [60, 60, 60]


@pytest.mark.parametrize(("at", "kwargs"), [(40, {"eval_interval": 20}), (60, {})], ids=["between", "last"])
def test_a_resume_after_a_failure_calls_each_callback_once_for_an_evaluation(
    at: int, kwargs: dict[str, Any], tmp_path: Path
) -> None:
    class Evaluated(Counter):
        def on_step(self, session: Session) -> None:
            pass

        def on_evaluation(self, session: Session, metrics: Mapping[str, float]) -> None:
            self.steps += 1
            session.log("evaluations", self.steps)

    class Faulty(Callback):
        def on_evaluation(self, session: Session, metrics: Mapping[str, float]) -> None:
            if session.clock.ticks == at:
                raise ZeroDivisionError("mine")

    class Later(Evaluated):
        pass

    config = tiny("sac", tmp_path, kwargs=kwargs)
    with pytest.raises(ZeroDivisionError, match="mine"):
        train(config, [Evaluated(), Faulty(), Later()])
    [run] = tmp_path.iterdir()
    again, straight = [[Evaluated(), Later()] for _ in range(2)]
    whole = train(config, straight)
    assert set(differences(whole, resume(run, again))) <= {"checkpoints"}
    assert [one.steps for one in again] == [one.steps for one in straight]


def test_a_callback_that_fails_ends_the_run_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    class Faulty(Callback):
        def on_step(self, session: Session) -> None:
            if session.clock.ticks == 45:
                raise ZeroDivisionError("mine")

    config = tiny("sac", tmp_path)
    with pytest.raises(ZeroDivisionError, match="mine"):
        train(config, [Faulty()])
    [run] = tmp_path.iterdir()
    assert run_record(run)["status"] == "failed"
    assert differences(train(config), resume(run)) == ["checkpoints"]  # the one saved when it failed is there too


def test_a_passive_callback_changes_nothing(tmp_path: Path) -> None:
    config = tiny("td3_bc", tmp_path)
    assert differences(train(config), train(config, [Diary()])) == ["trainer/callbacks"]


def test_learn_takes_callbacks(tmp_path: Path) -> None:
    model = SAC(tiny("sac", tmp_path))
    result = model.learn(callbacks=[StopAt(5)], progress_bar=False)
    assert result.metrics["global_step"] == 5


def test_interrupted_helper_breaks_off_where_it_says(tmp_path: Path) -> None:
    run = interrupted(tiny("bc", tmp_path), 30)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step_000000030"]


class Own(Callback):
    """Logs its own value at some ticks."""

    def on_step(self, session: Session) -> None:
        if session.clock.ticks % 7 == 0:
            session.log("sevens", session.clock.ticks)
            session.log("mine/half", session.clock.ticks / 2)


@pytest.mark.parametrize("algo", LOOPS)
def test_what_a_callback_logs_is_in_the_next_row(algo: str, tmp_path: Path) -> None:
    config = tiny(algo, tmp_path, log_interval=10, eval_episodes=0, total_timesteps=40)
    result = train(config, [Own(), Tick()])
    found = {row["step"]: row["custom/sevens"] for row in logged(result.run_dir) if "custom/sevens" in row}
    rows = {int(row["step"]) for row in logged(result.run_dir) if "train/n_updates" in row}
    last = max(rows)
    newest = {step: max(range(7, step + 1, 7), default=0) for step in rows}
    expected = {
        str(step): repr(float(seven))
        for step, seven in newest.items()
        if any(step - 10 < tick <= step for tick in range(7, last + 1, 7))
    }
    assert found == expected
    assert all("mine/half" in row for row in logged(result.run_dir) if "custom/sevens" in row)


class Tick(Callback):
    """Lets an offline loop stop at every tick."""

    def next_due(self, now: int) -> int | None:
        return now + 1


def test_values_that_were_logged_but_not_reported_survive_a_kill(tmp_path: Path) -> None:
    """Logged at 28, saved at 30, killed, reported at 40: the row equals that of an uninterrupted run."""
    config = tiny("sac", tmp_path, log_interval=40, total_timesteps=60, eval_episodes=0)
    straight = train(config, [Own(), KillAt()])
    with pytest.raises(Killed) as killed:
        train(config, [Own(), KillAt(30)])
    resumed = resume(Path(killed.value.args[0]), [Own(), KillAt()])
    assert differences(straight, resumed) == []
    assert logged(resumed.run_dir)[0]["custom/sevens"] == "35.0"


class AtTheEnd(Callback):
    """Logs at the end of a run, and after an evaluation."""

    def on_training_end(self, session: Session) -> None:
        session.log("end", 1.0)

    def on_evaluation(self, session: Session, metrics: Mapping[str, float]) -> None:
        session.log("twice", 2.0 * metrics["eval_return_mean"])


@pytest.mark.parametrize("algo", LOOPS)
def test_what_is_logged_at_the_end_is_in_the_last_row(algo: str, tmp_path: Path) -> None:
    result = train(tiny(algo, tmp_path, log_interval=7), [AtTheEnd()])
    last = logged(result.run_dir)[-1]
    assert float(last["custom/end"]) == 1.0
    assert float(last["custom/twice"]) == 2.0 * float(last["eval/mean_reward"])
    assert trainer_state(result.checkpoint_path)["logged"] == {}


def test_what_is_logged_at_the_end_is_not_reported_again(tmp_path: Path) -> None:
    """Without a final evaluation the checkpoint of the last step is the last; it must not contain the value."""
    result = train(tiny("sac", tmp_path, log_interval=7, eval_episodes=0), [AtTheEnd()])
    assert trainer_state(result.checkpoint_path)["logged"] == {}
    resume(result.run_dir, changes={"total_timesteps": 70})
    steps = [row["step"] for row in logged(result.run_dir) if row.get("custom/end")]
    assert steps == ["60"]


def test_a_run_that_continues_reports_what_was_logged_before_it_stopped(tmp_path: Path) -> None:
    """Logged at 28, stopped at 30, reported at 40, as in a run that did not stop."""
    config = tiny("sac", tmp_path, log_interval=40, total_timesteps=60, eval_episodes=0)
    straight = train(config, [Own()])
    stopped = train(config, [Own(), StopAt(30)])
    assert logged(stopped.run_dir) == []
    resumed = resume(stopped.run_dir, [Own()])
    rows = [[row.get("custom/sevens") for row in logged(one.run_dir)] for one in (straight, resumed)]
    assert rows == [["35.0", "56.0"]] * 2


def test_a_misspelt_method_is_named_once() -> None:
    class Misspelt(Callback):
        def on_stp(self, session: Session) -> None: ...
        def _on_step(self, session: Session) -> None: ...
        def on_button(self, session: Session) -> None: ...

    with pytest.warns(UserWarning, match="^callbacks: ") as caught:
        as_callbacks([Misspelt(), Diary()])
    hint = "; did you mean 'on_step'?"
    words = [f"callbacks: a run does not call Misspelt.{name}{hint}" for name in ("_on_step", "on_stp")]
    assert [str(one.message) for one in caught] == words


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "abc", None])
def test_only_numbers_are_logged(value: Any, tmp_path: Path) -> None:
    class Wrong(Callback):
        def on_step(self, session: Session) -> None:
            session.log("x", value)

    with pytest.raises(ValueError, match=r"^session\.log\('x', …\): must be a finite number, got"):
        train(tiny("bc", tmp_path), [Wrong()])
