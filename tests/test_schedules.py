"""Learning-rate schedules, by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_training.errors import ConfigError
from rl_training.runs.callbacks import Callback
from rl_training.runs.session import Session
from rl_training.updates.schedules import OptimizationConfig
from tests.runs import ALL, EVERY_STEP, OFFLINE, logged, mostly_slow, resume, run_record, tiny, train


def factor(update: int, total: int, **settings: Any) -> float:
    return OptimizationConfig.parse(settings).factor(update, total)


def test_constant() -> None:
    assert OptimizationConfig().constant
    assert [factor(u, 10) for u in (0, 5, 10, 99)] == [1.0] * 4


def test_linear() -> None:
    assert [factor(u, 4, learning_rate_schedule="linear") for u in range(6)] == [1, 0.75, 0.5, 0.25, 0, 0]


def test_linear_to_a_tenth() -> None:
    schedule = {"type": "linear", "final_factor": 0.1}
    factors = [factor(u, 10, learning_rate_schedule=schedule) for u in (0, 5, 10, 20)]
    assert factors == pytest.approx([1.0, 0.55, 0.1, 0.1])


def test_cosine() -> None:
    factors = [factor(u, 4, learning_rate_schedule="cosine") for u in range(5)]
    assert factors == pytest.approx([1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0.0])


def test_warm_up_then_constant() -> None:
    settings = {"warmup_steps": 4}
    assert not OptimizationConfig.parse(settings).constant
    assert [factor(u, 100, **settings) for u in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_warm_up_then_linear() -> None:
    """The fall begins where the rise ends and takes the updates that are left."""
    settings = {"warmup_steps": 2, "learning_rate_schedule": "linear"}
    assert [factor(u, 6, **settings) for u in range(7)] == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]


@given(
    update=st.integers(0, 10_000),
    total=st.integers(1, 10_000),
    warmup=st.integers(0, 100),
    kind=st.sampled_from(["constant", "linear", "cosine"]),
    final=st.floats(0, 1),
)
def test_every_factor_is_a_fraction(update: int, total: int, warmup: int, kind: str, final: float) -> None:
    schedule = {"type": kind, "final_factor": final}
    assert -1e-12 <= factor(update, total, learning_rate_schedule=schedule, warmup_steps=warmup) <= 1 + 1e-12


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("exponential", "algo_kwargs.learning_rate_schedule.*exponential"),
        ({"type": "linear", "final": 0.1}, "unknown key 'final'"),
        ({"type": "linear", "final_factor": 2}, "final_factor must be <= 1"),
    ],
)
def test_invalid_schedules_are_refused(schedule: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OptimizationConfig.parse({"learning_rate_schedule": schedule}, "algo_kwargs")


class Rates(Callback):
    """The learning rate of every optimiser at the end, by name, and what it was configured to be."""

    def __init__(self) -> None:
        self.now: dict[str, float] = {}
        self.base: dict[str, float] = {}

    def on_training_end(self, session: Session) -> None:
        optimizers = session.learner.optimizers
        self.now = {name: float(optimizer.learning_rate) for name, optimizer in optimizers.items()}
        self.base = {name: optimizer.base_learning_rate for name, optimizer in optimizers.items()}


@pytest.mark.parametrize("algo", mostly_slow(ALL, "sac", "iql", "rlpd"))
def test_a_schedule_reaches_every_optimiser_but_iql_s_critics(algo: str, tmp_path: Path) -> None:
    rates = Rates()
    config = tiny(algo, tmp_path, kwargs={"learning_rate_schedule": "linear"}, eval_episodes=0)
    updates = train(config, [rates]).metrics["update_count"]
    left = 1 / updates  # the last update was made with factor 1 - (n - 1) / n
    for name, rate in rates.now.items():
        falls = algo != "iql" or name == "actor"
        if algo == "flash_sac" and name == "actor":  # whose own steps count, in every second update
            left = (1 + updates // 2) / updates
        assert rate == pytest.approx(rates.base[name] * (left if falls else 1.0), rel=1e-5), name


def test_iql_s_actor_has_a_cosine_schedule_by_default(tmp_path: Path) -> None:
    result = train(tiny("iql", tmp_path, eval_episodes=0))
    reported = [float(row["train/learning_rate"]) for row in logged(result.run_dir)]
    by_hand = [3e-4 * 0.5 * (1 + math.cos(math.pi * (update - 1) / 60)) for update in (20, 40, 60)]
    assert reported == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.parametrize("algo", mostly_slow([name for name in OFFLINE if name != "iql"], "td3_bc"))
def test_the_others_have_a_constant_rate_by_default(algo: str, tmp_path: Path) -> None:
    rates = Rates()
    train(tiny(algo, tmp_path, eval_episodes=0), [rates])
    assert rates.now == pytest.approx(rates.base)


def test_online_schedules_count_updates_not_steps(tmp_path: Path) -> None:
    """Updates start with step 20; 41 of them until step 60."""
    config = tiny("sac", tmp_path, kwargs={"learning_rate_schedule": "linear"} | EVERY_STEP, eval_episodes=0)
    reported = [float(row["train/learning_rate"]) for row in logged(train(config).run_dir)]
    assert reported == pytest.approx([3e-4 * (1 - update / 41) for update in (0, 20, 40)], rel=1e-5)


def test_rates_are_restored_before_the_next_update(tmp_path: Path) -> None:
    """A report between a resume and the first update after it shows the rate of the last update before."""
    kwargs = {"learning_rate_schedule": "linear", "train_frequency": 50, "learning_starts": 0}
    fields: dict[str, Any] = {"total_timesteps": 100, "eval_episodes": 0, "checkpoint_interval": 60}
    config = tiny("sac", tmp_path, kwargs=kwargs, **fields)
    straight = train(config)
    part = train(config.replace(total_timesteps=60))
    resumed = resume(part.run_dir, changes={"total_timesteps": 100})
    assert logged(resumed.run_dir)[-1]["train/learning_rate"] == logged(straight.run_dir)[-1]["train/learning_rate"]


def test_a_schedule_counts_the_updates_made_and_those_still_due(tmp_path: Path) -> None:
    """Also if a resumed run makes fewer updates per step than before."""
    kwargs = {"learning_rate_schedule": "linear", "gradient_updates_per_step": 4, "learning_starts": 0} | EVERY_STEP
    fields: dict[str, Any] = {
        "total_timesteps": 20,
        "eval_episodes": 0,
        "checkpoint_interval": 20,
        "log_interval": 5,
    }
    part = train(tiny("sac", tmp_path, kwargs=kwargs, **fields))
    full = float(logged(part.run_dir)[0]["train/learning_rate"]) / (1 - 19 / 80)
    resumed = resume(part.run_dir, overrides=["total_timesteps=40", "gradient_updates_per_step=1"])
    rows = {int(row["step"]): float(row["train/learning_rate"]) for row in logged(resumed.run_dir)}
    assert rows[25] == pytest.approx(full * (1 - 84 / 100))
    assert rows[40] == pytest.approx(full * (1 - 99 / 100))


@pytest.mark.parametrize(
    ("algo", "kwargs", "what"),
    [
        ("sac", {"learning_rate_schedule": "cosine"}, "the learning-rate schedule"),
        ("iql", {}, "the learning-rate schedule"),
        ("dqn", {}, "exploration"),
        ("dqn", {"warmup_steps": 5}, "exploration"),  # a warm-up does not depend on the total
        ("dqn", {"exploration_fraction": 0.0}, ""),
        ("dqn", {"exploration_initial_eps": 0.1, "exploration_final_eps": 0.1}, ""),
        ("dqn", {"learning_rate_schedule": "linear"}, "the learning-rate schedule and exploration"),
        ("sac", {}, ""),
    ],
)
def test_another_budget_stretches_what_runs_over_it_and_says_so(
    algo: str, kwargs: dict[str, Any], what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = train(tiny(algo, tmp_path, kwargs=kwargs, eval_episodes=0))
    capfd.readouterr()
    resume(result.run_dir, changes={"total_timesteps": 90})
    said = [line for line in capfd.readouterr().err.splitlines() if "over the new total" in line]
    verb = "stretch" if " and " in what else "stretches"
    start = f"note: total_timesteps 60 -> 90: {what} {verb} over the new total"
    assert [line.startswith(start) for line in said] == ([True] if what else [])
    record = run_record(result.run_dir)
    assert record["exact_resume"] is (not what)
    reasons = ["step 60: schedules have changed: total_timesteps 60 -> 90"] if what else None
    assert record.get("inexact") == reasons
    resume(result.run_dir)
    assert "over the new total" not in capfd.readouterr().err
