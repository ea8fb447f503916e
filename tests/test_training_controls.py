"""`eval_interval`, `early_stopping`, budgets and intervals take effect at the right step in every loop."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.runs.callbacks import Cadence, Callback, EarlyStoppingCallback, EvaluationCallback
from rl_training.runs.clock import Clock
from rl_training.runs.session import Session
from rl_training.runs.state import config_of, read_run_checkpoint
from rl_training.runtime.controls import ControlConfig, EarlyStopping, build_control_callbacks
from rl_training.runtime.offline import BudgetConfig, updates_per_epoch
from rl_training.runtime.online import OnlineConfig
from tests.runs import EVERY_STEP, logged, mostly_slow, resume, run_record, tiny, train, trainer_state
from tests.worlds import SCRIPTED

LOOPS = ["sac", "bc", "rlpd"]  # online, offline, both


def scripted(algo: str, folder: Path, kwargs: dict[str, Any] | None = None, **fields: Any) -> TrainConfig:
    """A world whose return no policy can change, so that nothing ever improves."""
    return tiny(algo, folder, kwargs=kwargs, **{"env_id": SCRIPTED, "total_timesteps": 100} | fields)


class Watch(Callback):
    """Records the tick of each evaluation and checkpoint."""

    def __init__(self) -> None:
        self.evaluations: list[tuple[str, int]] = []
        self.checkpoints: list[int] = []

    def on_evaluation(self, session: Session, metrics: Mapping[str, float]) -> None:
        self.evaluations.append((session.clock.phase, session.clock.now))

    def on_checkpoint(self, session: Session, path: Path) -> None:
        self.checkpoints.append(session.clock.ticks)


# Cadence.


@given(interval=st.integers(1, 50), jumps=st.lists(st.integers(1, 40), max_size=60))
def test_a_cadence_fires_once_for_each_jump_over_a_boundary(interval: int, jumps: list[int]) -> None:
    cadence, now = Cadence(interval), 0
    for jump in jumps:
        crossed = any(tick % interval == 0 for tick in range(now + 1, now + jump + 1))
        assert cadence.next(now) == min(t for t in range(now + 1, now + interval + 1) if t % interval == 0)
        now += jump
        assert cadence.due(now) == crossed
        assert not cadence.due(now)


@pytest.mark.parametrize(
    ("num_envs", "interval"),
    mostly_slow(itertools.product([1, 2, 3, 4], [7, 10, 33, 200]), (1, 7), (2, 200), (3, 10), (4, 33)),
)
def test_evaluations_count_environment_steps(num_envs: int, interval: int, tmp_path: Path) -> None:
    watch = Watch()
    kwargs = {"eval_interval": interval, "learning_starts": 90}
    train(scripted("sac", tmp_path, kwargs, num_envs=num_envs, total_timesteps=100), [watch])
    final = -(-100 // num_envs) * num_envs
    # The first vector step at or beyond each multiple of the interval, and once more at the end.
    due = [-(-multiple // num_envs) * num_envs for multiple in range(interval, final + 1, interval)]
    assert [step for _, step in watch.evaluations] == sorted({*due, final})


def test_offline_evaluations_count_updates(tmp_path: Path) -> None:
    watch = Watch()
    train(scripted("iql", tmp_path, {"eval_interval": 30}), [watch])
    assert watch.evaluations == [("offline", step) for step in (30, 60, 90, 100)]


@pytest.mark.parametrize("algo", LOOPS)
def test_an_interval_that_a_resumed_run_adds_is_due_at_its_next_multiple(algo: str, tmp_path: Path) -> None:
    kwargs = {"offline_pretrain_updates": 10} if algo == "rlpd" else {}
    run, watch = train(scripted(algo, tmp_path, kwargs, total_timesteps=50)).run_dir, Watch()
    resume(run, [watch], overrides=["eval_interval=20"], changes={"total_timesteps": 100})
    assert [step for _, step in watch.evaluations] == [60, 80, 100]


def test_rlpd_counts_updates_while_it_pretrains_and_then_steps(tmp_path: Path) -> None:
    watch = Watch()
    kwargs = {"eval_interval": 20, "offline_pretrain_updates": 50}
    train(scripted("rlpd", tmp_path, kwargs, total_timesteps=45, checkpoint_interval=25), [watch])
    pretraining = [("pretrain", 20), ("pretrain", 40)]
    assert watch.evaluations == [*pretraining, ("online", 20), ("online", 40), ("online", 45)]
    assert watch.checkpoints == [25, 50, 50 + 25, 50 + 45, 50 + 45]  # the last one again, with its score


@pytest.mark.parametrize(
    ("num_envs", "steps"),
    mostly_slow(
        [(1, [10, 20, 30, 40, 50]), (3, [12, 21, 30, 42, 51]), (4, [12, 20, 32, 40, 52])],
        (3, [12, 21, 30, 42, 51]),
    ),
)
def test_reports_count_environment_steps(num_envs: int, steps: list[int], tmp_path: Path) -> None:
    result = train(scripted("sac", tmp_path, num_envs=num_envs, total_timesteps=50, log_interval=10))
    reports = [int(row["step"]) for row in logged(result.run_dir) if "train/n_updates" in row]
    assert reports == steps


@pytest.mark.parametrize("num_envs", mostly_slow([1, 2, 3], 3))
def test_checkpoints_count_environment_steps(num_envs: int, tmp_path: Path) -> None:
    watch = Watch()
    train(scripted("sac", tmp_path, num_envs=num_envs, total_timesteps=60, checkpoint_interval=25), [watch])
    first, second = (-(-step // num_envs) * num_envs for step in (25, 50))
    assert watch.checkpoints == [first, second, 60, 60]  # the last one again, with its score


@pytest.mark.parametrize("num_envs", [1, 2, 3, 4])
@pytest.mark.parametrize(("starts", "frequency", "per_step"), [(0, 1, 1), (10, 4, 2), (7, 3, 1), (50, 1, 3)])
def test_updates_earned_do_not_depend_on_how_the_steps_were_taken(
    num_envs: int, starts: int, frequency: int, per_step: int
) -> None:
    online = OnlineConfig(
        learning_starts=starts, train_frequency=frequency, gradient_updates_per_step=per_step, buffer_capacity=1
    )
    by_hand = sum(per_step for s in range(1, 121) if s % frequency == 0 and s >= max(starts, 1))
    assert online.earned(120) == by_hand
    steps = range(0, 121, num_envs)
    assert sum(online.earned(b) - online.earned(a) for a, b in itertools.pairwise(steps)) == by_hand


def test_automatic_learning_starts_are_recorded_and_stay_if_the_total_grows(tmp_path: Path) -> None:
    kwargs = {"learning_starts": "auto"} | EVERY_STEP
    result = train(tiny("sac", tmp_path, kwargs=kwargs, total_timesteps=60, checkpoint_interval=30))
    assert "learning_starts: 6\n" in (result.run_dir / "config.resolved.yaml").read_text(encoding="utf-8")
    assert result.metrics["update_count"] == 55
    resumed = resume(result.run_dir, changes={"total_timesteps": 90})
    assert config_of(read_run_checkpoint(resumed.checkpoint_path)).algo_kwargs["learning_starts"] == 6
    assert resumed.metrics["update_count"] == 85


@pytest.mark.parametrize("value", [-1, 1.5, True, "never", None])
def test_learning_starts_is_a_number_or_auto(value: object) -> None:
    with pytest.raises(ConfigError, match=r"learning_starts must be a whole number >= 0 or 'auto', got"):
        OnlineConfig.parse({"learning_starts": value})


# Early stopping.


@pytest.mark.parametrize("algo", LOOPS)
def test_patience(algo: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The first evaluation sets the mark; the second and third do not beat it."""
    kwargs = {"eval_interval": 10, "early_stopping": {"patience": 2}}
    result = train(scripted(algo, tmp_path, kwargs))
    state = trainer_state(result.checkpoint_path)
    assert state["should_stop"] is True
    assert "no improvement" in state["stop_reason"]
    assert "2 evaluations" in state["stop_reason"]
    assert capfd.readouterr().err.count(f"stopping: {state['stop_reason']}\n") == 1
    # What RLPD scores before its first environment step does not count.
    phase, pretrained = ("offline" if algo == "bc" else "online"), (30 if algo == "rlpd" else 0)
    assert state["clock"] == {"phase": phase, "global_step": 30, "pretrain_updates": pretrained}
    assert run_record(result.run_dir)["status"] == "stopped"


def test_patience_in_rlpd_s_online_phase(tmp_path: Path) -> None:
    kwargs = {"eval_interval": 10, "early_stopping": {"patience": 4}, "offline_pretrain_updates": 30}
    state = trainer_state(train(scripted("rlpd", tmp_path, kwargs)).checkpoint_path)
    assert state["should_stop"]
    assert state["clock"] == {"phase": "online", "global_step": 50, "pretrain_updates": 30}


@pytest.mark.parametrize("algo", LOOPS)
def test_target_return(algo: str, tmp_path: Path) -> None:
    kwargs = {"eval_interval": 20, "early_stopping": {"target_return": -1e6}}
    result = train(scripted(algo, tmp_path, kwargs))
    state = trainer_state(result.checkpoint_path)
    assert state["should_stop"]
    assert state["stop_reason"].startswith("target_return -1e+06 reached: ")
    assert result.checkpoint_path.name == "step_000000020"


@pytest.mark.parametrize("algo", LOOPS)
def test_a_stopped_run_stays_stopped_until_its_budget_is_raised(
    algo: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kwargs = {"eval_interval": 20, "early_stopping": {"patience": 1}}
    stopped = train(scripted(algo, tmp_path, kwargs))
    capfd.readouterr()
    again = resume(stopped.run_dir)
    captured = capfd.readouterr()
    assert "this run had stopped: no improvement" in captured.out + captured.err
    assert again.checkpoint_path == stopped.checkpoint_path
    assert again.metrics == stopped.metrics
    further = resume(stopped.run_dir, changes={"total_timesteps": 150})
    assert further.metrics["update_count"] > stopped.metrics["update_count"]
    # Patience was spent, so the next evaluation without improvement stops it again.
    state = trainer_state(further.checkpoint_path)
    assert state["clock"]["global_step"] + state["clock"]["pretrain_updates"] == (30 + 60 if algo == "rlpd" else 60)


def test_patience_starts_anew_with_a_raised_budget(tmp_path: Path) -> None:
    kwargs = {"eval_interval": 10, "early_stopping": {"patience": 2}}
    stopped = train(scripted("bc", tmp_path, kwargs, total_timesteps=100))
    assert trainer_state(stopped.checkpoint_path)["should_stop"]
    at = stopped.metrics["update_count"]
    again = resume(stopped.run_dir, changes={"total_timesteps": 200})
    assert again.metrics["update_count"] == at + 20


@pytest.mark.parametrize(
    ("budget", "pretrained", "updates"),
    [({"max_updates": 20}, 20, 20), ({"max_updates": 50}, 30, 50), ({"max_epochs": 2}, 14, 14 + 41)],
)
def test_rlpd_s_budgets(budget: dict[str, int], pretrained: int, updates: int, tmp_path: Path) -> None:
    """30 updates on 100 rows of prior data in batches of 16, then one per step from the 20th to the 60th."""
    metrics = train(tiny("rlpd", tmp_path, kwargs=budget | EVERY_STEP, eval_episodes=0)).metrics
    assert (metrics["pretrain_updates_done"], metrics["update_count"]) == (pretrained, updates)


@pytest.mark.parametrize("state", [{"x": np.float32(3)}, {"x": float("nan")}])
def test_a_callback_whose_state_cannot_be_kept_is_refused_at_once(state: dict[str, Any], tmp_path: Path) -> None:
    class Keeper(Callback):
        def state_dict(self) -> dict[str, Any]:
            return state

    with pytest.raises(ConfigError, match="state_dict of Keeper must be plain data"):
        train(tiny("bc", tmp_path, eval_episodes=0), [Keeper()])


def test_the_best_policy_is_the_last_that_was_best(tmp_path: Path) -> None:
    """Not the one of the highest step: a killed run may have gone further."""
    result = train(tiny("bc", tmp_path, kwargs={"eval_interval": 20}))
    best = next((result.run_dir / "best").iterdir())
    best.rename(best.with_name("step_000000999"))
    state = trainer_state(result.checkpoint_path)
    resumed = resume(result.run_dir, [Better(state["best_return"])], changes={"total_timesteps": 80})
    assert [path.name for path in (resumed.run_dir / "best").iterdir()] == ["step_000000080"]


class Better(Callback):
    """Lowers what the next evaluation has to beat."""

    def __init__(self, best: float) -> None:
        self.best = best

    def on_training_start(self, session: Session) -> None:
        session.best_return = self.best - 1e6


def test_improvement_must_exceed_the_minimum() -> None:
    class Stopped(Exception):
        pass

    class Fake:
        clock = Clock()

        def stop(self, reason: str, *, final: bool) -> None:
            raise Stopped(reason)

    def feed(returns: list[float], **options: Any) -> int:
        callback = EarlyStoppingCallback(**options)
        for count, value in enumerate(returns, 1):
            try:
                callback.on_evaluation(Fake(), {"eval_return_mean": value})  # type: ignore[arg-type]
            except Stopped:
                return count
        return 0

    assert feed([1, 2, 3, 4, 5], patience=2) == 0
    assert feed([1, 1, 1], patience=2) == 3
    assert feed([1, 1, 2, 2, 2], patience=2) == 5
    assert feed([1, 1.5, 2.5, 2.9, 2.9], patience=2, min_improvement=1.0) == 5  # 2.5 > 1 + 1; 2.9 is not enough
    assert feed([1, 9, 10], target_return=10.0) == 3


def test_stopping_needs_something_to_stop_at_and_something_to_measure() -> None:
    with pytest.raises(ConfigError, match="early_stopping needs patience or target_return"):
        ControlConfig.parse({"eval_interval": 10, "early_stopping": {}})
    with pytest.raises(ConfigError, match="early_stopping needs eval_interval"):
        ControlConfig.parse({"early_stopping": {"patience": 2}})


@pytest.mark.parametrize("change", [{"eval_episodes": 0}, {"env_id": None}])
def test_stopping_without_evaluations_is_refused_before_anything_is_written(
    change: dict[str, Any], tmp_path: Path
) -> None:
    from tests.test_offline_runtime import identity_data

    kwargs = {"eval_interval": 10, "early_stopping": {"patience": 2}}
    with pytest.raises(ConfigError, match="early_stopping needs evaluations"):
        train(
            tiny("bc", tmp_path / "runs", kwargs=kwargs, **{"env_id": "Identity-v0"} | change),
            dataset=identity_data(),
        )
    assert not (tmp_path / "runs").exists()


def test_control_callbacks() -> None:
    assert build_control_callbacks(ControlConfig()) == []
    stopping = EarlyStopping(patience=3, target_return=5.0)
    evaluate, stop = build_control_callbacks(ControlConfig(eval_interval=7, early_stopping=stopping))
    assert isinstance(evaluate, EvaluationCallback)
    assert evaluate.cadence.interval == 7
    assert isinstance(stop, EarlyStoppingCallback)
    assert (stop.patience, stop.target_return, stop.min_improvement) == (3, 5.0, 0.0)


# MemoryBudget of offline runs.


@pytest.mark.parametrize(
    ("budget", "updates"),
    [
        ({}, 60),
        ({"max_updates": 25}, 25),
        ({"max_updates": 1_000}, 60),
        ({"max_epochs": 2}, 14),  # 7 batches of 16 draw at least the 100 rows
        ({"max_epochs": 3, "max_updates": 20}, 20),
        ({"max_epochs": 2, "max_updates": 20}, 14),
    ],
)
def test_offline_budgets_stop_where_they_say(budget: dict[str, int], updates: int, tmp_path: Path) -> None:
    result = train(tiny("bc", tmp_path, kwargs=budget, eval_episodes=0))
    assert result.metrics["update_count"] == result.metrics["global_step"] == updates
    assert result.metrics["epoch"] == pytest.approx(updates / 7)
    state = trainer_state(result.checkpoint_path)
    assert not state["should_stop"]


@given(
    total=st.integers(1, 10**6), size=st.integers(1, 10**6), batch=st.integers(1, 1_000), epochs=st.integers(1, 9)
)
def test_an_epoch_draws_as_many_rows_as_there_are(total: int, size: int, batch: int, epochs: int) -> None:
    per_epoch = updates_per_epoch(size, batch)
    assert (per_epoch - 1) * batch < size <= per_epoch * batch
    assert BudgetConfig(max_epochs=epochs).updates(total, size, batch) == min(total, epochs * per_epoch)


@pytest.mark.parametrize("algo", LOOPS)
def test_a_run_that_reached_its_time_limit_is_saved_and_resumes(algo: str, tmp_path: Path) -> None:
    """A limit of zero hours ends a run at its first step; with more time it resumes to its own budget."""
    config = scripted(algo, tmp_path, {"max_hours": 1e-12}, total_timesteps=60, eval_episodes=0)
    stopped = train(config)
    state = trainer_state(stopped.checkpoint_path)
    assert (state["should_stop"], state["stop_final"]) == (True, False)
    assert state["stop_reason"] == "max_hours 1e-12 reached"
    assert stopped.metrics["global_step"] < 60
    assert resume(stopped.run_dir, overrides=["max_hours=1000"]).metrics["global_step"] == 60


def test_a_run_records_its_machine_and_duration(tmp_path: Path) -> None:
    result = train(tiny("sac", tmp_path, device="auto", eval_episodes=0))
    record = run_record(result.run_dir)
    assert record["device"] in ("cpu", "cuda")
    assert record["host"] == platform.node()
    seconds = record["seconds"]
    assert seconds > 0
    resume(result.run_dir, changes={"total_timesteps": 80})
    assert run_record(result.run_dir)["seconds"] > seconds


class Clocked(Callback):
    """Notes the training time in run.json at each step."""

    def __init__(self) -> None:
        self.seconds: dict[int, float | None] = {}

    def on_step(self, session: Session) -> None:
        self.seconds[session.clock.ticks] = run_record(session.run.path).get("seconds")


def test_a_killed_run_keeps_its_duration_up_to_its_last_checkpoint(tmp_path: Path) -> None:
    clocked = Clocked()
    train(tiny("sac", tmp_path, checkpoint_interval=20, total_timesteps=60, eval_episodes=0), callbacks=[clocked])
    assert clocked.seconds[20] is None
    first, second = clocked.seconds[21], clocked.seconds[41]
    assert first is not None
    assert second is not None
    assert 0 < first < second
    assert clocked.seconds[40] == first


class Steps(Callback):
    """The number of updates at each end of an iteration."""

    def __init__(self) -> None:
        self.updates: list[int] = []

    def on_step(self, session: Session) -> None:
        self.updates.append(session.learner.updates)


def test_a_request_to_stop_waits_for_at_most_ten_updates_on_data_on_a_cpu(tmp_path: Path) -> None:
    steps = Steps()
    train(tiny("bc", tmp_path, total_timesteps=35, log_interval=1000, device="cpu"), callbacks=[steps])
    assert steps.updates == [10, 20, 30, 35]
